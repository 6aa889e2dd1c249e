"""How a model is served: each choice with its reason, on the cards people have."""

import dataclasses
from typing import Any

import pytest
from plan_case import machine, processor

from stoker.artifacts import serving_choices
from stoker.artifacts.serving_choices import ServedAdapter, Serving, ServingInputs
from stoker.errors import StokerError
from stoker.facts import shapes
from stoker.facts.machine import Machine

SEVEN_B = "Qwen/Qwen2.5-7B"


def make(on: Machine, model: str = SEVEN_B, **asked: Any) -> Serving:
    shape = shapes.shipped()[model]
    return serving_choices.make_serving(
        ServingInputs(
            **{
                "name": "x",
                "shape": shape,
                "machine": on,
                "engine": "vllm",
                "dtype": "bfloat16",
                "length": 2048,
                **asked,
            }
        )
    )


def why(made: Serving, about: str) -> list[str]:
    return [reason.key for reason in made.reasons if reason.about == about]


def test_one_large_card_serves_a_7b_alone() -> None:
    made = make(machine("A100-80-SXM4"))
    assert (made.tensor_parallel, made.gpus, made.dtype) == (1, [0], "bfloat16")
    assert made.options["gpu_memory_utilization"] == 0.9
    assert "enforce_eager" not in made.options
    assert "kv_cache_memory_bytes" not in made.options


def test_a_model_takes_as_many_cards_as_it_needs_and_no_more() -> None:
    assert make(machine("RTX4090", 4)).tensor_parallel == 1
    two_cards = make(machine("T4", 4), dtype="float16")
    assert two_cards.tensor_parallel == 2
    assert two_cards.gpus == [0, 1]
    assert two_cards.options["tensor_parallel_size"] == 2
    assert why(two_cards, "tensor_parallel") == ["why.serve.parallel.fits"]


def test_what_does_not_fit_is_refused_with_the_figures() -> None:
    with pytest.raises(StokerError) as caught:
        make(machine("T4"), dtype="float16")
    assert caught.value.code == "STK624"
    assert float(caught.value.fields["needed"]) > float(caught.value.fields["available"])


def test_layers_are_only_split_evenly() -> None:
    shape = shapes.shipped()[SEVEN_B]
    assert (shape.heads, shape.kv_heads) == (28, 4)
    assert serving_choices.parallel_sizes(shape, 8) == [1, 2, 4]
    odd = dataclasses.replace(shape, heads=6, kv_heads=6, intermediate=600)
    assert serving_choices.parallel_sizes(odd, 8) == [1, 2, 3, 6]


def test_kv_heads_that_cannot_be_split_are_kept_on_each_device() -> None:
    shape = dataclasses.replace(shapes.shipped()[SEVEN_B], heads=32, kv_heads=2)
    assert serving_choices.parallel_sizes(shape, 4) == [1, 2, 4]
    assert serving_choices.cache_bytes_per_token(shape, "bfloat16", 4) == serving_choices.cache_bytes_per_token(
        shape, "bfloat16", 2
    )


def test_keys_and_values_of_a_token_are_counted_exactly() -> None:
    shape = shapes.shipped()[SEVEN_B]
    assert serving_choices.cache_bytes_per_token(shape, "bfloat16") == 2 * 28 * 4 * 128 * 2


def test_a_conversation_is_as_long_as_the_model_or_the_memory_allows() -> None:
    shape = dataclasses.replace(shapes.shipped()[SEVEN_B], context=131072)
    large = make(machine("A100-80-SXM4"), shape=shape)
    assert large.max_model_len == 131072
    assert why(large, "max_model_len") == ["why.serve.length.context"]
    small = make(machine("RTX4090"), shape=shape)
    assert 2048 <= small.max_model_len < large.max_model_len
    assert small.max_model_len % 16 == 0
    assert why(small, "max_model_len") == ["why.serve.length.memory"]
    assert small.max_model_len * serving_choices.cache_bytes_per_token(shape, "bfloat16") <= small.cache_bytes


def test_what_native_says_wins_and_is_named() -> None:
    made = make(machine("A100-80-SXM4"), native={"max_model_len": 4096, "gpu_memory_utilization": 0.5})
    assert (made.max_model_len, made.options["max_model_len"]) == (4096, 4096)
    assert made.options["gpu_memory_utilization"] == 0.5
    assert why(made, "max_model_len") == why(made, "memory") == ["why.asked"]


def test_bf16_becomes_fp16_on_a_card_without_it_and_says_so() -> None:
    made = make(machine("T4", 2))
    assert made.dtype == "float16"
    assert why(made, "dtype") == ["why.serve.dtype.old"]


def test_fp32_stays_fp32() -> None:
    assert make(machine("A100-80-SXM4"), dtype="float32").options["dtype"] == "float32"


def test_a_processor_gets_a_bounded_cache_and_no_compilation() -> None:
    made = make(processor(), length=512)
    assert made.options["enforce_eager"] is True
    assert made.options["kv_cache_memory_bytes"] == made.cache_bytes
    assert made.cache_bytes + made.weights_bytes <= (32 << 30) * 0.8
    assert made.gpus == []
    assert "gpu_memory_utilization" not in made.options


@pytest.mark.parametrize(("rank", "room"), [(4, 8), (16, 16), (33, 64), (320, 320), (500, 512)])
def test_an_adapter_gets_the_next_larger_rank(rank: int, room: int) -> None:
    made = make(machine("A100-80-SXM4"), adapter=ServedAdapter(rank, ("q_proj",)))
    assert (made.options["enable_lora"], made.options["max_lora_rank"]) == (True, room)
    assert made.options["lora_target_modules"] == ["q_proj"]


def test_a_rank_beyond_vllm_is_refused() -> None:
    with pytest.raises(StokerError) as caught:
        make(machine("A100-80-SXM4"), adapter=ServedAdapter(513))
    assert caught.value.code == "STK625"


def test_every_choice_has_a_reason_in_words() -> None:
    for on in (machine("A100-80-SXM4"), machine("RTX4090", 4), processor()):
        made = make(on, length=512)
        assert {"engine", "tensor_parallel", "dtype", "max_model_len", "memory"} <= {r.about for r in made.reasons}
        assert all(reason.text for reason in made.reasons)


def test_transformers_gets_no_vllm_options() -> None:
    assert make(processor(), length=512, engine="transformers").options == {}
