"""Answers of the model as it is: transformers' `generate`, with randomness that belongs to an answer, not to a batch.

Each token of an answer is drawn by a number of its own, which follows from (seed, step, prompt, answer): how answers
are cut into batches, and on which rank they are generated, changes no draw.

Shapes: N answers, V words of the vocabulary.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from stoker.engine import models


@dataclass(frozen=True)
class Generated:
    """One answer."""

    tokens: np.ndarray
    log_probs: np.ndarray
    """float32, of these tokens, at the temperature of sampling."""
    ended: bool


@dataclass(frozen=True)
class Settings:
    """How answers are generated."""

    longest: int
    temperature: float
    stops: list[int]
    pad: int


def draws(seed: int, step: int, prompt: int, answer: int, count: int) -> np.ndarray:
    """The numbers in [0, 1) by which the tokens of one answer are drawn."""
    key = hashlib.sha256(f"rollout/1/{seed}/{step}/{prompt}/{answer}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little"))).random(count)


def generate(
    model: Any,
    prompts: Sequence[np.ndarray],
    drawn: np.ndarray | None,
    settings: Settings,
    beat: Callable[[], None],
    *,
    together: bool,
) -> list[Generated]:
    """An answer to each prompt.

    Args:
        model: As it is trained, not wrapped.
        prompts: Token ids.
        drawn: For each answer its numbers; None for the likeliest token each time.
        settings: How.
        beat: Called for each token.
        together: All ranks generate at once, because each has only a part of the weights.
    """
    device = next(model.parameters()).device
    width = max(map(len, prompts))
    left = [width - len(prompt) for prompt in prompts]
    rows = [
        functional.pad(torch.from_numpy(one.astype(np.int64)), (gap, 0)) for one, gap in zip(prompts, left, strict=True)
    ]
    mask = torch.arange(width) >= torch.tensor(left)[:, None]
    numbers = None if drawn is None else torch.from_numpy(drawn).to(_wide(device)).to(device)
    chooser = _Chooser(width, settings.temperature, numbers, beat)
    with _generating(model, settings) as bare:
        made = bare.generate(
            input_ids=torch.stack(rows).to(device),
            attention_mask=mask.long().to(device),
            logits_processor=LogitsProcessorList([chooser]),
            synced_gpus=together,
        )
    tokens = made[:, width:].cpu().numpy().astype(np.int32)
    log_probs = torch.cat(chooser.log_probs, 1).float().cpu().numpy()
    return [_cut(*one, settings) for one in zip(tokens, log_probs, strict=True)]


def _cut(tokens: np.ndarray, log_probs: np.ndarray, settings: Settings) -> Generated:
    """An answer without what stands behind its end."""
    stops = np.flatnonzero(np.isin(tokens, settings.stops))
    end = int(stops[0]) + 1 if len(stops) else min(len(tokens), settings.longest)
    return Generated(tokens[:end], log_probs[:end], ended=bool(len(stops)))


@contextlib.contextmanager
def _generating(model: Any, settings: Settings) -> Iterator[Any]:
    """The module that generates, with our settings alone: a model's own would repeat less, or cut unlikely tokens."""
    bare = models.without_adapter(model)
    own = bare.generation_config
    bare.generation_config = GenerationConfig(
        max_new_tokens=settings.longest,
        do_sample=False,
        use_cache=True,
        eos_token_id=settings.stops or None,
        pad_token_id=settings.pad,
    )
    # What is not in a block is sharded with the whole model, whose own forward `generate` may not call.
    sharded = isinstance(model, FSDPModule)
    if sharded:
        model.unshard()
    try:
        with models.evaluating(model):
            yield bare
    finally:
        if sharded:
            model.reshard()
        bare.generation_config = own


class _Chooser(LogitsProcessor):
    """Draws the next token of every answer by its own number, and leaves `generate` no other choice."""

    def __init__(self, width: int, temperature: float, drawn: torch.Tensor | None, beat: Callable[[], None]) -> None:
        self._width, self._temperature, self._drawn, self._beat = width, temperature, drawn, beat
        self.log_probs: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._beat()
        log_probs_NV = (scores.float() / self._temperature).log_softmax(-1)  # noqa: N806  # shape suffix
        if self._drawn is None:
            chosen = log_probs_NV.argmax(-1, keepdim=True)
        else:
            chosen = _drawn_tokens(log_probs_NV, self._drawn[:, input_ids.shape[1] - self._width, None])
        self.log_probs.append(log_probs_NV.gather(1, chosen))
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen, 0.0)


def _drawn_tokens(log_probs_NV: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:  # noqa: N803  # shape suffix
    """The token in whose part of the line from 0 to 1 each number lies."""
    with _any_kernel():
        upto_NV = log_probs_NV.to(drawn.dtype).exp().cumsum(-1)  # noqa: N806
    chosen = torch.searchsorted(upto_NV, drawn * upto_NV[:, -1:], right=True)
    return chosen.clamp(max=log_probs_NV.shape[1] - 1)


def _wide(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


@contextlib.contextmanager
def _any_kernel() -> Iterator[None]:
    """CUDA has no deterministic sum up to each element. What is drawn is committed, so it need not be drawn twice."""
    asked, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(asked, warn_only=warns)
