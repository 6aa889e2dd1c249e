"""Which kernel attention runs by the name it is asked for: the one mapping of plans and of published measurements."""

from stoker.estimate.step import Attention

KNOWN = ("eager", "sdpa", "flash_attention_2", "efficient", "native")
"""transformers' names, torch's memory-efficient kernel (as fast as the first flash attention), and kernels written
for the card: cuDNN's, flash attention 3."""
_FLASH_CAPABILITY = 8.0


def kernel(name: str, capability: float, compute: str, *, masked: bool) -> Attention:
    """The kernel that runs.

    Args:
        name: One of `KNOWN`.
        capability: The card's compute capability; 0 where it is no NVIDIA card.
        compute: Arithmetic of the products.
        masked: Whether attention gets a mask tensor, which torch's flash kernel does not take.
    """
    assert name in KNOWN, name
    if name == "eager":
        return "eager"
    able = capability >= _FLASH_CAPABILITY and compute != "fp32"
    if name == "native":
        return "flash"
    if name == "efficient" or not able or (name == "sdpa" and masked):
        return "efficient"
    return "flash_2"
