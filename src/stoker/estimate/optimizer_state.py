"""What each optimizer keeps for a weight and how much it reads and writes; names are those of `Step.optimizer`.

Held against the real states' bytes by a test. Reads and writes of those that no published measurement has are counted
from their formulas, not measured.
"""

from dataclasses import dataclass

from stoker.estimate.layers import Parameter
from stoker.estimate.rounding import FULL_STATE_BELOW, STATE_BLOCK

_PAGED_FROM = 100_000
_FP32 = 4


@dataclass(frozen=True)
class Kept:
    """The state of one optimizer."""

    moments: int
    """Values for each weight."""
    words: float
    """Reads and writes per trained weight, clipping included: foreach forms make a pass for each operation."""
    bits: int = 0
    """Width of a value: 0 for the weight's own, 32, or 8 with a scale for each 256."""
    paged: bool = False
    """Whether large states may leave the device."""
    temporaries: bool = False
    """Whether a step makes one more copy of the gradients."""
    matrix_moments: int | None = None
    """Values for each weight of a hidden matrix, where it is fewer."""
    torchao: bool = False
    """Whether torchao makes it: 8 bits in full blocks only, of embeddings too, for which bitsandbytes keeps 32."""


KEPT = {
    "adamw": Kept(2, 23.0, temporaries=True),
    "adamw_fused": Kept(2, 10.0),
    "sgd": Kept(0, 8.0),
    "adagrad": Kept(1, 14.0, temporaries=True),
    "rmsprop": Kept(1, 14.0, temporaries=True),
    "adafactor": Kept(0, 17.0),
    "muon": Kept(2, 14.0, matrix_moments=1),
    "adamw_8bit": Kept(2, 7.0, 8),
    "adamw_rounded": Kept(2, 10.0, 8, torchao=True),
    "paged_adamw_8bit": Kept(2, 7.0, 8, paged=True),
    "paged_adamw_32bit": Kept(2, 10.0, 32, paged=True),
    "ademamix": Kept(3, 12.0, 32),
    "ademamix_8bit": Kept(3, 7.5, 8),
    "lion_32bit": Kept(1, 8.0, 32),
    "lion_8bit": Kept(1, 6.5, 8),
    "paged_lion_32bit": Kept(1, 8.0, 32, paged=True),
    "paged_lion_8bit": Kept(1, 6.5, 8, paged=True),
    "rmsprop_bnb": Kept(1, 8.0, 32),
    "rmsprop_bnb_8bit": Kept(1, 6.5, 8),
}


def state_tensors(name: str, one: Parameter, width: int, extra: int = 0, *, on_disk: bool = False) -> list[int]:
    """Bytes of each tensor that is kept for a weight.

    Args:
        name: The optimizer.
        one: The weight.
        width: Bytes of one of its elements.
        extra: Moments that options add, such as momentum.
        on_disk: Whether states that leave the device count too.
    """
    kept = KEPT[name]
    if name == "adafactor":
        return [(one.rows + one.columns if one.columns > 1 else one.rows) * _FP32]
    moments = kept.moments + extra
    if kept.matrix_moments is not None and hidden_matrix(one):
        moments = kept.matrix_moments
    if kept.bits == 0:
        return [one.elements * width] * moments
    paged = kept.paged and one.elements >= _PAGED_FROM and not on_disk
    wide = one.elements % STATE_BLOCK > 0 if kept.torchao else one.embedding
    if kept.bits == 32 or one.elements < FULL_STATE_BELOW or wide:
        return [] if paged else [one.elements * _FP32] * moments
    scales = [-(-one.elements // STATE_BLOCK) * _FP32] * moments
    return scales if paged else scales + [one.elements] * moments


def hidden_matrix(one: Parameter) -> bool:
    """Whether Muon takes it: a matrix that is neither embedding nor output layer."""
    return one.columns > 1 and not one.table and one.matrix
