"""Places of other packages in a run file: known by their metadata, shown with their package, never loaded here."""

from pathlib import Path

import pytest
from installed_package import install

from stoker import plugins
from stoker.config import load
from stoker.errors import StokerErrors

RUN = "model: Qwen/Qwen2.5-0.5B\ndata: {train: a.jsonl}\n"


@pytest.fixture(autouse=True)
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "acme-clouds", {plugins.PLACES: {"acme": "Acme"}}, "raise SystemExit")


def test_a_run_file_may_name_the_place_of_an_installed_package() -> None:
    run = load.parse(RUN + "where: {place: acme}\nnative: {acme: {region: eu}, slurm: {partition: gpu}}", "run.yaml")
    assert run.where.place == "acme"
    assert run.native.of_place("acme") == {"region": "eu"}
    assert run.native.of_place("slurm") == {"partition": "gpu"}
    assert run.native.of_place("sky") == {}
    assert run.model_dump()["native"]["acme"] == {"region": "eu"}


def test_an_unknown_place_is_refused_with_all_names_and_their_packages() -> None:
    with pytest.raises(StokerErrors) as caught:
        load.parse(RUN + "where: {place: acne}", "run.yaml")
    (error,) = caught.value.errors
    assert error.code == "STK108"
    assert error.fields["choices"][-2:] == ["`sky`", "`acme` (acme-clouds 1.0)"]


def test_all_wrong_native_blocks_are_found_in_one_go() -> None:
    text = RUN + "native: {acne: {region: eu}, trainer: 5, model: }"
    with pytest.raises(StokerErrors) as caught:
        load.parse(text, "run.yaml")
    assert sorted(one.code for one in caught.value.errors) == ["STK104", "STK106", "STK120"]


def test_a_block_set_to_nothing_is_left_out() -> None:
    """On another machine, where the package is not installed."""
    run = load.parse(RUN + "native: {elsewhere: {a: 1}}", "run.yaml", ["native.elsewhere="])
    assert run.native.model_extra == {}
