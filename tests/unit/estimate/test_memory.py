"""The closed form of memory: facts counted by hand, and what must hold for every step."""

import json
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.estimate import layers, memory
from stoker.estimate import step as steps
from stoker.estimate.step import Adapter, Foreign, Step
from stoker.estimate.walk import Walk
from stoker.facts.shapes import ModelShape, shipped

MiB = 1 << 20
LLAMA = ModelShape(
    family="llama", layers=8, hidden=2048, heads=16, kv_heads=4, head_dim=128, intermediate=5632, vocab=32_000
)
GEMMA = replace(LLAMA, family="gemma2", tie_embeddings=True, norms_per_layer=4)
PHI = replace(LLAMA, family="phi3")
BIASES = {"mlp_bias": True, "qkv_bias": True, "output_bias": True, "norm_weights": 2}
GPT = replace(LLAMA, family="gpt2", kv_heads=16, gated_mlp=False, learned_positions=4096, **BIASES)
FULL = Step(shape=LLAMA, micro=2, length=1024)
HALF = replace(FULL, weights="bf16", autocast=False)
LORA = replace(FULL, weights="bf16", adapter=Adapter(rank=16))
QLORA = replace(LORA, weights="nf4_double")
SHARDED = replace(FULL, strategy="fsdp2", devices=8, shard_devices=8)
STEPS = {
    "full": FULL,
    "half": HALF,
    "lora": LORA,
    "qlora": QLORA,
    "sharded": SHARDED,
    "ddp": replace(FULL, strategy="ddp", devices=2),
    "zero2": replace(HALF, strategy="zero2", devices=4, shard_devices=4, foreign=Foreign(master=True)),
    "zero3": replace(HALF, strategy="zero3", devices=4, shard_devices=4, offload="optimizer"),
    "offloaded": replace(HALF, strategy="fsdp2", devices=4, shard_devices=4, offload="all", recompute="full"),
    "checkpointed": replace(FULL, recompute="full"),
    "selective": replace(LORA, recompute="selective"),
    "fused": replace(LORA, loss="fused"),
    "liger": replace(LORA, loss="liger"),
    "chunked": replace(HALF, loss="chunked"),
    "eager": replace(FULL, shape=GEMMA, attention="eager"),
    "joined": replace(QLORA, shape=PHI),
    "gpt2": replace(FULL, shape=GPT, optimizer="adamw_8bit"),
    "exact": replace(LORA, accumulation=8, gradient_sets=4),
    "in the backward pass": replace(HALF, gradient_sets=0),
    "compiled": replace(HALF, compiled=True),
}
every_step = pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)


# ---- what must hold for every step


@every_step
def test_parts_add_up_to_what_is_allocated(step: Step) -> None:
    used = memory.estimate(step)
    assert sum(used.parts.values()) == used.allocated
    assert min(used.parts.values()) >= 0


@every_step
def test_the_peak_is_the_highest_moment(step: Step) -> None:
    used = memory.estimate(step)
    assert used.allocated == used.moments[used.moment] == max(used.moments.values())


@every_step
def test_the_allocator_takes_no_less_than_tensors_hold(step: Step) -> None:
    used = memory.estimate(step)
    assert used.allocated <= used.reserved < 2 * used.allocated
    assert used.device == used.reserved + used.runtime


@every_step
def test_more_of_anything_is_never_less_memory(step: Step) -> None:
    used = memory.estimate(step).allocated
    deeper = replace(step, shape=replace(step.shape, layers=step.shape.layers + 1))
    wider_vocabulary = replace(step, shape=replace(step.shape, vocab=2 * step.shape.vocab))
    for more in (replace(step, micro=3), replace(step, length=1536), deeper, wider_vocabulary):
        assert memory.estimate(more).allocated >= used


@every_step
def test_one_block_stands_for_all(step: Step) -> None:
    """The bytes each further block adds are the same: blocks that are not run are counted as those that are."""
    depths = [memory.estimate(replace(step, shape=replace(step.shape, layers=n))).moments for n in (2, 3, 4)]
    for moment in ("forward", "loss", "loss_backward"):
        first, second, third = (moments[moment] for moments in depths)
        assert third - second == second - first


@settings(max_examples=40, deadline=None)
@given(micro=st.integers(1, 8), length=st.sampled_from([64, 100, 512, 1000]), rank=st.integers(1, 128))
def test_memory_grows_with_rows_and_rank(micro: int, length: int, rank: int) -> None:
    step = replace(LORA, micro=micro, length=length, adapter=Adapter(rank=rank))
    more_rows = replace(step, micro=micro + 1)
    higher_rank = replace(step, adapter=Adapter(rank=rank + 1))
    used = memory.estimate(step).allocated
    assert memory.estimate(more_rows).allocated >= used
    assert memory.estimate(more_rows).moments["loss"] > memory.estimate(step).moments["loss"]
    assert memory.estimate(higher_rank).allocated >= used


def test_more_devices_hold_less_each() -> None:
    used = [memory.estimate(replace(SHARDED, devices=n, shard_devices=n)).allocated for n in (2, 4, 8)]
    assert used == sorted(used, reverse=True)


@every_step
def test_blocks_that_are_counted_equal_blocks_that_are_run(step: Step) -> None:
    counted, run = Walk(step).moments, Walk(step, step.shape.layers).moments
    for name in ("forward", "loss", "loss_backward"):
        assert counted[name].live == run[name].live
    assert counted["block_backward"].live == pytest.approx(run["block_backward"].live, rel=0.03)


def test_gaps_that_grow_with_depth_show_when_all_blocks_are_replayed() -> None:
    used = memory.estimate(replace(LORA, shape=replace(LLAMA, layers=24), micro=4, length=664))
    assert used.allocated <= used.replayed
    assert used.replayed == pytest.approx(used.reserved, rel=0.15)


# ---- counted by hand


def test_adamw_holds_twenty_bytes_a_weight_while_it_steps() -> None:
    """Weight, gradient, two states and one temporary of the foreach form, fp32 each."""
    step = replace(FULL, micro=1, length=64)
    used = memory.estimate(step)
    assert used.moment == "optimizer"
    assert used.allocated == pytest.approx(20 * LLAMA.parameters() + 16.25 * MiB, rel=0.002)


def test_the_fused_form_makes_no_temporary() -> None:
    step = replace(FULL, micro=1, length=64)
    fused = replace(step, optimizer="adamw_fused")
    less = memory.estimate(step).moments["optimizer"] - memory.estimate(fused).moments["optimizer"]
    assert less == pytest.approx(4 * LLAMA.parameters(), rel=0.002)


def test_the_loss_holds_twelve_bytes_a_token_and_word_on_its_way_back() -> None:
    """Log-probabilities, their gradient and the logits' gradient, fp32 each."""
    used = memory.estimate(replace(LORA, shape=replace(LLAMA, vocab=128_000)))
    assert used.moment == "loss_backward"
    assert used.parts["logits"] == pytest.approx(12 * LORA.tokens * 128_000, rel=0.005)


def test_a_checkpointed_block_keeps_its_input() -> None:
    step = replace(HALF, recompute="full", optimizer="sgd")
    deeper = replace(step, shape=replace(LLAMA, layers=9))
    more = memory.estimate(deeper).moments["loss"] - memory.estimate(step).moments["loss"]
    weights = (deeper.shape.parameters() - LLAMA.parameters()) * 2
    assert more - weights == pytest.approx(step.tokens * LLAMA.hidden * 2, abs=MiB)


@pytest.mark.parametrize(("cached", "copy"), [(True, 2), (False, 0)])
def test_autocast_may_keep_a_16_bit_copy_of_every_trained_weight(cached: bool, copy: int) -> None:
    """A checkpointed block keeps none in the backward pass, but autocast's cache does until the model returns."""
    step = replace(FULL, recompute="full", optimizer="sgd", micro=1, length=64, foreign=Foreign(autocast_cache=cached))
    deeper = replace(step, shape=replace(LLAMA, layers=9))
    more = memory.estimate(deeper).moments["loss"] - memory.estimate(step).moments["loss"]
    linear = sum(one.weights for one in layers.linear_layers(LLAMA))
    assert more == pytest.approx(linear * (4 + copy) + step.tokens * LLAMA.hidden * 4, rel=0.01)


def test_four_bits_are_half_a_byte_and_a_scale_for_64() -> None:
    linear = sum(one.weights * one.count for one in layers.linear_layers(LLAMA))
    rest = LLAMA.parameters() - linear
    adapter = layers.trainable_parameters(LLAMA, QLORA.adapter)
    packed = linear / 2 + linear / 64 + linear / 64 / 256 * 4
    assert memory.whole_weight_bytes(QLORA) == pytest.approx(packed + 4 * rest + 4 * adapter, rel=0.005)


def test_ddp_holds_gradients_once_more_in_its_buckets() -> None:
    alone, together = (memory.estimate(STEPS[name]).moments["forward"] for name in ("full", "ddp"))
    assert together - alone == memory.gradient_bytes(FULL)


def test_sharding_divides_what_is_trained_and_gathers_two_blocks() -> None:
    used = memory.estimate(replace(SHARDED, micro=1, length=64, recompute="full"))
    block = (LLAMA.parameters() - 2 * LLAMA.vocab * LLAMA.hidden) / LLAMA.layers
    outer = 2 * LLAMA.vocab * LLAMA.hidden
    assert used.moment in ("forward", "loss", "block_backward")
    assert used.allocated > 4 * (LLAMA.parameters() * 3 / 8 + 2 * block + outer)
    assert used.parts["optimizer"] == pytest.approx(8 * LLAMA.parameters() / 8, rel=0.01)


def test_what_is_offloaded_is_not_on_the_device() -> None:
    used = memory.estimate(STEPS["offloaded"]).parts
    gathered = 2 * (LLAMA.vocab * LLAMA.hidden * 2 + 2 * LLAMA.parameters() / LLAMA.layers)
    assert used["optimizer"] == used["gradients"] == 0
    assert 0 < used["weights"] < 2 * gathered
    states_only = memory.estimate(replace(FULL, offload="optimizer")).parts
    assert states_only["optimizer"] == 0
    assert states_only["weights"] > 0


def test_the_canonical_tree_holds_a_sum_for_each_level() -> None:
    assert [memory.gradient_sets(n, exact=True) for n in (1, 2, 3, 4, 8)] == [1, 2, 3, 3, 4]
    assert memory.gradient_sets(8, exact=False) == 1
    among = [memory.gradient_sets(n, exact=True, ranks=8) for n in (1, 2, 4, 7, 8, 15, 31)]
    assert among == [1, 2, 3, 5, 4, 7, 8], "ranges that start inside a node are held in more pieces"


def test_gradients_of_earlier_micro_batches_wait() -> None:
    several = replace(FULL, accumulation=4)
    more = memory.estimate(several).moments["forward"] - memory.estimate(FULL).moments["forward"]
    assert more == memory.gradient_bytes(FULL)


def test_a_padding_mask_costs_a_number_for_each_pair_of_tokens() -> None:
    own_keys = replace(LLAMA, kv_heads=16)
    plain = replace(HALF, shape=own_keys, attention="efficient", micro=4)
    masked = replace(plain, masked=True)
    more = memory.estimate(masked).moments["loss"] - memory.estimate(plain).moments["loss"]
    assert more == pytest.approx(LLAMA.layers * 4 * 1024**2 * 2, rel=0.01)


def test_an_estimate_takes_milliseconds() -> None:
    steps = [replace(step, length=1000 + n) for n in range(5) for step in STEPS.values()]
    started = time.process_time()  # other tests run beside this one
    for step in steps:
        memory.estimate(step)
    assert (time.process_time() - started) / len(steps) < 0.02


# ---- sharded


@pytest.mark.parametrize(
    ("model", "devices", "sets", "bar"),
    [
        ("Qwen/Qwen2.5-7B", 8, 1, 24),
        ("Qwen/Qwen2.5-7B", 8, 3, 28),
        ("meta-llama/Llama-3.1-8B", 8, 1, 24),
        ("meta-llama/Llama-3.1-70B", 64, 1, 60),
    ],
)
def test_full_tuning_on_many_cards(model: str, devices: int, sets: int, bar: int) -> None:
    """GiB of each card: linear layers are gathered in bf16, embedding and output layer by themselves."""
    shards = {"strategy": "fsdp2", "devices": devices, "shard_devices": devices, "canonical": sets > 1}
    words = {"accumulation": 4, "recompute": "full", "loss": "fused", "optimizer": "adamw_fused", "gradient_sets": sets}
    step = Step(shape=shipped()[model], micro=1, length=4096, **shards, **words)
    assert memory.estimate(step).allocated < bar << 30


def test_experts_are_gathered_as_they_are_held() -> None:
    dense = layers.gathers_lowered(SHARDED)
    routed = replace(SHARDED, shape=replace(LLAMA, experts=8, experts_per_token=2))
    others = [replace(SHARDED, shape=GPT), replace(SHARDED, compute="fp32", autocast=False), FULL, HALF]
    assert dense
    assert not any(layers.gathers_lowered(one) for one in (routed, *others))


def test_a_step_comes_back_from_json_as_it_was() -> None:
    """Also its tuples: figures are remembered by steps."""
    some = replace(LORA, adapter=Adapter(rank=8, targets=("q_proj",), whole=("lm_head",)))
    for step in (FULL, some):
        again = steps.from_json(json.loads(json.dumps(steps.to_json(step))))
        assert again == step
        assert memory.estimate(again) == memory.estimate(step)
