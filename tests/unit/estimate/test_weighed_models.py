"""Memory and work of models that are known by their tensors."""

import dataclasses

import pytest

from stoker.estimate import layers, memory, operations, ranges
from stoker.estimate.step import Adapter, Step
from stoker.facts import cards, model_parts, shapes
from stoker.facts.model_parts import TEXT
from stoker.facts.shapes import ModelShape

GIB = 2**30
_ALL = Adapter(rank=16)


def _step(model: str, **words: object) -> Step:
    options = {"micro": 1, "length": 1024, "autocast": True, "recompute": "full", **words}
    return Step(shape=shapes.shipped()[model], **options)  # type: ignore[arg-type]


def test_qlora_of_mixtral_holds_its_experts_in_4_bits_and_unpacks_a_block_of_them() -> None:
    step = _step("mistralai/Mixtral-8x7B-v0.1", adapter=_ALL, weights="nf4_double")
    block = 8 * 3 * 4096 * 14336
    packed = memory.whole_weight_bytes(step)
    assert 24 < packed / GIB < 27
    unpacked = layers.expert_copies(step.shape, _ALL, packed=True)
    largest = block * 2 // 3
    assert unpacked == (block + largest, 32 * block + largest)
    assert memory.estimate(step).allocated > packed + 2 * (block + largest)


def test_experts_without_an_adapter_are_unpacked_all_the_same() -> None:
    shape, some = shapes.shipped()["mistralai/Mixtral-8x7B-v0.1"], Adapter(rank=16, targets=("q_proj",))
    assert layers.expert_copies(shape, some, packed=False) == (0, 0)
    assert layers.expert_copies(shape, some, packed=True) == layers.expert_copies(shape, _ALL, packed=True)


def test_trained_tensors_add_up_to_the_model() -> None:
    for model, shape in shapes.shipped().items():
        if shape.parts:
            full = layers.trained(shape, None)
            towers = sum(one.elements * one.count for one in shape.parts.groups if one.tower != TEXT)
            trained = layers.trainable_parameters(shape, None)
            assert sum(one.elements * one.count for one in full) == trained == shape.parameters() - towers, model
            low = layers.trained(shape, _ALL)
            assert sum(one.elements * one.count for one in low) == shape.parts.adapter_parameters(16), model
            assert layers.trainable_parameters(shape, _ALL) == shape.parts.adapter_parameters(16), model


@pytest.mark.parametrize(
    ("model", "total", "active"),
    [
        ("mistralai/Mixtral-8x7B-v0.1", 46.70, 12.75),
        ("Qwen/Qwen3-30B-A3B", 30.53, 3.04),
        ("deepseek-ai/DeepSeek-V3", 671.0, 36.6),
        ("zai-org/GLM-4.5-Air", 106.9, 12.8),
    ],
)
def test_sparse_models_have_their_published_weights(model: str, total: float, active: float) -> None:
    shape = shapes.shipped()[model]
    assert shape.parameters() / 1e9 == pytest.approx(total, rel=0.005)
    assert shape.active_parameters() / 1e9 == pytest.approx(active, rel=0.05)


def test_a_token_is_multiplied_with_the_experts_it_uses() -> None:
    step = _step("Qwen/Qwen3-30B-A3B", adapter=_ALL, weights="bf16")
    flops = sum(one.flops for one in operations.products(step) if one.rows < step.tokens)
    shape = step.shape
    used = shape.layers * shape.experts_per_token * 3 * shape.hidden * shape.intermediate
    assert flops == pytest.approx(2 * step.tokens * used)


def test_a_block_of_a_record_holds_its_share_of_the_tensors() -> None:
    shape = shapes.shipped()["mistralai/Mixtral-8x7B-v0.1"]
    shallow = shape.shallow(2)
    assert shallow.layers == 2
    outer = 2 * shape.vocab * shape.hidden + shape.hidden
    assert shallow.parameters() - outer == (shape.parameters() - outer) * 2 // 32


def test_a_weighed_model_has_the_assumed_interval() -> None:
    step = _step("mistralai/Mixtral-8x7B-v0.1", adapter=_ALL, weights="nf4_double")
    card = cards.find("H100")
    assert ranges.of("memory", step, card).n == 0
    dense = dataclasses.replace(step, shape=shapes.shipped()["Qwen/Qwen3-8B"])
    assert ranges.of("memory", dense, card).n > 0


def test_a_record_is_the_same_after_it_was_stored() -> None:
    shape: ModelShape = shapes.shipped()["google/gemma-3-4b-it"]
    assert shape.parts is not None
    assert model_parts.from_json(model_parts.to_json(shape.parts)) == shape.parts
