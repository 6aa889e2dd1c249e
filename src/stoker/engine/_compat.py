"""Workarounds for how other packages behave, each with the condition under which it goes. Nothing else is patched."""

import sys
from types import SimpleNamespace
from typing import Any


def hide_torch() -> None:
    """Make this process believe that torch is not installed; only for programs that never compute with it.

    transformers 5.22 imports torch to open a tokenizer when it is there: 3 of `prepare`'s 5 start-up seconds.
    Remove when `AutoTokenizer` no longer does.
    """
    sys.modules["torch"] = None  # type: ignore[assignment]  # Python's own way to say "not importable"


def repeat_keys() -> None:
    """Give SDPA keys and values repeated for each head, instead of asking it to group heads.

    transformers 5.22 passes `enable_gqa`, which torch 2.13's memory-efficient kernel refuses; cards below compute
    capability 8.0, and fp32 on every card, have no other fast one and fall back to the kernel that holds all pairs of
    tokens.
    Remove when either changes (transformers#48633, pytorch#191085).
    """
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

    def repeated(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        groups = query.shape[1] // key.shape[1]
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
        # Of the module it reads only whether it is causal, and how many heads share a key.
        module = SimpleNamespace(is_causal=getattr(module, "is_causal", True))
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)

    AttentionInterface.register("sdpa", repeated)
