"""Our count of weights against transformers' own models, built without memory on the `meta` device."""

from pathlib import Path
from typing import Any

import pytest

from stoker.config.run import Shape
from stoker.facts import shapes

pytestmark = pytest.mark.filterwarnings("default")

_SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 300,
}
_GROUPED = {**_SMALL, "num_key_value_heads": 2}
_CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", _GROUPED),
    ("llama", {**_GROUPED, "attention_bias": True, "mlp_bias": True}),
    ("llama", {**_GROUPED, "tie_word_embeddings": True, "head_dim": 32}),
    ("mistral", _GROUPED),
    ("mixtral", {**_GROUPED, "num_local_experts": 4}),
    ("qwen2", _GROUPED),
    ("qwen3", _GROUPED),
    ("qwen3_moe", {**_GROUPED, "num_experts": 4, "moe_intermediate_size": 32}),
    ("gemma", _GROUPED),
    ("gemma2", _GROUPED),
    ("gemma3_text", _GROUPED),
    ("phi", _SMALL),
    ("phi3", {**_GROUPED, "pad_token_id": 0}),
    ("gpt2", {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128, "vocab_size": 300}),
    ("gpt2", {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_inner": 96, "vocab_size": 300}),
    ("gpt_neox", _SMALL),
    ("gpt_oss", {**_GROUPED, "num_local_experts": 4, "head_dim": 16}),
    ("olmo", _GROUPED),
    ("olmo2", _GROUPED),
    ("stablelm", _GROUPED),
    ("glm", {**_GROUPED, "head_dim": 16, "pad_token_id": 0}),
]


_HEADS = ("qwen3", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "seed_oss", "ernie4_5", "ministral3", "llama")


@pytest.mark.parametrize("family", _HEADS)
def test_a_head_that_is_not_stated_is_as_wide_as_in_transformers(family: str) -> None:
    from transformers import AutoConfig

    built = AutoConfig.for_model(family, **_GROUPED)
    shape = shapes.from_config({"model_type": family, **_GROUPED})
    assert shape is not None
    assert shape.head_dim == built.head_dim


def _count(config: Any) -> int:
    import torch
    import transformers

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("family", "sizes"), _CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_weights_equal_those_of_the_model_transformers_builds(family: str, sizes: dict[str, Any]) -> None:
    import transformers

    config = transformers.AutoConfig.for_model(family, **sizes)
    shape = shapes.from_config(config.to_dict())
    assert shape is not None
    assert shape.family == family
    assert shape.parameters() == _count(config)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_run_file_shape_equals_the_model_built_from_it(family: str) -> None:
    import transformers

    asked = Shape(shape=family, layers=2, width=128, heads=2, kv_heads=1, vocab=500)
    shape = shapes.resolve(asked, Path()).shape
    config = transformers.AutoConfig.for_model(
        family,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocab,
        tie_word_embeddings=shape.tie_embeddings,
    )
    assert shape.parameters() == _count(config)
