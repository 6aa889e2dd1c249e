"""What the light world counts without torch, equal to what PEFT and the engine make."""

import itertools
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from stoker.engine import exact
from stoker.estimate import communication, layers, memory
from stoker.estimate.step import Adapter
from stoker.facts import shapes

pytestmark = pytest.mark.filterwarnings("default")

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


@pytest.mark.parametrize("family", FAMILIES)
def test_the_count_equals_peft_s(family: str) -> None:
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
        assert memory.trainable_parameters(shape, Adapter(rank=4, targets=targets)) == made > 0


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("whole", [("embed_tokens",), ("lm_head",), ("embed_tokens", "lm_head")])
def test_whole_layers_are_counted_as_peft_copies_them(whole: tuple[str, ...], tied: bool) -> None:
    config = AutoConfig.for_model("llama", **SIZES, tie_word_embeddings=tied)
    shape = shapes.from_config(config.to_dict())
    assert shape is not None
    options = LoraConfig(r=4, target_modules="all-linear", modules_to_save=list(whole), task_type="CAUSAL_LM")
    with torch.device("meta"):
        adapted = get_peft_model(AutoModelForCausalLM.from_config(config), options)
    made = sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
    adapter = Adapter(rank=4, whole=whole)
    assert memory.trainable_parameters(shape, adapter) == made
    assert sum(one.elements * one.count for one in layers.trained(shape, adapter)) == made


def test_no_rank_holds_more_sums_than_are_planned() -> None:
    for leaves, ranks in itertools.product(range(1, 33), (1, 2, 3, 8)):
        held = []
        for rank in range(ranks):
            tree: exact.Tree[None] = exact.Tree(lambda *_: None)
            for leaf in range(rank * leaves, (rank + 1) * leaves):
                held.append(len(tree.nodes) + 1)
                tree.add(leaf, 0, None)
        planned = memory.gradient_sets(leaves, exact=True, ranks=ranks)
        assert max(held) <= planned <= max(max(held), (leaves - 1).bit_length() + 1)


def test_sums_are_counted_as_the_engine_makes_them() -> None:
    for leaves in range(1, 20):
        for ranks in (1, 2, 3, 8):
            made = max(len(exact.aligned_nodes(rank * leaves, (rank + 1) * leaves)) for rank in range(ranks))
            assert communication.most_sums(leaves, ranks) == made
