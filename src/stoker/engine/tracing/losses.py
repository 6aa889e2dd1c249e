"""The ways from hidden states to a loss that differ in memory."""

from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from stoker.engine import fused_loss, models
from stoker.estimate.step import Step

_CHUNKS = 8
"""As torchtune's `CEWithChunkedOutputLoss`."""


def prepare(step: Step, model: Any, labels: torch.Tensor) -> None:
    """Make the output layer return the loss itself, if it is computed without whole logits."""
    output = model.get_output_embeddings()
    shifted = _shifted(labels)
    if step.loss == "chunked":
        output.forward = lambda hidden: _chunked(hidden, output, shifted)
    elif step.loss == "fused":
        fused = fused_loss.FusedLoss(output, step.shape.family)
        output.forward, models.without_adapter(model).loss_function = fused.keep, fused
    elif step.loss == "liger":
        output.forward = lambda hidden: _Liger.apply(hidden.reshape(-1, hidden.shape[-1]), output.weight)


def loss(step: Step, model: Any, inputs: dict[str, Any], labels: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """The model's loss over a micro batch, and its outputs."""
    if step.loss == "fused" or (step.loss == "logits_fp32" and not step.foreign.shifted_logits):
        outputs = model(**inputs, labels=labels)
        return outputs.loss, outputs
    outputs = model(**inputs)
    if step.loss in ("chunked", "liger"):
        return outputs.logits, None
    return _from_logits(step, outputs.logits, labels), outputs


def _from_logits(step: Step, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if step.loss == "logits_fp32":
        logits = logits.float()
    if step.foreign.shifted_logits:
        shifted = logits[..., :-1, :].contiguous()
        return functional.cross_entropy(shifted.view(-1, shifted.shape[-1]), labels[..., 1:].reshape(-1))
    return functional.cross_entropy(logits.view(-1, logits.shape[-1]), _shifted(labels))


def _shifted(labels: torch.Tensor) -> torch.Tensor:
    return functional.pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)


def _chunked(hidden: torch.Tensor, output: torch.nn.Linear, shifted: torch.Tensor) -> torch.Tensor:
    """All logits in the model's type, an eighth of them in fp32 at a time; torchtune compiles that part."""
    chunks = [functional.linear(chunk, output.weight, output.bias) for chunk in hidden.chunk(_CHUNKS, dim=1)]
    labels = shifted.view(len(hidden), -1).chunk(_CHUNKS, dim=1)
    losses = [
        checkpoint(_summed, chunk, some, use_reentrant=False, preserve_rng_state=False)
        for chunk, some in zip(chunks, labels, strict=True)
    ]
    return torch.stack(losses).sum()


def _summed(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    flat = logits.reshape(-1, logits.shape[-1]).float()
    return functional.cross_entropy(flat, labels.reshape(-1), reduction="sum")


class _Liger(torch.autograd.Function):
    """Liger's fused linear cross entropy: gradients are made in the forward pass, a few rows of logits at a time."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """liger_kernel/ops/fused_linear_cross_entropy.py, fused_linear_cross_entropy_forward."""
        tokens, width = hidden.shape
        parts = -(-weight.shape[0] // width)
        rows = 1 << (-(-tokens // parts) - 1).bit_length()
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(weight) if weight.requires_grad else None
        losses = torch.zeros(tokens, dtype=torch.float32)
        for start in range(0, tokens, rows):
            some = hidden[start : start + rows]
            logits = some @ weight.t()
            grad_hidden[start : start + rows] = logits @ weight
            if grad_weight is not None:
                grad_weight += torch.mm(logits.t(), some).to(grad_weight.dtype)
        ctx.save_for_backward(grad_hidden, grad_weight)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """The gradients are scaled in place."""
        grad_hidden, grad_weight = ctx.saved_tensors
        grad_hidden.mul_(grad)
        if grad_weight is not None:
            grad_weight.mul_(grad)
        return grad_hidden, grad_weight
