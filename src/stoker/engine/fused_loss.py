"""The loss without the logits: output layer and cross entropy together, a few rows of logits at a time.

A model that uses it returns hidden states where it returned logits. Gradients are computed in the forward pass, by the
kernels of the plain loss, so that only rounding differs. torch's own `linear_cross_entropy` (2.13) rounds the loss to
the type of its inputs: three digits of it in bf16.
"""

from typing import Any

import torch
from torch.nn import functional

from stoker.engine import models
from stoker.errors import StokerError
from stoker.estimate.fused_rows import fused_rows

_IGNORED = -100
_AGREES = 1e-2
"""Of one loss in 16 bits; a class that does more than this to its logits is off by far more."""


def use(model: Any, attention: str) -> None:
    """Make a model compute its loss so.

    Raises:
        StokerError: STK436, if its output layer is not a plain one, or its class changes logits before the loss.
    """
    language = models.without_adapter(model)
    head = language.get_output_embeddings()
    if type(head) is not torch.nn.Linear or head.bias is not None:
        raise StokerError("STK436", model=type(language).__name__)
    plain = models.small_loss(model, attention)
    fused = FusedLoss(head, type(language).__name__)
    head.forward = fused.keep
    language.loss_function = fused
    if not torch.allclose(models.small_loss(model, attention), plain, rtol=_AGREES):
        raise StokerError("STK436", model=type(language).__name__)


class FusedLoss:
    """Stands for the output layer's forward pass and for the loss function of a model in transformers."""

    def __init__(self, head: torch.nn.Linear, model: str) -> None:
        self._head, self._model = head, model
        self._hidden: torch.Tensor | None = None

    def keep(self, hidden: torch.Tensor) -> torch.Tensor:
        """The output layer: nothing is computed yet."""
        self._hidden = hidden
        return hidden

    def __call__(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        vocab_size: int,  # noqa: ARG002  # some classes give it by its place
        num_items_in_batch: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """The loss, with the words of transformers' `ForCausalLMLoss`: each position predicts the next token."""
        hidden, self._hidden = self._hidden, None
        if logits is not hidden:  # the class scaled, capped or cut them
            raise StokerError("STK436", model=self._model)
        shifted = functional.pad(labels, (0, 1), value=_IGNORED)[..., 1:].reshape(-1)
        count = (shifted != _IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        return summed(hidden.reshape(-1, hidden.shape[-1]), self._head.weight, shifted) / count


def summed(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The sum of the token losses, in fp32: hidden states of T positions, the output layer's weight, T labels."""
    device = hidden.device.type
    compute = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    if not torch.is_grad_enabled():
        hidden, weight = hidden.detach(), weight.detach()
    with torch.autocast(device, enabled=False):
        total: torch.Tensor = _InRows.apply(hidden.to(compute), weight, labels)
    return total


class _InRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Of `fused_rows` positions at a time: logits, loss, gradients."""
        to_hidden, to_weight, _ = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden) if to_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if to_weight else None
        lowered, rows = weight.to(hidden.dtype), fused_rows(len(weight))
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            logits = functional.linear(hidden[part], lowered).float()
            if not (to_hidden or to_weight):
                total += functional.cross_entropy(logits, labels[part], reduction="sum")
                continue
            with torch.enable_grad():
                loss = functional.cross_entropy(logits.requires_grad_(), labels[part], reduction="sum")
            total += loss.detach()
            grad = torch.autograd.grad(loss, logits)[0].to(hidden.dtype)
            del logits, loss
            if grad_hidden is not None:
                torch.mm(grad, lowered, out=grad_hidden[part])
            if grad_weight is not None:
                grad_weight += grad.t() @ hidden[part]
            del grad
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.products, ctx.weight_type = hidden.dtype, weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """The gradients of the sum, times its own: a loss is a sum over a number, times a scale in fp16.

        The weight's is rounded once, to the type of the products, as the plain loss leaves it: it has the same bits
        whether the weight comes in fp32 or, gathered from shards, in that type.
        """
        grad_hidden, grad_weight = ctx.saved_tensors
        if grad_weight is not None:
            lowered = grad_weight.mul_(grads[0]).to(ctx.products)
            grad_weight = lowered if ctx.weight_type == ctx.products else grad_weight.copy_(lowered)
        if grad_hidden is not None:
            grad_hidden = (grad_hidden.float() * grads[0]).to(grad_hidden.dtype)
        return grad_hidden, grad_weight, None
