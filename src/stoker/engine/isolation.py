"""Whether documents that are packed into one row see each other, as the model at hand computes it.

Attention keeps them apart by their position ids; recurrent layers (linear attention, Mamba, short convolutions) carry a
state from one document to the next unless they are told where it ends. So the model is asked, not a table.
"""

from typing import Any

import torch

_TOKENS = 12
"""Of each document: longer than the kernel of any short convolution."""


def leaks(model: Any, vocab: int) -> bool:
    """Whether anything of a document reaches the one behind it in the same row.

    The second document's logits have no gradient with respect to the first one's embeddings where nothing does: exactly
    zero in any precision, so that no tolerance is needed.
    """
    device = next(model.parameters()).device
    ids = (torch.arange(2 * _TOKENS, device=device) * 7 + 3).remainder(vocab)[None]
    positions = torch.arange(_TOKENS, device=device).repeat(2)[None]
    seen: list[torch.Tensor] = []

    def keep(*called: Any) -> torch.Tensor:
        *_, output = called
        seen.append(output.detach().requires_grad_())
        return seen[-1]

    hook = model.get_input_embeddings().register_forward_hook(keep)
    try:
        with torch.enable_grad():
            logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    finally:
        hook.remove()
    (gradient,) = torch.autograd.grad(logits[:, _TOKENS:].float().square().sum(), seen[:1])
    return bool(gradient[:, :_TOKENS].any())
