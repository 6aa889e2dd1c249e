"""FlashAttention, simulated: what its functions are given, computed by SDPA."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import modeling_flash_attention_utils as flash


class SimulatedFlash:
    """Stands for flash_attn's functions; keeps what the variable-length one is given."""

    def __init__(self) -> None:
        self.given: list[dict[str, Any]] = []

    def fixed(self, query: Any, key: Any, value: Any, causal: bool = False, softmax_scale: Any = None) -> Any:
        heads = [one.transpose(1, 2) for one in (query, key, value)]
        options = {"is_causal": causal, "scale": softmax_scale, "enable_gqa": True}
        return torch.nn.functional.scaled_dot_product_attention(*heads, **options).transpose(1, 2)

    def variable(
        self,
        query: Any,
        key: Any,
        value: Any,
        cu_seqlens_q: Any = None,
        cu_seqlens_k: Any = None,
        max_seqlen_q: Any = None,
        max_seqlen_k: Any = None,
        **options: Any,
    ) -> Any:
        self.given.append(
            {
                "cu_seqlens_q": cu_seqlens_q.tolist(),
                "cu_seqlens_k": cu_seqlens_k.tolist(),
                "types": (cu_seqlens_q.dtype, cu_seqlens_k.dtype),
                "max_seqlen": (int(max_seqlen_q), int(max_seqlen_k)),
            }
        )
        sizes = np.diff(self.given[-1]["cu_seqlens_q"]).tolist()
        parts = zip(*(one[None].split(sizes, 1) for one in (query, key, value)), strict=True)
        return torch.cat([self.fixed(*part, **options) for part in parts], 1)[0]


def use(monkeypatch: pytest.MonkeyPatch) -> SimulatedFlash:
    """Have transformers take these functions for flash_attn's."""
    functions = SimulatedFlash()
    chosen = (functions.fixed, functions.variable, None, None, None)
    monkeypatch.setattr(flash, "_lazy_imports", lambda *_, **__: chosen)
    monkeypatch.setattr(flash, "_loaded_implementation", None)
    return functions


def on(model: Any) -> Any:
    """A model with this attention; `set_attn_implementation` would ask for the package."""
    for part in model.modules():
        if hasattr(part, "config"):
            part.config._attn_implementation_internal = "flash_attention_2"
    return model
