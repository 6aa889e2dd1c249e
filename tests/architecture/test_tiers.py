"""A test's tier follows from its folder: the table for people says so, and quick folders need no torch."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiers

HEAVY = {
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "datasets",
    "numpy",
    "pyarrow",
    "safetensors",
    "tokenizers",
    "trl",
}
MADE_WITH_TORCH = {"tiny_run", "forked_trainer", "trainings"}
"""Modules of tests/ that import it."""
ROW = re.compile(r"^\| `tests/([\w/]+)` \| (\w+) \|", re.M)


def folders() -> set[str]:
    return {tiers.folder(path.relative_to(tiers.TESTS.parent).as_posix()) for path in tiers.TESTS.rglob("test_*.py")}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def test_every_folder_has_its_row_and_the_row_its_tier() -> None:
    found = ROW.findall((tiers.TESTS / "README.md").read_text(encoding="utf-8"))
    rows = dict(found)
    assert len(rows) == len(found)
    assert rows == {name: tiers.tier(f"{name}/") for name in folders()}


@pytest.mark.parametrize("name", tiers.QUICK)
def test_quick_folders_import_no_torch(name: str) -> None:
    files = list((tiers.TESTS / name).rglob("*.py"))
    assert files
    found = {path.name: set(imported(path)) & (HEAVY | MADE_WITH_TORCH) for path in files}
    assert {file: names for file, names in found.items() if names} == {}


def test_every_name_of_the_slow_list_is_a_test_of_check() -> None:
    for name in tiers.slow_list():
        file, _, test = name.partition("::")
        assert f"def {test}(" in (tiers.TESTS.parent / file).read_text(encoding="utf-8"), name
        assert tiers.tier(name) == "check", name


def test_bits_are_compared_by_what_the_invariants_left_to_the_night() -> None:
    """At every level of instructions: `just bits`."""
    suite = (tiers.TESTS.parent / "benchmarks/bits.py").read_text(encoding="utf-8")
    parts = {path.stem for path in (tiers.TESTS / "invariant").glob("*.py")}
    night = [path for path in (tiers.TESTS / "nightly").rglob("test_*.py") if parts & set(imported(path))]
    assert len(night) > 1
    assert [path.name for path in night if f'"tests/nightly/engine/{path.name}"' not in suite] == []


@pytest.mark.parametrize(
    ("nodeid", "folder", "tier"),
    [
        ("tests/unit/plan/test_make.py::test_x[a/b]", "unit", "quick"),
        ("tests/engine/test_train.py::test_x", "engine", "check"),
        ("tests/nightly/places/test_slurm.py::test_x", "nightly/places", "nightly"),
    ],
)
def test_the_folder_decides(nodeid: str, folder: str, tier: str) -> None:
    assert (tiers.folder(nodeid), tiers.tier(nodeid)) == (folder, tier)


def test_a_long_test_that_is_not_listed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {}
    for name, wall, shared in (
        ("tests/engine/a.py::test_listed[1]", 90, 0),
        ("tests/engine/a.py::test_long", 31, 0),
        ("tests/engine/a.py::test_waits_for_what_is_shared", 90, 80),
        ("tests/nightly/engine/a.py::test_at_night", 90, 0),
    ):
        times[name] = took = tiers.Times()
        took.wall, took.shared = float(wall), float(shared)
    monkeypatch.setattr(tiers, "slow_list", lambda: ["tests/engine/a.py::test_listed"])
    assert tiers.unlisted(times, 30.0) == ["tests/engine/a.py::test_long"]
