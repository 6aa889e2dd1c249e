"""One kernel of each attention implementation, forward and backward, against arithmetic in 64 bits.

`python -m stoker.engine.attention_kernels FOLDER` writes FOLDER/attention_kernels.json: by implementation, whether it
ran, how far its output and gradient are from the reference, and why it did not run.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from stoker.errors import EXIT_DONE
from stoker.rundir import files

# B batch, H heads, L length, D width of a head
SHAPE_BHLD = (1, 4, 256, 64)
_SEED = 7
_BACKENDS = {
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_math": SDPBackend.MATH,
}

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def main(folder: Path) -> int:
    """Try each implementation on this machine's first device."""
    files.write_json(folder / "attention_kernels.json", tried(device(), kernels()))
    return EXIT_DONE


def device() -> torch.device:
    """What trains here."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def kernels() -> dict[str, Attention]:
    """Every implementation that a plan may choose, by name."""
    chosen = {name: _sdpa(backend) for name, backend in _BACKENDS.items()}
    return {"eager": eager, **chosen, "flash_attention_2": _flash_attention_2}


def tried(where: torch.device, implementations: dict[str, Attention]) -> dict[str, dict[str, Any]]:
    """Each implementation in the type that training uses there: bf16 where the device has it, else fp16, else fp32."""
    dtype = _dtype(where)
    return {name: _try(kernel, where, dtype) for name, kernel in implementations.items()}


def _dtype(where: torch.device) -> torch.dtype:
    if where.type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


def _try(kernel: Attention, where: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """What it computes beside the reference, relative to the reference's largest number."""
    torch.manual_seed(_SEED)
    drawn = [torch.randn(SHAPE_BHLD) for _ in range(3)]
    try:
        found = _with_gradient(kernel, [one.to(where, dtype) for one in drawn])
    except Exception as error:  # noqa: BLE001  # another package's kernel may fail in any way
        return {"ran": False, "dtype": _name(dtype), "reason": _reason(error)}
    wanted = _with_gradient(eager, [one.to(dtype).double() for one in drawn])
    apart = (_apart(one, other) for one, other in zip(found, wanted, strict=True))
    return {"ran": True, "dtype": _name(dtype), "error": max(apart), "epsilon": torch.finfo(dtype).eps}


def _with_gradient(kernel: Attention, drawn: list[torch.Tensor]) -> list[torch.Tensor]:
    """The output, and the gradient of its sum of squares by query, key and value."""
    inputs = [one.clone().requires_grad_() for one in drawn]
    output = kernel(*inputs)
    output.square().sum().backward()
    return [output.detach(), *(one.grad for one in inputs if one.grad is not None)]


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.cpu().double() - other.cpu()).abs().max() / other.abs().max())


def eager(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Causal attention with every product written out."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(later, -torch.inf).softmax(-1) @ value


def _sdpa(backend: SDPBackend) -> Attention:
    def kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(query, key, value, is_causal=True)

    return kernel


def _flash_attention_2(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    from flash_attn import flash_attn_func

    heads_last = (one.transpose(1, 2) for one in (query, key, value))
    return flash_attn_func(*heads_last, causal=True).transpose(1, 2)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
