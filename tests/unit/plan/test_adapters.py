"""Trained weights of an adapter: counted without torch, equal to what PEFT makes."""

from typing import Any

import pytest

from stoker.estimate import memory
from stoker.estimate.step import Adapter
from stoker.facts import shapes
from stoker.facts.shapes import ModelShape

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 101,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "gemma2": {"head_dim": 32},
    "gemma3_text": {"head_dim": 32},
    "phi": {"num_key_value_heads": 4},
    "phi3": {"pad_token_id": 0},
    "glm": {"head_dim": 16, "pad_token_id": 0},
    "gpt_neox": {"num_key_value_heads": 4},
    "olmo2": {},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32},
}


def adapter(*targets: str, rank: int = 4) -> Adapter:
    return Adapter(rank=rank, targets=targets)


def llama() -> ModelShape:
    shape = shapes.from_config({"model_type": "llama", **SIZES})
    assert shape is not None
    return shape


def test_a_small_llama_by_hand() -> None:
    query, key, inner = 64 + 64, 64 + 32, 64 + 96
    assert memory.trainable_parameters(llama(), adapter()) == 2 * 4 * (2 * query + 2 * key + 3 * inner)
    assert memory.trainable_parameters(llama(), adapter("q_proj", "v_proj")) == 2 * 4 * (query + key)
    assert memory.trainable_parameters(llama(), adapter(rank=8)) == 2 * memory.trainable_parameters(llama(), adapter())


def test_full_tuning_trains_every_weight() -> None:
    assert memory.trainable_parameters(llama(), None) == llama().parameters()


@pytest.mark.engine
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_count_equals_peft_s(family: str) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"vocab_size": 101} if family == "gpt2" else SIZES
    config = AutoConfig.for_model(family, **{**sizes, **FAMILIES[family]})
    shape = shapes.from_config(config.to_dict())
    assert shape is not None
    some = memory.linear_layers(shape)[0].name
    for targets in ((), (some,)):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
            adapted = get_peft_model(
                model, LoraConfig(r=4, target_modules=list(targets) or "all-linear", task_type="CAUSAL_LM")
            )
        made = sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
        assert memory.trainable_parameters(shape, adapter(*targets)) == made > 0
