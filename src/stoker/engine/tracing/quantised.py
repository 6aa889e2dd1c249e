"""A linear layer in 4 bits with the tensors of bitsandbytes 0.50's `Linear4bit`, which cannot be built from fake ones.

PEFT takes it for the real one and wraps it with its own 4-bit layer. The weights' values do not exist; what is kept,
saved and made on the way is the same as on CUDA (`backends/cuda/ops.py`, `autograd/_functions.py`). Other quantised
forms are traced as if they were unpacked in the same way.
"""

from typing import Any

import bitsandbytes
import torch

from stoker.engine.tracing.dtypes import DTYPES
from stoker.estimate.step import Step

_BLOCK = 64
_NESTED_BLOCK = 256


class FakeLinear4bit(bitsandbytes.nn.Linear4bit):
    """A frozen linear layer whose weights are packed, two in a byte."""

    def __init__(self, linear: torch.nn.Linear, step: Step) -> None:
        torch.nn.Module.__init__(self)
        compute, double = DTYPES[step.compute], step.weights == "nf4_double"
        self.keeps_input = step.foreign.frozen_inputs
        rows, columns = linear.weight.shape
        transposed = type(linear).__name__ == "Conv1D"
        self.out_features, self.in_features = (columns, rows) if transposed else (rows, columns)
        bias = linear.bias
        self.bias = None if bias is None else torch.nn.Parameter(bias.detach().to(compute), requires_grad=False)
        self.compute_dtype = compute
        elements = linear.weight.numel()
        # Under FSDP the bytes are held as floats, which every version of it cuts (ADR 0011).
        stored = compute if step.strategy == "fsdp2" else torch.uint8
        per_byte = 1 if step.weights == "int8" else 2
        num_stored = -(-elements // (per_byte * stored.itemsize))
        packed = torch.nn.Parameter(torch.empty(num_stored, 1, dtype=stored), requires_grad=False)
        packed.compress_statistics, packed.quant_type = double, "nf4"  # type: ignore[attr-defined]  # as Params4bit
        self.weight = packed
        blocks = self.out_features if step.weights == "int8" else -(-elements // _BLOCK)
        self.absmax = torch.empty(blocks, dtype=torch.uint8 if double else torch.float32)
        self.code = torch.empty(16)
        self.nested = [torch.empty(-(-blocks // _NESTED_BLOCK)), torch.empty(256), torch.empty(())] if double else []

    def held(self) -> list[torch.Tensor]:
        """Tensors beside the parameters."""
        return [self.absmax, self.code, *self.nested]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As `Linear4bit.forward`."""
        given = x.dtype
        x = x.to(self.compute_dtype)
        bias = None if self.bias is None else self.bias.to(self.compute_dtype)
        if not (torch.is_grad_enabled() and x.requires_grad):
            return torch.nn.functional.linear(x, _unpacked(self, x.dtype), bias).to(given)
        made: torch.Tensor = _MatMul4Bit.apply(x, self, bias)
        return made.to(given)


class _MatMul4Bit(torch.autograd.Function):
    """Keeps the packed weight only; bitsandbytes before 0.43 kept the input too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: FakeLinear4bit, bias: torch.Tensor | None) -> torch.Tensor:
        """Unpack, multiply, drop."""
        ctx.layer = layer
        ctx.save_for_backward(*([x] if layer.keeps_input else []))
        with _no_autocast():
            return torch.nn.functional.linear(x, _unpacked(layer, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Unpack once more."""
        return torch.matmul(grad, _unpacked(ctx.layer, grad.dtype)), None, None


def _no_autocast() -> Any:
    return torch.autocast("cpu", enabled=False)


def _unpacked(layer: FakeLinear4bit, dtype: torch.dtype) -> torch.Tensor:
    """The weight in `dtype`, with what is made to get there."""
    scales = layer.absmax
    if layer.nested:
        scales = torch.empty_like(layer.absmax, dtype=torch.float32)
        scales = scales + layer.nested[2]
    weight = torch.empty(layer.out_features, layer.in_features, dtype=dtype)
    del scales
    return weight
