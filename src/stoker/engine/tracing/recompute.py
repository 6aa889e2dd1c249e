"""Gradient checkpointing: whole blocks, or torchtitan's choice of operations ("selective", by operation).

It keeps the results of attention and of every other matrix product; the rest of a block is recomputed.
"""

import functools
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from stoker.engine.tracing.private_names import EFFICIENT_ATTENTION, FLASH_ATTENTION, FLASH_ATTENTION_ON_CPU
from stoker.estimate.step import Step

_PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
_KEPT = _PRODUCTS | {
    FLASH_ATTENTION.default,
    EFFICIENT_ATTENTION.default,
    FLASH_ATTENTION_ON_CPU.default,
}


def prepare(step: Step, model: Any, *, keep_random_state: bool) -> None:
    """Enable gradient checkpointing, if the step asks for it.

    Args:
        step: The step.
        model: A model of transformers, or PEFT's wrapper.
        keep_random_state: Whether each block saves the CPU's RNG state; a GPU's is not in GPU memory.
    """
    if step.recompute == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": keep_random_state}
    if step.recompute == "selective":
        options["context_fn"] = _contexts
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options, offload=step.kept_away)


def _contexts() -> Any:
    counts = {True: 0, False: 0}
    return create_selective_checkpoint_contexts(functools.partial(_policy, counts))


def _policy(counts: dict[bool, int], ctx: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:  # noqa: ARG001
    if operation in _PRODUCTS:
        counts[ctx.is_recompute] += 1
        if counts[ctx.is_recompute] % 2 == 0:
            return CheckpointPolicy.PREFER_RECOMPUTE
    return CheckpointPolicy.MUST_SAVE if operation in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
