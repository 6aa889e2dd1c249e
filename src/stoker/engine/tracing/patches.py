"""Public names of other packages that a trace replaces, as context managers: undone when `trace()` returns.

Each says under which condition it can go; private names are in `private_names.py`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from transformers import masking_utils, modeling_utils

from stoker.engine.tracing import private_names

_FP32_ON_CUDA = (
    "layer_norm",
    "native_layer_norm",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "rsqrt",
    "reciprocal",
    "exp",
    "log",
    "logsumexp",
    "softplus",
    "rms_norm",
)
_FP32_RESULT_ON_CUDA = ("softmax.int", "log_softmax.int", "sum", "sum.dim_IntList", "cumsum")
"""Operations for which CUDA's autocast sets an fp32 result, unless the caller states a dtype."""


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace one attribute in the block."""
    with mock.patch.object(owner, name, value):
        yield


@contextmanager
def cuda_kernels(attention: Any, dropout: Any) -> Iterator[None]:
    """Attention and dropout as CUDA runs them. Remove when a fake `cuda` device works without a GPU."""
    functional = torch.nn.functional
    with (
        replaced(functional, "scaled_dot_product_attention", attention),
        replaced(functional, "dropout", dropout),
    ):
        yield


@contextmanager
def main_memory() -> Iterator[None]:
    """What transformers moves to main memory is nowhere, and new on the device when it comes back.

    Remove when a fake `cuda` device works without a GPU: a trace knows one memory.
    """
    with replaced(modeling_utils, "save_on_cpu", _Nowhere):
        yield


class _Nowhere(torch.autograd.graph.saved_tensors_hooks):
    def __init__(self, **_: Any) -> None:
        super().__init__(lambda one: (one.shape, one.dtype), lambda kept: torch.empty(kept[0], dtype=kept[1]))


@contextmanager
def cuda_autocast() -> Iterator[None]:
    """CPU autocast with CUDA's list of fp32 operations; libraries that check see CUDA's autocast enabled.

    Remove when a fake `cuda` device works without a GPU.
    """
    library = torch.library.Library("aten", "IMPL", "AutocastCPU")
    for name in _FP32_ON_CUDA:
        library.impl(name, _in_fp32(_overload(name)))
    for name in _FP32_RESULT_ON_CUDA:
        library.impl(name, _to_fp32(_overload(name)))
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before)
        private_names.destroy(library)


@contextmanager
def no_packing() -> Iterator[None]:
    """Skip the search for packed documents in fake position ids: a mask is passed explicitly where needed.

    Remove when transformers' `find_packed_sequence_indices` finds none in fake tensors, instead of making a mask.
    """
    with replaced(masking_utils, "find_packed_sequence_indices", lambda positions: None):  # noqa: ARG005
        yield


@contextmanager
def resizing(seen: Callable[[torch.UntypedStorage], None]) -> Iterator[None]:
    """Report resized storages: FSDP2 frees and allocates memory that way, invisible to a dispatch mode.

    Remove when torch shows `UntypedStorage.resize_` to dispatch modes.
    """
    resize = torch.UntypedStorage.resize_

    def reported(storage: torch.UntypedStorage, size: int) -> Any:
        result = resize(storage, size)
        seen(storage)
        return result

    with replaced(torch.UntypedStorage, "resize_", reported):
        yield


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _in_fp32(operation: Any) -> Any:
    def cast(value: Any) -> Any:
        lower = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
        return value.float() if lower else value

    def run(*args: Any, **kwargs: Any) -> Any:
        with private_names.without_autocast():
            return operation(*map(cast, args), **kwargs)

    return run


def _to_fp32(operation: Any) -> Any:
    def run(value: torch.Tensor, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
        *args_left, said = (*args, dtype)
        if args_left and isinstance(args_left[-1], torch.dtype):
            said = args_left.pop()
        if said is None and value.dtype in (torch.float16, torch.bfloat16):
            said = torch.float32
        with private_names.without_autocast():
            return operation(value, *args_left, dtype=said, **kwargs)

    return run
