"""What reaches an output of the model at hand: other documents of its row, or what follows it in its own.

Attention keeps packed documents apart by their position ids; recurrent layers (linear attention, Mamba, short
convolutions) carry a state from one document to the next unless they are told where it ends. Encoders, and decoders
that their configuration makes encoders, see what they are to predict. So the model is asked, not a table.
"""

from typing import Any

import torch

_TOKENS = 12
"""Of each document: longer than the kernel of any short convolution."""
_CUT = 7
"""No multiple of the size of blocks that a model may read at once."""


def leaks(model: Any, vocab: int) -> bool:
    """Whether anything of a document reaches the one behind it in the same row."""
    return _reaches(model, vocab, slice(0, _TOKENS), slice(_TOKENS, None), packed=True)


def looks_ahead(model: Any, vocab: int, *, packed: bool) -> bool:
    """Whether anything of a document reaches a position before it; `packed`: rows have position ids."""
    return _reaches(model, vocab, slice(_CUT, _TOKENS), slice(0, _CUT), packed=packed)


def _reaches(model: Any, vocab: int, given: slice, asked: slice, *, packed: bool) -> bool:
    """Whether outputs depend on inputs, both by their positions in a row of two documents, or of one.

    The outputs have no gradient with respect to the embeddings where they do not: exactly zero in any precision, so
    that no tolerance is needed.
    """
    device = next(model.parameters()).device
    positions = torch.arange(_TOKENS, device=device).repeat(2 if packed else 1)[None]
    ids = (torch.arange(positions.numel(), device=device) * 7 + 3).remainder(vocab)[None]
    row = {"input_ids": ids, "position_ids": positions} if packed else {"input_ids": ids}
    seen: list[torch.Tensor] = []

    def keep(*called: Any) -> torch.Tensor:
        *_, output = called
        seen.append(output.detach().requires_grad_())
        return seen[-1]

    hook = model.get_input_embeddings().register_forward_hook(keep)
    try:
        with torch.enable_grad():
            logits = model(**row, use_cache=False).logits
    finally:
        hook.remove()
    # Weighted: hidden states, which the fused loss returns here, have by their norm the same sum of squares.
    weights = torch.linspace(1, 2, logits.shape[-1], device=logits.device)
    (gradient,) = torch.autograd.grad((logits.float() * weights)[:, asked].sum(), seen[:1])
    return bool(gradient[:, given].any())
