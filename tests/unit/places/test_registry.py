"""Places of other packages behind the same protocol: found by name, checked, named with their package."""

import sys
from pathlib import Path

import pytest
from installed_package import install

from stoker import plugins
from stoker.cli import hosts_command, remote
from stoker.cli.remote import TrainOptions
from stoker.config import load
from stoker.errors import StokerError
from stoker.hosts import known
from stoker.hosts.known import Host
from stoker.launch import programs
from stoker.places import registry
from stoker.places.box import Box
from stoker.rundir import layout

RUN = """
name: tiny
model: {shape: llama, layers: 2, width: 64, heads: 2}
tokenizer: {train: bpe, vocab: 300}
data: {train: a.txt, rows: 100, tokens: 100000, length: 64}
where: {place: acme}
"""
ACME = """
from pathlib import Path
from stoker.errors import StokerError
from stoker.places.place import Place

DIARY = Path(__file__).with_name("diary")
REFUSES = Path(__file__).with_name("refuses")


class Acme(Place):
    known_options = frozenset({"region"})

    def facts(self): return None
    def status(self, run): return None
    def watch(self, run, terminal, *, once, as_json): return 7
    def logs(self, run, *, follow, lines): return 7
    def runs(self): return 7
    def stop(self, run): return 7
    def get(self, run): ...
    def stop_meter(self): ...

    def put(self, package):
        if REFUSES.exists() and REFUSES.read_text() == "put":
            raise StokerError("STK710", place="acme")
        DIARY.write_text(f"put {package.name} {self.options} {' '.join(package.words)}")

    def start(self, package):
        if REFUSES.exists():
            raise StokerError("STK708", name=package.name, host="acme")
        DIARY.write_text(DIARY.read_text() + "; start")


class Half(Place):
    pass
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STOKER_LANG", "en")
    monkeypatch.setattr(programs, "check_engine", lambda: (_ for _ in ()).throw(StokerError("STK402")))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "acme_clouds", raising=False)
    names = {"acme": "Acme", "half": "Half", "wrong": "DIARY"}
    install(tmp_path, "acme-clouds", {plugins.PLACES: names}, ACME)
    (tmp_path / "a.txt").write_text("a text\n")
    (tmp_path / "run.yaml").write_text(RUN, encoding="utf-8")
    return tmp_path


def _train(folder: Path, *overrides: str, on: str | None = None) -> None:
    path, given = str(folder / "run.yaml"), list(overrides)
    remote.train(load.load(path, given), path, given, TrainOptions(on=on, detach=False, yes=True))


@pytest.mark.parametrize("on", [None, "acme"])
def test_a_run_goes_to_the_place_of_a_package(folder: Path, on: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    _train(folder, "native.acme.region=eu", on=on)
    diary = (folder / "diary").read_text()
    assert diary.startswith(
        "put tiny {'region': 'eu'} train run.yaml --set native.acme.region=eu --set where.place=local"
    )
    assert "--set native.acme= " in diary  # the package need not be installed there
    assert diary.endswith("; start")
    assert "`acme` is a place of the package acme-clouds 1.0" in capsys.readouterr().err
    assert registry.recorded(layout.find("tiny")) == "acme"


@pytest.mark.parametrize("step", ["put", "start"])
def test_a_launch_that_is_refused_leaves_the_record_of_the_run_as_it_was(folder: Path, step: str) -> None:
    _train(folder)
    run_dir = layout.find("tiny")
    kept = [run_dir.manifest_file, run_dir.run_file, run_dir.place_file]
    before = [path.read_text() for path in kept]
    (folder / "refuses").write_text(step)
    (folder / "run.yaml").write_text(RUN + "train: {batch: 7}\n", encoding="utf-8")
    with pytest.raises(StokerError) as caught:
        _train(folder)
    assert caught.value.code == {"put": "STK710", "start": "STK708"}[step]
    assert [path.read_text() for path in kept] == before
    (folder / "refuses").unlink()
    _train(folder)
    assert "batch: 7" in run_dir.run_file.read_text()


def test_commands_about_a_run_that_is_not_here_reach_the_place(folder: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        remote.logs("tiny", "acme", follow=False, lines=None)
    assert ended.value.code == 7


def test_an_option_the_place_does_not_know_is_refused(folder: Path) -> None:
    with pytest.raises(StokerError, match=r"acme-clouds 1\.0") as caught:
        _train(folder, "native.acme.regio=eu")
    assert (caught.value.code, caught.value.fields["nearest"]) == ("STK111", "closest: `region`; ")


@pytest.mark.parametrize(("name", "reason"), [("half", "abstract"), ("wrong", "not a subclass of stoker.places.place")])
def test_what_is_no_place_is_named_with_its_package(name: str, reason: str) -> None:
    with pytest.raises(StokerError, match=r"acme-clouds 1\.0") as caught:
        registry.by_name(name)
    assert caught.value.code == "STK124"
    assert reason in caught.value.fields["reason"]


def test_a_host_goes_before_a_package_and_no_new_host_takes_its_name() -> None:
    known.save(Host(name="acme", host="198.18.0.1"))
    assert isinstance(registry.by_name("acme"), Box)
    with pytest.raises(StokerError) as caught:
        known.parse("half", "ssh://root@198.18.0.1")
    assert caught.value.code == "STK722"


def test_an_unknown_name_is_answered_with_hosts_and_places_of_packages() -> None:
    known.save(Host(name="box-1", host="198.18.0.1"))
    with pytest.raises(StokerError) as caught:
        registry.by_name("nobody")
    assert caught.value.fields["known"][:2] == ["box-1", "acme (acme-clouds 1.0)"]


def test_places_of_packages_are_listed_beside_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    hosts_command.show(as_json=False)
    assert "acme (acme-clouds 1.0)" in capsys.readouterr().err
    assert "acme_clouds" not in sys.modules


def test_the_names_that_on_knows_are_the_built_in_ones_of_the_registry() -> None:
    from stoker.config import place_names

    assert set(place_names.NAMED_BY_ON) == set(registry._NAMED)
    assert set(place_names.NAMED_BY_ON) | set(place_names.WITH_OPTIONS) <= set(place_names.BUILT_IN)
