"""The table of families: it follows from its evidence, and says nothing of what it has not seen."""

import importlib.util
from pathlib import Path

import pytest

from stoker.facts import families
from stoker.facts.families import FamilyCell, FamilyTable, KnownFamily
from stoker.facts.model_parts import ModelParts
from stoker.facts.shapes import ModelShape

ROOT = Path(__file__).resolve().parents[3]
SEEN = {"date": "2026-11-16", "transformers": "5.22.1"}


def row(family: str, model_class: str, text: str = "", how: str = "rows") -> KnownFamily:
    cells = {"packing": FamilyCell(outcome="works", how=how, **SEEN)}
    return KnownFamily(family=family, model_class=model_class, text=text or family, cells=cells)


@pytest.fixture
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (
        row("gemma3", "Gemma3ForConditionalGeneration", "gemma3_text"),
        row("bloom", "BloomForCausalLM", how="grouped"),
        row("llama", "LlamaForCausalLM"),
    )
    monkeypatch.setattr(families, "table", lambda: FamilyTable(about="", families=rows))


def shape(family: str, model_class: str | None = None) -> ModelShape:
    parts = ModelParts(family=family, model_class=model_class, sizes=(), groups=(), mixers=()) if model_class else None
    sizes = {"layers": 1, "hidden": 8, "heads": 1, "kv_heads": 1, "head_dim": 8, "intermediate": 8, "vocab": 8}
    return ModelShape(family=family, parts=parts, **sizes)


def test_the_shipped_table_is_what_its_evidence_says() -> None:
    path = ROOT / "benchmarks" / "families.py"
    spec = importlib.util.spec_from_file_location("families_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    assert benchmark.TABLE.read_text(encoding="utf-8") == benchmark.tabled(benchmark.read())


def test_no_shipped_cell_fails() -> None:
    failing = [
        (row.family, name)
        for row in families.table().families
        for name, cell in row.cells.items()
        if cell.outcome == "fails"
    ]
    assert not failing


def test_every_refused_cell_names_its_error() -> None:
    cells = [cell for row in families.table().families for cell in row.cells.values() if cell.outcome == "refused"]
    assert all(cell.code and cell.reason for cell in cells)


@pytest.mark.usefixtures("_table")
def test_a_weighed_model_is_known_by_its_class_and_another_by_its_family() -> None:
    assert families.of_shape(shape("gemma3_text", "Gemma3ForConditionalGeneration")) is not None
    assert families.of_shape(shape("gemma3_text", "Gemma3ForSomethingElse")) is None
    assert families.of_shape(shape("llama")) is not None
    assert families.of_shape(shape("unheard_of")) is None


@pytest.mark.usefixtures("_table")
def test_only_a_family_that_was_seen_to_leak_leaks() -> None:
    assert families.leaks(shape("bloom", "BloomForCausalLM")) is not None
    assert families.leaks(shape("llama")) is None
    assert families.leaks(shape("unheard_of")) is None


def test_a_patch_release_is_the_same_version_and_no_installed_one_says_nothing() -> None:
    cell = FamilyCell(outcome="works", **SEEN)
    assert not families.other_transformers(cell, "5.22.9")
    assert families.other_transformers(cell, "5.23.0")
    assert not families.other_transformers(cell, "")
