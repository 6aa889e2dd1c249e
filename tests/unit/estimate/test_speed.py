"""The speed model: hand-computed cases with round constants, and what must never happen."""

import dataclasses
import subprocess
import sys
import time

import pytest

from stoker.estimate import layers, operations, speed
from stoker.estimate.speed import Hardware
from stoker.estimate.step import Adapter, Foreign, Step, replace_foreign
from stoker.facts import cards, shapes
from stoker.facts.rates import Rates, rates
from stoker.facts.shapes import ModelShape

IDEAL = Rates(
    peak={"Ampere": 1.0, "Ada workstation": 0.25},
    flash=1.0,
    efficient=0.5,
    older=0.5,
    experts=0.5,
    bandwidth=1.0,
    kernel=0.0,
    launch=0.0,
    module=0.0,
    link=1.0,
    bounce=0.25,
    processor=1e10,
    hidden=1.0,
)
"""A card that reaches all its figures at once."""
DEVICE = Hardware(
    kind="cuda",
    half_flops=1e14,
    fp32_flops=1e13,
    bandwidth=1e12,
    link_bytes_per_second=1e11,
    host_bytes_per_second=1e10,
    network_bytes_per_second=1e10,
)
SHAPE = ModelShape(
    family="llama", layers=8, hidden=1024, heads=8, kv_heads=8, head_dim=128, intermediate=4096, vocab=32000
)
LINEAR = 8 * (4 * 1024 * 1024 + 3 * 1024 * 4096)
HEAD = 32000 * 1024
TOKENS = 4 * 2048


def full(**changes: object) -> Step:
    """A full tune in bf16 on one device."""
    asked: dict[str, object] = {"micro": 4, "length": 2048, "weights": "bf16", "autocast": False, **changes}
    return Step(shape=SHAPE, **asked)  # type: ignore[arg-type]  # fields by name


def spent(step: Step, constants: Rates = IDEAL, on: Hardware = DEVICE) -> dict[str, float]:
    """Seconds by part."""
    return speed.seconds_by_part(step, on, constants)


def seconds(step: Step, constants: Rates = IDEAL, on: Hardware = DEVICE) -> float:
    """Seconds of a step."""
    return sum(spent(step, constants, on).values())


def test_forward_products_take_two_operations_per_weight_and_token_and_causal_attention():
    attention = 2 * TOKENS * 2048 * 1024 * 8
    assert spent(full())["forward"] == pytest.approx((2 * TOKENS * (LINEAR + HEAD) + attention) / 1e14)


def test_the_backward_pass_has_twice_the_products_of_trained_weights():
    attention = 2.5 * 2 * TOKENS * 2048 * 1024 * 8
    assert spent(full())["backward"] == pytest.approx((4 * TOKENS * (LINEAR + HEAD) + attention) / 1e14)


def test_frozen_weights_have_one_product_backward_and_adapters_have_two():
    adapter = Adapter(rank=16, targets=("q_proj",), dtype="bf16")
    extra = 8 * 16 * (1024 + 1024)
    products = 2 * TOKENS * (LINEAR + HEAD + 2 * extra)
    attention = 2.5 * 2 * TOKENS * 2048 * 1024 * 8
    spending = spent(full(adapter=adapter), dataclasses.replace(IDEAL, bandwidth=1e6))
    assert spending["backward"] == pytest.approx((products + attention) / 1e14)


def test_a_small_product_waits_for_its_weights():
    step = full(micro=1, length=16)
    moved = 2 * (LINEAR + HEAD + 16 * (8 * (4 * 2048 + 3 * 5120) + 33024))
    assert spent(step)["forward"] == pytest.approx(moved / 1e12, rel=0.01)


def test_fp32_arithmetic_runs_at_the_fp32_figure():
    assert spent(full(compute="fp32", weights="fp32"))["forward"] == pytest.approx(10 * spent(full())["forward"])


def test_fp8_products_run_at_the_fp8_figure_and_cost_casts():
    device = dataclasses.replace(DEVICE, fp8_flops=2e14)
    narrow, wide = spent(full(foreign=Foreign(product_bits=8)), on=device), spent(full(), on=device)
    saved = wide["forward"] - narrow["forward"]
    assert saved == pytest.approx(2 * TOKENS * LINEAR / 2 / 1e14)
    assert narrow["bandwidth"] > wide["bandwidth"]


def test_recomputing_repeats_the_forward_pass_of_the_blocks_but_not_the_output_layer():
    spending = spent(full(recompute="full"), dataclasses.replace(IDEAL, bandwidth=1e6))
    assert spending["recompute"] == pytest.approx(spending["forward"] - 2 * TOKENS * HEAD / 1e14, rel=1e-3)


def test_four_bit_weights_are_unpacked_in_every_pass():
    adapter = Adapter(rank=16, dtype="bf16")
    step = full(adapter=adapter, weights="nf4", outer="bf16", recompute="full")
    assert spent(step)["dequantise"] == pytest.approx(2 * 5 * LINEAR / 1e12)
    assert operations.work(step).again.unpacked == 5 * LINEAR


def test_a_fused_adamw_reads_and_writes_ten_words_per_weight():
    step = full(weights="fp32", optimizer="adamw_fused")
    assert spent(step)["optimizer"] == pytest.approx(40 * SHAPE.parameters() / 1e12)


def test_few_tokens_wait_for_the_host_to_launch():
    slow = dataclasses.replace(IDEAL, launch=1e-3)
    step = full(micro=1, length=1)
    work = operations.work(step)
    launches = work.forward.launches + work.backward.launches + work.update.launches
    assert seconds(step, slow) == pytest.approx(launches * 1e-3)


def test_compiling_launches_fewer_kernels_and_streams_fewer_bytes():
    eager, compiled = operations.work(full()).forward, operations.work(full(compiled=True)).forward
    assert compiled.launches < eager.launches / 1.5
    assert compiled.streamed < eager.streamed / 1.5


def test_fsdp_gathers_weights_twice_and_scatters_gradients_once_per_micro_batch():
    step = full(strategy="fsdp2", devices=4, shard_devices=4, accumulation=2)
    sent = 2 * 3 * (2 * SHAPE.parameters()) * 3 / 4 / 1e11
    assert spent(step, dataclasses.replace(IDEAL, hidden=0.0))["communication"] == pytest.approx(sent)


def test_zero3_gathers_a_third_time_to_recompute():
    step = full(strategy="zero3", devices=4, shard_devices=4, recompute="full")
    sent = 4 * (2 * SHAPE.parameters()) * 3 / 4 / 1e11
    assert spent(step, dataclasses.replace(IDEAL, hidden=0.0))["communication"] == pytest.approx(sent)


def test_ddp_sums_gradients_once_per_step_over_the_slowest_link():
    step = full(strategy="ddp", devices=16, accumulation=8)
    bare = dataclasses.replace(IDEAL, hidden=0.0)
    node = 2 * (2 * SHAPE.parameters()) * 7 / 8 / 1e11
    between = 2 * (2 * SHAPE.parameters()) * 1 / 2 / (8 * 1e10)
    assert spent(step, bare)["communication"] == pytest.approx(max(node, between))


def test_communication_hides_behind_computation_but_not_without_direct_access():
    step = full(strategy="fsdp2", devices=4, shard_devices=4)
    assert spent(step)["communication"] == 0.0
    assert spent(step, on=dataclasses.replace(DEVICE, peer=False))["communication"] > 0.0


def test_an_offloaded_optimizer_sends_four_bytes_and_streams_28_per_weight_on_the_processor():
    step = full(offload="optimizer", strategy="zero2", devices=2, shard_devices=2)
    mine = SHAPE.parameters() / 2
    assert spent(step)["optimizer"] == pytest.approx(mine * (4 / 1e10 + 28 / 1e10))


def test_a_pipeline_waits_for_its_stages_to_fill():
    step = full(foreign=Foreign(pipeline_parallel=4), devices=4, accumulation=8)
    chunks = replace_foreign(step, pipeline_chunks=4)
    assert spent(step)["forward"] / spent(chunks)["forward"] == pytest.approx((8 + 3) / (8 + 3 / 4))


def test_parts_add_up_to_the_step_and_tokens_scale_it():
    step = full(strategy="fsdp2", devices=8, shard_devices=8, recompute="full")
    on = speed.hardware(cards.find("RTX4090"))
    whole = speed.estimate(step, on)
    half = speed.estimate(step, on, tokens=speed.tokens_of(step) / 2)
    assert sum(whole.parts.values()) == pytest.approx(whole.step_seconds)
    assert whole.tokens_per_second == pytest.approx(8 * TOKENS / whole.step_seconds)
    assert half.step_seconds == pytest.approx(whole.step_seconds / 2)
    assert half.tokens_per_second == pytest.approx(whole.tokens_per_second)


STEPS = {
    "full": full(weights="fp32", autocast=True),
    "recomputed": full(recompute="full"),
    "lora": full(adapter=Adapter(rank=16, dropout=True), autocast=True),
    "qlora": full(adapter=Adapter(rank=16), weights="nf4_double", outer="fp32", autocast=True, recompute="full"),
    "eager": full(attention="eager"),
    "fsdp2": full(strategy="fsdp2", devices=8, shard_devices=8),
    "zero3": full(strategy="zero3", devices=16, shard_devices=16, recompute="full", offload="all"),
    "ddp": full(strategy="ddp", devices=2, optimizer="adamw_8bit"),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize(
    "figure",
    [
        "half_flops",
        "fp32_flops",
        "bandwidth",
        "link_bytes_per_second",
        "host_bytes_per_second",
        "network_bytes_per_second",
    ],
)
def test_a_better_figure_never_makes_a_step_slower(step: Step, figure: str):
    for card in ("T4", "RTX4090", "A100-80-SXM4", "H100-SXM"):
        on = speed.hardware(cards.find(card))
        better = dataclasses.replace(on, **{figure: 1.5 * getattr(on, figure)})
        assert seconds(step, rates(), better) <= seconds(step, rates(), on) * (1 + 1e-9)


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_more_work_takes_longer(step: Step):
    on = speed.hardware(cards.find("L40S"))
    now = seconds(step, rates(), on)
    longer = dataclasses.replace(step, length=2 * step.length)
    wider = dataclasses.replace(step, micro=2 * step.micro)
    more = dataclasses.replace(step, accumulation=2 * step.accumulation)
    assert seconds(longer, rates(), on) > seconds(wider, rates(), on) > now
    assert seconds(more, rates(), on) > now


def test_lora_is_faster_than_full_and_each_saving_of_memory_costs_time():
    on = speed.hardware(cards.find("A100-80-SXM4"))
    shape = shapes.shipped()["Qwen/Qwen2.5-7B"]
    lora = Step(shape=shape, micro=2, length=2048, weights="bf16", adapter=Adapter(rank=16))
    qlora = dataclasses.replace(lora, weights="nf4", outer="fp32")
    whole = Step(shape=shape, micro=2, length=2048, weights="bf16")
    times = [seconds(step, rates(), on) for step in (lora, qlora, dataclasses.replace(qlora, recompute="full"))]
    assert times == sorted(times)
    assert times[0] < seconds(whole, rates(), on)


def test_every_card_has_a_pace_and_a_fitted_class():
    step = full(adapter=Adapter(rank=16), weights="nf4", outer="fp32", autocast=True)
    for card in cards.cards():
        on = speed.hardware(card)
        assert 0 < speed.estimate(step, on).tokens_per_second < 1e7
        assert card.kind != "cuda" or on.rate_class in rates().peak


def test_workstation_cards_reach_a_share_of_what_their_cores_could_do_up_to_their_peak():
    station = dataclasses.replace(DEVICE, rate_class="Ada workstation", fp32_flops=5e13)
    assert spent(full(), on=station)["forward"] == pytest.approx(2 * spent(full())["forward"])
    cores = dataclasses.replace(station, fp32_flops=2e14)
    assert spent(full(), on=cores)["forward"] == pytest.approx(spent(full())["forward"])


@pytest.mark.parametrize(
    "slower_to_faster",
    [
        ("L4", "L20", "L40", "L40S"),
        ("RTX3060", "RTX3080", "RTX3090", "RTX4090", "RTX5090"),
        ("A10", "A40", "A6000", "A100-40", "A100-80", "H100-PCIe", "H100-SXM", "H200"),
        ("T4", "V100", "A100-40"),
    ],
)
def test_cards_keep_their_order(slower_to_faster: tuple[str, ...]):
    for step in (STEPS["qlora"], STEPS["full"]):
        paces = [speed.estimate(step, speed.hardware(cards.find(card))).tokens_per_second for card in slower_to_faster]
        assert paces == sorted(paces)


def test_links_are_what_the_catalogue_says():
    assert speed.hardware(cards.find("A100-80-SXM4")).link_bytes_per_second == 300e9
    assert speed.hardware(cards.find("A100-80-SXM4"), "pcie").link_bytes_per_second == 16 * 1.97e9
    assert speed.hardware(cards.find("RTX4060Ti-16")).link_bytes_per_second == 8 * 1.97e9
    bridged = speed.hardware(cards.find("RTX3090"), "nvlink")
    assert (bridged.link_bytes_per_second, bridged.peer) == (56e9, True)
    assert not speed.hardware(cards.find("RTX4090")).peer
    assert speed.hardware(cards.find("L40S")).peer


def test_a_processor_and_a_mac_get_one_utilisation_figure():
    step = full(weights="fp32", compute="fp32")
    flops = 3 * 2 * SHAPE.active_parameters() * TOKENS
    assert speed.estimate(step, speed.processor(8)).step_seconds == pytest.approx(flops / (0.45 * 8 * 5e10))
    mac = speed.hardware(cards.find("Apple M2"))
    assert speed.estimate(step, mac).step_seconds == pytest.approx(flops / (0.30 * 7.1e12))


def test_a_mac_waits_for_the_host_to_launch_the_kernels_of_a_short_step():
    short = full(weights="fp32", compute="fp32", micro=1, length=8)
    parts = speed.estimate(short, speed.hardware(cards.find("Apple M2 Ultra"))).parts
    assert parts["launches"] > parts["products"]


def test_shipped_constants_are_possible():
    made = rates()
    shares = [made.flash, made.efficient, made.older, made.experts, made.bandwidth, made.link, made.bounce, made.hidden]
    assert all(0 <= share <= 1 for share in shares)
    assert all(0.1 < share <= 1.2 for share in made.peak.values())
    assert made.bounce < made.link
    assert made.efficient < made.flash
    assert 1e-6 < made.kernel < made.launch < made.module < 2e-3


def test_an_estimate_of_a_known_step_takes_less_than_three_tenths_of_a_millisecond():
    step, all_cards = STEPS["qlora"], [speed.hardware(card) for card in cards.cards() if card.kind == "cuda"]
    speed.estimate(step, all_cards[0])
    assert min(_timed(step, all_cards) for _ in range(5)) < 0.3e-3


def _timed(step: Step, on: list[Hardware]) -> float:
    speed.estimate.cache_clear()
    start = time.process_time()
    for device in on:
        speed.estimate(step, device)
    return (time.process_time() - start) / len(on)


def test_speed_needs_no_torch():
    program = "import sys, stoker.estimate.speed; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_every_linear_layer_of_a_model_is_in_the_products():
    shape = shapes.shipped()["Qwen/Qwen3-30B-A3B"]
    step = Step(shape=shape, micro=1, length=1024, weights="bf16")
    weights = sum(one.inner * one.columns * one.times for one in operations.products(step))
    assert weights == sum(one.inputs * one.outputs * one.count for one in layers.linear_layers(shape))
