"""Where torch has no flash kernel, attention gets keys repeated for each head: the same numbers, in less memory."""

from collections.abc import Iterator
from typing import Any

import pytest
import tiny_families
import torch
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from stoker.engine import _compat

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """The options of every call of torch's attention; transformers' own function is back afterwards."""
    seen: list[dict[str, Any]] = []
    plain = torch.nn.functional.scaled_dot_product_attention

    def attention(*arguments: Any, **options: Any) -> Any:
        seen.append({**options, "heads": [one.shape[1] for one in arguments[:3]]})
        return plain(*arguments, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    yield seen
    AttentionInterface.register("sdpa", sdpa_attention_forward)


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
@pytest.mark.parametrize("packed", [False, True])
def test_logits_are_those_of_grouped_heads(asked: list[dict[str, Any]], family: str, packed: bool) -> None:
    torch.manual_seed(0)
    config = tiny_families.config(family, attn_implementation="sdpa")
    model = AutoModelForCausalLM.from_config(config).eval()
    ids = torch.arange(3, 27)[None]
    positions = torch.arange(12).repeat(2)[None] if packed else None
    grouped = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    heads = {tuple(call["heads"]) for call in asked}
    asked.clear()
    _compat.repeat_keys()
    torch.testing.assert_close(model(input_ids=ids, position_ids=positions, use_cache=False).logits, grouped)
    assert asked
    assert all(call["heads"] == [4, 4, 4] and not call.get("enable_gqa") for call in asked)
    assert packed or heads == {(4, 2, 2)}, "without it heads are grouped"
