"""What reaches an output of the model at hand: other documents of its row, or what follows it in its own.

Attention keeps packed documents apart by their position ids; recurrent layers (linear attention, Mamba, short
convolutions) carry a state from one document to the next unless they are told where it ends. Encoders, and decoders
that their configuration makes encoders, see what they are to predict. So the model is asked, not a table.
"""

from collections.abc import Callable
from typing import Any

import torch

from stoker.engine.dataset import MicroBatch, document_ends

_TOKENS = 12
"""Of each document: longer than the kernel of any short convolution."""
_CUT = 7
"""No multiple of the size of blocks that a model may read at once."""


Told = Callable[[MicroBatch], dict[str, Any]]
"""Makes of a micro batch what the model is given when it trains."""


def leaks(model: Any, vocab: int, told: Told, *, flat: bool) -> bool:
    """Whether anything of a document reaches the one behind it in the same row."""
    return _reaches(model, told(_row(vocab, 2, flat=flat)), slice(0, _TOKENS), slice(_TOKENS, None))


def looks_ahead(model: Any, vocab: int, told: Told, *, packed: bool, flat: bool) -> bool:
    """Whether anything of a document reaches a position before it; `packed`: rows have position ids."""
    row = told(_row(vocab, 2 if packed else 1, flat=flat))
    return _reaches(model, row, slice(_CUT, _TOKENS), slice(0, _CUT))


def _row(vocab: int, documents: int, *, flat: bool) -> MicroBatch:
    """A row as the collator makes them; `flat`: with the ends of its documents."""
    positions = torch.arange(_TOKENS).repeat(documents)[None]
    row: MicroBatch = {"input_ids": (torch.arange(positions.numel()) * 7 + 3).remainder(vocab)[None]}
    if documents > 1:
        row["position_ids"] = positions
    if flat:
        row |= document_ends(torch.arange(documents + 1) * _TOKENS, _TOKENS)
    return row


def _reaches(model: Any, row: dict[str, Any], given: slice, asked: slice) -> bool:
    """Whether outputs depend on inputs, both by their positions in a row.

    The outputs have no gradient with respect to the embeddings where they do not: exactly zero in any precision, so
    that no tolerance is needed.
    """
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
