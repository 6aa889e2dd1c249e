"""Trained weights of an adapter: counted without torch, by hand (tests/engine/test_counts.py asks PEFT)."""

import pytest
from plan_case import SEVEN, plan

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


@pytest.mark.parametrize("name", ["embed_tokens", "model.embed_tokens", "lm_head"])
def test_a_plan_counts_a_layer_that_is_trained_whole(name: str) -> None:
    """In fp32: weights, gradients and AdamW's two moments."""
    plain, whole = (
        plan(
            f"tune: {{method: lora}}\nwhere: {{micro: 1}}\nnative: {{lora: {{modules_to_save: [{names}]}}}}",
            model=SEVEN,
        )
        for names in ("", name)
    )
    shape = shapes.shipped()[SEVEN]
    table = shape.vocab * shape.hidden
    assert whole.model.trainable_parameters - plain.model.trainable_parameters == table
    assert whole.memory.optimizer_bytes - plain.memory.optimizer_bytes == pytest.approx(8 * table, rel=1e-3)
    assert whole.memory.parts["weights"] - plain.memory.parts["weights"] == pytest.approx(4 * table, rel=1e-3)
    assert whole.memory.peak_allocated_bytes - plain.memory.peak_allocated_bytes >= 16 * table


def test_full_tuning_trains_every_weight() -> None:
    assert memory.trainable_parameters(llama(), None) == llama().parameters()
