"""Memory of one answer by transformers' `generate` and our sampler, counted tensor by tensor.

Held to the profiler's record of real answers by `tests/engine/test_generating_memory.py`.
"""

from stoker.estimate import layers
from stoker.estimate.step import BYTES, Step
from stoker.generating.planned_answers import AnswerBytes

_FP32 = 4
_INNER, _WIDTHS, _ANGLES = 3, 4, 2
"""Of a token of the prompt at the end of a block: gate, up and their product; the residual stream, its norm, the
block's input and the embedding; cosine and sine of its position."""
_NUMBERED = 5 * 8
"""A token's id, position and mask, with copies."""
_CHOICE = 32
"""Bytes for each word of the vocabulary while one is drawn: logits, two copies in 32 bits, what the last choice left,
and two in 64 bits."""
_LEFT = 8
"""Of these, what lives until the next choice."""
_STATE = 2 * 128 * _FP32
"""For each channel of a layer that carries a state: twice the width, times 128, as Mamba 2 and gated delta rules."""
_STATELESS = "conv"


def of_step(step: Step) -> AnswerBytes:
    """One answer of the model that a step trains."""
    shape, size = step.shape, BYTES[step.compute]
    held = step.weights if step.weights in BYTES else step.outer
    # Angles have the type of the residual stream, and keys that are turned by them get it.
    wide = _FP32 if held == "fp32" else size
    key, query = shape.kv_heads * shape.head_dim, shape.heads * shape.head_dim
    inner = shape.intermediate * max(1, shape.experts_per_token)
    # A gate less where there is none, and what an adapter adds to one; its input is cast to the adapter's type.
    gates = _INNER - (not shape.gated_mlp) + (step.adapter is not None)
    adapted = shape.hidden * _FP32 if step.adapter and wide < _FP32 else 0
    stream = wide * (_WIDTHS * shape.hidden + _ANGLES * shape.head_dim)
    repeated = 2 * query * size if shape.kv_heads != shape.heads else 0
    return AnswerBytes(
        cached=_cached_layers(step) * key * (wide + size),
        passing=size * gates * inner + stream + adapted + _NUMBERED,
        joined=max(key * wide, repeated),
        chosen=_CHOICE * shape.vocab,
        waiting=_LEFT * shape.vocab,
        logits=_FP32 * shape.vocab,
        state=_state_layers(step) * shape.hidden * _STATE,
    )


def lowered_bytes(step: Step) -> dict[str, int]:
    """Copies of a weight in the type of the arithmetic while it is used, where it is held in another; by moment."""
    shape, size = step.shape, BYTES[step.compute]
    if step.weights not in BYTES:
        block, output = max(one.weights for one in layers.quantised(shape)), shape.vocab * shape.hidden
    elif step.autocast and BYTES[step.weights] != size:
        block, output = shape.hidden * shape.intermediate, shape.vocab * shape.hidden
    else:
        block = output = 0
    return {"prompt": size * block, "layer": size * block, "output": size * output, "choice": 0}


def _recurrent(step: Step) -> dict[str, int]:
    parts = step.shape.parts
    return {kind: count for kind, count in parts.mixers if kind in parts.recurrent} if parts else {}


def _cached_layers(step: Step) -> int:
    """Layers with keys and values; a window is counted as if it were never full."""
    return max(0, step.shape.layers - sum(_recurrent(step).values()))


def _state_layers(step: Step) -> int:
    return sum(count for kind, count in _recurrent(step).items() if kind != _STATELESS)
