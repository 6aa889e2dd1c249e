"""Memory of a step on pairs: what the plan counts, the traced step, and a real one on this CPU."""

from typing import Any

import pytest
import real_step
import torch
from test_trace import HALF, LLAMA, MIXED, QLORA, step

from stoker.engine import objective
from stoker.engine.trace import trace
from stoker.engine.tracing import losses
from stoker.estimate import memory
from stoker.estimate.step import Adapter, Step

pytestmark = pytest.mark.filterwarnings("default")

BAR = 0.015
"""Of the traced step to a real one."""
PLAN_BAR = 0.04
"""Of the plan to the traced step."""
PAIRS = {"micro": 4, "length": 128}
"""Two pairs, as they go through the model."""
ROWS = {"micro": 2, "length": 256}
"""The same as the plan counts them: a row is a pair."""
CASES = {
    "full fp32": {},
    "full mixed": MIXED,
    "lora bf16": {"adapter": Adapter(rank=8), **HALF},
    "lora checkpointed": {"adapter": Adapter(rank=8), "recompute": "full", **HALF},
    "qlora checkpointed": {"recompute": "full", "autocast": False, **QLORA},
}
OBJECTIVES = {"dpo": objective.DirectPreference(0.1), "simpo": objective.SimplePreference(2.0, 0.5)}


def inputs(ids: torch.Tensor, asked: objective.Objective) -> dict[str, Any]:
    known = {objective.REFERENCE: torch.zeros(len(ids) // 2, 2)} if asked.reference else {}
    return {"input_ids": ids, "labels": ids, **known}


def traced_with(monkeypatch: pytest.MonkeyPatch, asked: objective.Objective) -> None:
    """The oracle and the real step compute this objective's loss."""

    def traced(_: Step, model: Any, rows: dict[str, Any], labels: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return asked.loss(model, inputs(rows["input_ids"], asked), torch.tensor(2), _never).loss, None

    def real(_: Step, model: Any, ids: torch.Tensor) -> None:
        asked.loss(model, inputs(ids, asked), torch.tensor(2), _never).loss.backward()

    monkeypatch.setattr(losses, "loss", traced)
    monkeypatch.setattr(real_step, "forward_backward", real)


def _never(*_: Any, **__: Any) -> torch.Tensor:
    raise AssertionError


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("word", OBJECTIVES)
def test_the_oracle_is_right_about_a_real_step_on_pairs(name: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = step(LLAMA, **{**CASES[name], **PAIRS})
    traced_with(monkeypatch, OBJECTIVES[word])
    assert trace(asked, on="cpu").requested == pytest.approx(real_step.measured_peak(asked), rel=BAR)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("word", OBJECTIVES)
def test_the_plan_counts_what_the_oracle_sees(name: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = memory.estimate(step(LLAMA, **{**CASES[name], **ROWS}), "cuda").allocated
    traced_with(monkeypatch, OBJECTIVES[word])
    assert trace(step(LLAMA, **{**CASES[name], **PAIRS})).allocated == pytest.approx(planned, rel=PLAN_BAR)


@pytest.mark.parametrize("name", CASES)
def test_pairs_take_what_as_many_tokens_of_plain_rows_take(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = trace(step(LLAMA, **{**CASES[name], **PAIRS})).allocated
    traced_with(monkeypatch, OBJECTIVES["dpo"])
    assert trace(step(LLAMA, **{**CASES[name], **PAIRS})).allocated == plain


def test_a_plan_for_one_answer_of_a_pair_misses_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = memory.estimate(step(LLAMA, micro=2, length=128, **HALF), "cuda").allocated
    traced_with(monkeypatch, OBJECTIVES["dpo"])
    assert abs(trace(step(LLAMA, **{**HALF, **PAIRS})).allocated / planned - 1) > PLAN_BAR
