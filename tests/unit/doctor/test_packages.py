import re
from pathlib import Path

import pytest

from stoker.doctor import packages
from stoker.facts.tested import Combination, table, version_key

COMBINATION = table().combinations[-1].packages


def test_tested_combination_is_one_line() -> None:
    found = packages.compare({**COMBINATION, "torch": "2.13.0+cu130"})
    assert [(f.name, f.status) for f in found] == [("packages", "ok")]
    assert "torch 2.13.0+cu130" in found[0].what


def test_other_version_is_a_warning_with_the_line_that_mends_it() -> None:
    found = {f.name: f for f in packages.compare({**COMBINATION, "peft": "0.22.0"})}
    assert found["peft"].status == "warn"
    assert "0.22.0" in found["peft"].what
    assert found["peft"].hint.endswith(f"pip install peft=={COMBINATION['peft']}")
    assert "peft" not in found["packages"].what


@pytest.mark.parametrize(("name", "version"), [("torch", "2.9.1+cu128"), ("transformers", "4.57.6"), ("peft", "0.9.0")])
def test_version_below_the_floor_fails(name: str, version: str) -> None:
    found = {f.name: f for f in packages.compare({**COMBINATION, name: version})}
    assert found[name].status == "fail"
    assert table().floors[name] in found[name].what


def test_all_that_every_run_needs_is_one_pip_line() -> None:
    missing, optional = packages.compare({})
    assert missing.status == "fail"
    assert missing.hint.startswith(f"pip install torch=={COMBINATION['torch']} transformers==")
    assert "bitsandbytes" not in missing.hint
    assert (optional.name, optional.status) == ("bitsandbytes", "warn")
    assert optional.hint == f"pip install bitsandbytes=={COMBINATION['bitsandbytes']}"


def test_package_that_no_run_needs_is_not_missed() -> None:
    found = packages.compare({name: version for name, version in COMBINATION.items() if name != "trl"})
    assert [f.status for f in found] == ["ok"]


def test_nearest_combination_is_the_one_that_shares_most_versions() -> None:
    older = Combination(date="2026-08", packages={"torch": "2.12.0", "transformers": "5.20.0", "peft": "0.21.2"})
    newer = Combination(date="2026-11", packages={"torch": "2.13.0", "transformers": "5.22.2", "peft": "0.21.2"})
    both = table().model_copy(update={"combinations": (older, newer)})
    assert both.nearest({"torch": "2.12.0+cu126", "transformers": "5.20.0"}) == older
    assert both.nearest({"peft": "0.21.2"}) == newer


def test_floors_are_those_of_the_train_extra() -> None:
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    extra = project.partition("\ntrain = [")[2].partition("\n]")[0]
    required = dict(re.findall(r'"([\w-]+)>=([\d.]+)', extra))
    assert {name: required[name] for name in table().floors} == table().floors
    assert set(table().optional) <= set(table().floors)
    for name, floor in table().floors.items():
        assert version_key(floor) <= version_key(COMBINATION[name])
