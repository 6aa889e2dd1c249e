"""Sample answers before and after training: prompts from the run's data, the base's answer, the trained model's."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from stoker.config.run import Shape
from stoker.engine import generate, streaming
from stoker.engine.dataset import Segment, token_ids
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report

_LONGEST_ANSWER = 128

Sample = dict[str, Any]
"""prompt, wanted, after and, where the model started from a trained one, before."""


def make(run_dir: RunDir, report: Report, model: Any, tokenizer: Any, count: int) -> list[Sample]:
    """`count` samples, evenly spread over the eval rows, or over the training rows if there are none."""
    name, facts = ("eval", report.eval) if report.eval else ("train", report.train)
    split = streaming.open_split(run_dir, name, facts)
    numbers = sorted({place * len(split) // count for place in range(min(count, len(split)))})
    cuts = [_cut(split.row(number)[0]) for number in numbers]
    after = [_answer(model, tokenizer, prompt, wanted) for prompt, wanted in cuts]
    before = _before(run_dir, model, tokenizer, cuts)
    return [
        {"prompt": tokenizer.decode(prompt), "wanted": _words(tokenizer, wanted), **first, "after": then}
        for (prompt, wanted), first, then in zip(cuts, before, after, strict=True)
    ]


def _cut(segment: Segment) -> tuple[list[int], list[int]]:
    """A document split before its first trained tokens; fully trained text is split in the middle."""
    tokens = [int(token) for token in segment]
    trained = [at for at, token in enumerate(tokens) if token >= 0]
    start = trained[0] if trained and trained[0] > 1 else max(1, len(tokens) // 2)
    end = next((at for at in range(start, len(tokens)) if tokens[at] < 0), len(tokens))
    return token_ids(segment[:start]).tolist(), tokens[start:end]


def _before(run_dir: RunDir, model: Any, tokenizer: Any, cuts: list[tuple[list[int], list[int]]]) -> list[Sample]:
    """The base's answers; empty for a model trained from scratch."""
    if isinstance(run_dir.run().model, Shape):
        return [{} for _ in cuts]
    adapter = hasattr(model, "disable_adapter")
    base = model if adapter else generate.load_base(run_dir)
    without: AbstractContextManager[Any] = model.disable_adapter() if adapter else nullcontext()
    with without:
        return [{"before": _answer(base, tokenizer, prompt, wanted)} for prompt, wanted in cuts]


def _answer(model: Any, tokenizer: Any, prompt: list[int], wanted: list[int]) -> str:
    longest = min(_LONGEST_ANSWER, 2 * len(wanted) + 16)
    return generate.answers(model, tokenizer, [torch.tensor([prompt])], longest)[0].strip()


def _words(tokenizer: Any, tokens: list[int]) -> str:
    return tokenizer.decode(tokens, skip_special_tokens=True).strip()
