"""What running out of memory looks like: torch's own error, and the words of the libraries below it."""

import pytest
import torch

from stoker.engine import guard

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "Triton Error [CUDA]: out of memory",
        "MPS backend out of memory (MPS allocated: 17.00 GiB)",
        "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
    ],
)
def test_a_library_without_memory_is_out_of_memory(words: str) -> None:
    assert guard.is_out_of_memory(RuntimeError(words))


@pytest.mark.parametrize(
    "error", [RuntimeError("CUBLAS_STATUS_INVALID_VALUE"), ValueError("out of memory"), RuntimeError("size mismatch")]
)
def test_other_errors_are_not(error: Exception) -> None:
    assert not guard.is_out_of_memory(error)


def test_torchs_own_error_is() -> None:
    assert guard.is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
