"""Tensor, pipeline and context parallel steps on one device: the same step with a part of the model.

Stoker does not run such steps; others publish them, and they test the memory model.
"""

import dataclasses

from stoker.estimate import memory
from stoker.estimate.memory import Estimate
from stoker.estimate.step import BYTES, Step, replace_foreign


def is_split(step: Step) -> bool:
    """Whether devices hold parts of layers, of the model's depth, or of a sequence."""
    return max(step.foreign.tensor_parallel, step.foreign.pipeline_parallel, step.foreign.context_parallel) > 1


def local(step: Step) -> Step:
    """The last stage's part: its layers, its columns of them, its rows of the vocabulary, its tokens.

    Tensor parallelism leaves the residual stream whole on every device. A pipeline's last stage has the output layer
    and no embedding, so one table is counted.
    """
    shape, tensor, stages = step.shape, step.foreign.tensor_parallel, step.foreign.pipeline_parallel
    part = dataclasses.replace(
        shape,
        layers=-(-shape.layers // stages),
        heads=max(1, shape.heads // tensor),
        kv_heads=max(1, shape.kv_heads // tensor),
        intermediate=-(-shape.intermediate // tensor),
        vocab=-(-shape.vocab // tensor),
        tie_embeddings=shape.tie_embeddings or stages > 1,
    )
    length = -(-step.length // step.foreign.context_parallel)
    alone = {"tensor_parallel": 1, "pipeline_parallel": 1, "pipeline_chunks": 1, "context_parallel": 1}
    return replace_foreign(dataclasses.replace(step, shape=part, length=length), **alone)


def estimate(step: Step) -> Estimate:
    """Peak memory of one device of any step: of a pipeline's, the fuller of the first and the last stage."""
    if not is_split(step):
        return memory.estimate(step)
    part = local(step)
    last = memory.estimate(part)
    stream = part.tokens * part.shape.hidden * BYTES[part.compute]
    saved = stream + (part.shape.layers * stream if part.recompute == "full" else last.parts["activations"])
    # The first stage has no logits, but holds as many micro batches as there are stages until their backward pass.
    waiting = max(0, (min(step.foreign.pipeline_parallel, step.accumulation) - 1) * saved - last.parts["logits"])
    return dataclasses.replace(
        last,
        allocated=last.allocated + waiting,
        parts={**last.parts, "activations": last.parts["activations"] + waiting},
    )
