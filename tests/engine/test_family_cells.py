"""The cells of `stoker models` in a short form: one that works, one that is refused, one that would leak.

Every family is in `tests/nightly/engine/test_families.py`.
"""

from collections.abc import Iterator
from pathlib import Path

import family_cells
import pytest
import tiny_families
import torch
from family_cells import Case

from stoker.engine import models, parity
from stoker.engine.foreign import observe
from stoker.facts import families

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def _quickly() -> Iterator[None]:
    with family_cells.quickly():
        yield


@pytest.mark.parametrize(
    ("family", "cells"),
    [
        (
            "qwen3_moe",
            {"lora": ("works", ""), "merge": ("works", ""), "export": ("works", ""), "packing": ("works", "rows")},
        ),
        ("bloom", {"packing": ("works", "grouped")}),
        ("mamba2", {"lora": ("refused", "")}),
        ("gemma3n", {"lora": ("refused", ""), "full": ("refused", "")}),
    ],
)
def test_a_cell_is_what_the_table_says(tmp_path: Path, family: str, cells: dict[str, tuple[str, str]]) -> None:
    case, row = Case(family, tmp_path / family), families.named(family)
    assert row is not None
    for name, (outcome, how) in cells.items():
        found = case.cell(name)
        assert (found.outcome, found.how) == (outcome, how), found.reason
        assert (row.cells[name].outcome, row.cells[name].how, row.cells[name].code) == (outcome, how, found.code)


@pytest.mark.parametrize("family", ["llama", "minimax"])
def test_answers_are_those_of_a_single_pass_whatever_a_class_computes_from_its_cache(family: str) -> None:
    torch.manual_seed(0)
    config = tiny_families.config(family)
    model = models.auto_class(config).from_config(config)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    ids = list(range(5, 45))
    with models.evaluating(model):
        prompt, _, distance = parity._answer(model, ("random", None, "", ids), [])
        whole = observe.answer_logits(model, ids, prompt.answer).argmax(-1).tolist()
    assert prompt.answer == whole
    assert distance < 1e-4
