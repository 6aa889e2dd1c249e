"""Every private name of torch and transformers that a trace uses, each with the condition under which it goes.

Nothing else in this folder uses one (`tests/engine/test_private_names.py`). A trace needs sizes and lifetimes of
storages, not the results of kernels; torch has no public interface to them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

__all__ = ["FakeStore", "FakeTensorMode", "TorchDispatchMode"]
# FakeTensorMode: remove when torch exports it publicly, as its documentation of fake tensors announces.
# TorchDispatchMode: remove when torch exports it publicly.
# FakeStore: remove when `init_process_group("fake")` needs no store of torch's own tests.

_aten = torch.ops.aten

# Operations of attention by kernel: remove when `scaled_dot_product_attention` on a fake `cuda` device chooses them.
FLASH_ATTENTION = _aten._scaled_dot_product_flash_attention
FLASH_ATTENTION_BACKWARD = _aten._scaled_dot_product_flash_attention_backward
FLASH_ATTENTION_ON_CPU = _aten._scaled_dot_product_flash_attention_for_cpu
EFFICIENT_ATTENTION = _aten._scaled_dot_product_efficient_attention
EFFICIENT_ATTENTION_BACKWARD = _aten._scaled_dot_product_efficient_attention_backward
CAST = _aten._to_copy.default
"""What `Tensor.to` becomes below autograd. Remove when a dispatch mode sees `aten.to`."""


def storage_key(storage: torch.UntypedStorage) -> int:
    """The identity of a storage, whichever Python object stands for it.

    Remove when fake storages have distinct `data_ptr()`s.
    """
    return storage._cdata


def is_view(tensor: torch.Tensor) -> bool:
    """Whether a tensor was made from another one's storage. Remove when `Tensor.is_view` is public."""
    return tensor._is_view()


def multiply_in_place(tensors: list[torch.Tensor], factor: torch.Tensor) -> None:
    """As `clip_grads_with_norm_` does. Remove when torch has public foreach operations."""
    torch._foreach_mul_(tensors, factor)


def without_autocast() -> Any:
    """A context in which CPU autocast does not see operations.

    Remove when `torch.autocast(enabled=False)` can be entered inside an implementation for its own dispatch key.
    """
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


def destroy(library: torch.library.Library) -> None:
    """Unregister its implementations. Remove when `Library` is a public context manager."""
    library._destroy()


def forget_shardings() -> None:
    """Clear DTensor's cache of sharding decisions, which holds the mesh of a destroyed process group.

    Remove when `destroy_process_group` clears it.
    """
    _clear_sharding_prop_cache()


def supports_sdpa(config: Any) -> bool:
    """Whether the model class of a configuration runs torch's attention kernels.

    Remove when transformers says so without building the model.
    """
    return bool(AutoModelForCausalLM._model_mapping[type(config)]._supports_sdpa)


@contextmanager
def convertible_modules() -> Iterator[None]:
    """`Module.to` on fake parameters, which torch 2.13 cannot swap. Remove when it can."""

    def converted(module: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:  # noqa: FBT001
        for one in module.modules() if recurse else (module,):
            for name, parameter in one._parameters.items():
                if parameter is not None:
                    with torch.no_grad():
                        changed = fn(parameter)
                    if changed is not parameter:
                        one._parameters[name] = torch.nn.Parameter(changed, parameter.requires_grad)
            for name, buffer in one._buffers.items():
                if buffer is not None:
                    one._buffers[name] = fn(buffer)
        return module

    with mock.patch.object(torch.nn.Module, "_apply", converted):
        yield


@contextmanager
def copies_of_fakes() -> Iterator[None]:
    """A deep copy of a fake tensor belongs to the same mode, not to a copy of it: PEFT copies layers it trains whole.

    Remove when torch's `FakeTensorMode` copies itself so.
    """
    with mock.patch.object(FakeTensorMode, "__deepcopy__", lambda mode, memo: mode, create=True):  # noqa: ARG005
        yield
