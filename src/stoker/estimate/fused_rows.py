"""How many rows of logits the fused loss computes at once: by the vocabulary alone, so no card decides the bits."""

_BYTES = 2**27
"""What the fp32 logits of these rows may take; their softmax and gradients take three times more."""


def fused_rows(vocab: int) -> int:
    """A power of two."""
    return 1 << (max(1, _BYTES // (4 * vocab)).bit_length() - 1)
