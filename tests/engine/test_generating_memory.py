"""Memory of answers: what the plan counts, and the tensors of real ones on this CPU.

A record of every tensor, not of every allocation: oneDNN copies a weight for each row of a bf16 product, no card does.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import real_step
import torch
from test_teacher_memory import Live
from test_trace import HALF, LLAMA, MIXED, QWEN, QWEN3, step

from stoker.engine import sampler
from stoker.engine.sampler import Settings
from stoker.estimate import memory
from stoker.estimate.step import Adapter, Step
from stoker.generating import answer_memory
from stoker.generating.generated_step import AnswerFacts

pytestmark = pytest.mark.filterwarnings("default")

BAR = 0.04
CASES: dict[str, Step] = {
    "full fp32": step(LLAMA),
    "full fp32, shared keys": step(QWEN),
    "full fp32, norms of heads": step(QWEN3),
    "lora fp32": step(QWEN, adapter=Adapter(rank=8)),
    "full mixed": step(QWEN, **MIXED),
    "lora bf16": step(QWEN, adapter=Adapter(rank=8), **HALF, autocast=True),
}
SIZES = {"long prompts": (8, 96, 4), "long answers": (6, 8, 72)}


def measured(asked: Step, answers: int, prompt: int, longest: int) -> int:
    """Most bytes of tensors while so many answers are generated, the model's own left out."""
    model: Any = real_step.real_model(asked)
    drawn = np.random.default_rng(0)
    prompts = [drawn.integers(0, asked.shape.vocab, prompt - 3 * (not number)) for number in range(answers)]
    lower = torch.autocast("cpu", torch.bfloat16, enabled=asked.autocast, cache_enabled=False)
    with lower, Live() as live:
        live.known |= {weight.untyped_storage()._cdata: 0 for weight in model.parameters()}
        settings = Settings(longest=longest, temperature=1.0, stops=[], pad=0)
        numbers = drawn.random((answers, longest))
        sampler.generate(model, prompts, numbers, settings, lambda: None, together=False)
    return live.peak


def counted(asked: Step, answers: int, prompt: int, longest: int) -> int:
    moments, lowered = answer_memory.of_step(asked).moments(prompt, longest), answer_memory.lowered_bytes(asked)
    return max(answers * size + lowered[name] for name, size in moments.items())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_the_plan_counts_what_answers_take(name: str, size: str) -> None:
    held = memory.estimate(CASES[name], "cpu").parts["weights"]
    seen = measured(CASES[name], *SIZES[size])
    assert held + counted(CASES[name], *SIZES[size]) == pytest.approx(held + seen, rel=BAR)


def test_the_former_formula_misses_the_bar() -> None:
    """It left out the choice of a token: of a large vocabulary that is most of an answer."""
    asked = step(replace(QWEN, vocab=32000))
    shape, (answers, prompt, longest) = asked.shape, SIZES["long answers"]
    keys = 2 * shape.layers * shape.kv_heads * shape.head_dim * (prompt + longest)
    former = answers * 4 * (keys + prompt * (3 * shape.intermediate + 4 * shape.hidden))
    seen = measured(asked, answers, prompt, longest)
    assert former < seen / 2
    assert counted(asked, answers, prompt, longest) == pytest.approx(seen, rel=BAR)


def test_as_many_answers_at_once_as_the_plan_says_take_no_more_than_training() -> None:
    asked = step(replace(QWEN, vocab=1000), micro=1, length=64)
    used = memory.estimate(asked, "cpu")
    facts = AnswerFacts(batch=512, prompts=64, prompt=56, longest_prompt=56, longest=8)
    together = facts.at_once(used)
    assert 1 < together < facts.batch
    held = used.parts["weights"] + used.parts["optimizer"]
    assert held + measured(asked, together, 56, 8) <= used.allocated
    assert held + measured(asked, 2 * together, 56, 8) > used.allocated
