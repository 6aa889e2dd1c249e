"""CUDA's attention and dropout in place of the CPU's, and kernel workspaces that no result shows.

Sizes are those of torch's own sources (aten/src/ATen/native/transformers/cuda, cuda/CUDABlas.cpp), named beside each.
"""

import math
from typing import Any

import torch

from stoker.engine.tracing.ledger import Workspace
from stoker.engine.tracing.private_names import (
    EFFICIENT_ATTENTION,
    EFFICIENT_ATTENTION_BACKWARD,
    FLASH_ATTENTION,
    FLASH_ATTENTION_BACKWARD,
)

_HALF = (torch.float16, torch.bfloat16)
_LARGEST_FLASH_HEAD = 256

CUBLAS_WORKSPACE = (4096 * 2 + 16 * 8) << 10
"""`:4096:2:16:8`, the default before Hopper; one for the forward thread, one for the backward thread."""


def attention(kind: str) -> Any:
    """`scaled_dot_product_attention` with the requested kernel, or the one CUDA would choose."""

    def choose(  # noqa: PLR0913  # torch's own signature
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,  # noqa: FBT001
        scale: float | None = None,
        enable_gqa: bool = False,  # noqa: FBT001
    ) -> torch.Tensor:
        query, key, value = (_cast(tensor) for tensor in (query, key, value))
        half = query.dtype in _HALF and query.shape[-1] <= _LARGEST_FLASH_HEAD
        if kind in ("flash", "flash_2") and half and attn_mask is None:
            return _flash(query, key, value, dropout_p, is_causal, scale)
        if enable_gqa:
            # The efficient kernel gets keys repeated for every head; without a mask transformers leaves that to torch.
            key, value = (_repeated(tensor, query.shape[1]) for tensor in (key, value))
        bias = None if attn_mask is None else _bias(attn_mask, query, key)
        padded = [_padded(tensor, 8 if half else 4) for tensor in (query, key, value)]
        scale = scale or 1 / math.sqrt(query.shape[-1])
        made = EFFICIENT_ATTENTION(*padded, bias, True, dropout_p, is_causal, scale=scale)[0]
        return made[..., : value.shape[-1]]

    return choose


def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:  # noqa: A002, ARG001, FBT001
    """CUDA's dropout saves a byte per element; the CPU's saves the scaled noise."""
    if p == 0.0 or not training:
        return input
    return torch.native_dropout(input, p, True)[0]


def _cast(tensor: torch.Tensor) -> torch.Tensor:
    if torch.is_autocast_enabled("cpu") and tensor.dtype == torch.float32:
        return tensor.to(torch.get_autocast_dtype("cpu"))
    return tensor


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    is_causal: bool,  # noqa: FBT001
    scale: float | None,
) -> torch.Tensor:
    scale = scale or 1 / math.sqrt(query.shape[-1])
    padded = [_padded(tensor, 8) for tensor in (query, key, value)]
    made = FLASH_ATTENTION(*padded, dropout_p, is_causal, scale=scale)[0]
    return made[..., : value.shape[-1]]


def _padded(tensor: torch.Tensor, multiple: int) -> torch.Tensor:
    missing = -tensor.shape[-1] % multiple
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


def _repeated(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    times = heads // tensor.shape[1]
    return tensor.repeat_interleave(times, 1) if times > 1 else tensor


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A mask in the efficient kernel's form: a number per pair, rows aligned to 16 elements (sdp_utils)."""
    if mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, torch.full((), -math.inf, dtype=query.dtype))
    length = key.shape[2]
    if length % 16:
        mask = torch.nn.functional.pad(mask, (0, -length % 16))[..., :length]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], length)


def _flash_backward(args: tuple[Any, ...], out: Any) -> list[int]:  # noqa: ARG001
    """flash_api.cpp, mha_bwd: dq_accum, softmax_d, and gradients of keys and values before heads are summed."""
    query, key = args[1], args[2]
    batch, heads, length, width = query.shape
    rows = batch * heads * (-(-length // 128) * 128)
    sizes = [rows * 4, rows * (-(-width // 32) * 32) * 4]
    if key.shape[1] != heads:
        sizes += [batch * key.shape[2] * heads * width * key.element_size()] * 2
    return sizes


def _efficient_backward(args: tuple[Any, ...], out: Any) -> list[int]:  # noqa: ARG001
    """attention_backward.cu: delta and, in half precision, the fp32 sum of the query's gradient.

    Heads wider than 128 do not fit in registers; gradients of keys and values are summed in memory too.
    """
    query, key = args[1], args[2]
    batch, heads, length, width = query.shape
    delta = batch * heads * length * 4
    if query.dtype not in _HALF:
        return [delta, batch * heads * length * width * 4]
    queries = batch * heads * (-(-length // 128) * 128) * (-(-width // 64) * 64) * 4
    keys = batch * heads * (-(-key.shape[2] // 64) * 64) * (-(-width // 64) * 64) * 4
    return [delta, queries + (2 * keys if width > 128 else 0)]


WORKSPACES: dict[Any, Workspace] = {
    FLASH_ATTENTION_BACKWARD.default: _flash_backward,
    EFFICIENT_ATTENTION_BACKWARD.default: _efficient_backward,
}
