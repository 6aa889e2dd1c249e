"""What FSDP2 gathers together, in which type and until when; that it costs no bit is shown in `tests/invariant`."""

from collections.abc import Iterator
from typing import Any

import pytest
import tiny_families
import tiny_run
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM

from stoker.engine import fsdp, fused_loss

BF16 = torch.bfloat16
pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")


def model(family: str, **words: Any) -> Any:
    return AutoModelForCausalLM.from_config(tiny_families.config(family, **words), dtype=torch.float32)


def listed(of: Any, products: torch.dtype | None = BF16) -> list[tuple[list[str], torch.dtype | None, bool]]:
    names = {id(module): name for name, module in of.named_modules()}
    return [
        ([names[id(module)] for module in group.modules], group.products, group.stays)
        for group in fsdp.groups(of, products)
    ]


def test_linear_layers_of_a_block_are_gathered_in_the_type_of_the_products() -> None:
    found = listed(model("llama", tie_word_embeddings=False))
    attention = [f"self_attn.{name}_proj" for name in "qkvo"]
    linear = [
        f"model.layers.{{}}.{name}" for name in (*attention, *(f"mlp.{one}_proj" for one in ("gate", "up", "down")))
    ]
    blocks = [([name.format(number) for name in linear], BF16, False) for number in (0, 1)]
    outer = [(["model.embed_tokens"], None, False), (["lm_head"], BF16, True), ([""], None, False)]
    assert found == [*blocks, *outer]


def test_a_table_that_is_embedding_and_output_layer_stays_with_the_rest() -> None:
    assert [names for names, _, _ in listed(model("llama", tie_word_embeddings=True))][2:] == [[""]]


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt2", "qwen3_next", "opt"])
def test_blocks_with_other_matrices_or_a_bias_at_the_end_are_gathered_as_they_are(family: str) -> None:
    found = listed(model(family))
    blocks = [(names, products) for names, products, _ in found if names[0].endswith((".layers.1", ".h.1"))]
    assert [(len(names), products) for names, products in blocks] == [(1, None)]


def test_adapters_and_frozen_weights_keep_their_types() -> None:
    adapted = get_peft_model(model("llama", tie_word_embeddings=False), LoraConfig(r=4, target_modules="all-linear"))
    assert {products for _, products, _ in listed(adapted)} == {None}
    assert {products for _, products, _ in listed(model("llama"), products=None)} == {None}


@pytest.fixture
def sharded() -> Iterator[Any]:
    """The first of two ranks; what the other one would send is whatever lies in memory."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    made = model("llama", tie_word_embeddings=False)
    fsdp.apply(fsdp.groups(made, BF16), init_device_mesh("cpu", (2,)), MixedPrecisionPolicy())
    yield made
    dist.destroy_process_group()


def seen_types(of: Any) -> dict[str, torch.dtype]:
    """The type of each weight while its module computes."""
    seen = {}

    def look(name: str) -> Any:
        return lambda module, *_: seen.update({name: module.weight.dtype})

    for name, module in of.named_modules():
        if isinstance(getattr(module, "weight", None), torch.nn.Parameter):
            module.register_forward_pre_hook(look(name))
    ids = torch.zeros(1, 8, dtype=torch.int64)
    with torch.autocast("cpu", dtype=BF16, cache_enabled=False):
        of(input_ids=ids, labels=ids).loss.backward()
    return seen


def test_what_autocast_does_not_cast_is_computed_with_as_it_is_held(sharded: Any) -> None:
    seen = seen_types(sharded)
    wide = {name for name, dtype in seen.items() if dtype == torch.float32}
    assert wide == {name for name in seen if "norm" in name or "embed" in name}
    assert {seen[name] for name in set(seen) - wide} == {BF16}
    assert {parameter.grad.dtype for parameter in sharded.parameters()} == {torch.float32}


def test_the_loss_without_logits_finds_the_output_layer_gathered(sharded: Any) -> None:
    fused = fused_loss.FusedLoss(sharded.lm_head, "llama")
    sharded.lm_head.forward, sharded.loss_function = fused.keep, fused
    seen_types(sharded)
    assert sharded.lm_head.weight.grad.shape == sharded.lm_head.weight.shape
    assert all(isinstance(module, FSDPModule) for module in (sharded, sharded.lm_head, sharded.model.embed_tokens))


def test_resharding_the_output_layer_after_its_forward_pass_breaks_that_loss() -> None:
    """Negative control of `stays`: the weight is a shard again when the loss needs it."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    made = model("llama", tie_word_embeddings=False)
    found = [fsdp.ShardGroup(one.modules, one.products) for one in fsdp.groups(made, BF16)]
    fsdp.apply(found, init_device_mesh("cpu", (2,)), MixedPrecisionPolicy())
    fused = fused_loss.FusedLoss(made.lm_head, "llama")
    made.lm_head.forward, made.loss_function = fused.keep, fused
    try:
        with pytest.raises(RuntimeError):
            seen_types(made)
    finally:
        dist.destroy_process_group()


def test_a_forked_rank_has_its_own_place_whatever_its_parent_pretended_to_be(sharded: Any) -> None:
    torch.zeros_like(next(sharded.parameters()))
    dist.destroy_process_group()

    def place() -> int:
        dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
        made = model("llama", tie_word_embeddings=False)
        fsdp.apply(fsdp.groups(made, BF16), init_device_mesh("cpu", (2,)), MixedPrecisionPolicy())
        return 40 + torch.zeros_like(next(made.parameters())).device_mesh.get_coordinate()[0]

    assert tiny_run.in_child(place) == 41
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())  # for the fixture's end
