"""Every family by its tiny model, through Stoker's own path: LoRA, merge and export work or are refused at plan time.

The other cells take an hour, and tools of their own: `just families`.
"""

from collections.abc import Iterator
from pathlib import Path

import family_cells
import pytest
import tiny_families
from family_cells import Case, Cell

from stoker.facts import families

pytestmark = pytest.mark.filterwarnings("default")

BY_LORA = {
    *("llama", "llama4", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_vl"),
    *("gemma3", "gemma4", "gpt_oss", "deepseek_v3", "glm4_moe", "phi3", "olmo3", "smollm3", "granitemoehybrid", "lfm2"),
}
"""Families that must train, merge and export by LoRA."""
LEAST_BY_LORA = 32
HERE = ("lora", "merge", "export")
_seen: dict[str, dict[str, Cell]] = {}


@pytest.fixture(autouse=True)
def _quickly() -> Iterator[None]:
    with family_cells.quickly():
        yield


@pytest.mark.parametrize("family", [*tiny_families.FAMILIES, *tiny_families.RELATIVES])
def test_every_cell_works_or_is_refused_and_the_table_says_so(tmp_path: Path, family: str) -> None:
    case = Case(family, tmp_path / family)
    found = _seen[family] = {name: case.cell(name) for name in HERE}
    assert not {name: cell.reason for name, cell in found.items() if cell.outcome == "fails"}
    row = families.named(family)
    assert row is not None
    shipped = {name: (row.cells[name].outcome, row.cells[name].code, row.cells[name].how) for name in HERE}
    assert {name: (cell.outcome, cell.code, cell.how) for name, cell in found.items()} == shipped


def test_most_families_train_merge_and_export_by_lora() -> None:
    if len(_seen) < len(tiny_families.FAMILIES):
        pytest.skip("only some families were run")
    able = {family for family, cells in _seen.items() if all(cell.outcome == "works" for cell in cells.values())}
    assert able >= BY_LORA
    assert len(able & tiny_families.FAMILIES.keys()) >= LEAST_BY_LORA
