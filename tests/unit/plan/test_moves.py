"""A run that goes on elsewhere: what the plan keeps, and what it says of the tier before anything starts."""

import dataclasses
from typing import Any

import pytest
from plan_case import inputs, machine, plan, processor, reason

from stoker.facts import own_code
from stoker.facts.machine import Machine
from stoker.plan import moves
from stoker.plan.make import make_plan
from stoker.plan.moves import Earlier
from stoker.plan.plan import Plan, Rung
from stoker.rows.order import VERSION

TORCH_ONLY = {"instructions": "AVX2", "driver": "12080", "cuda": "12.8", "base": "a digest"}
BESIDE = {"tensorboard": "2.21", "datasets": "5.2"}
PACKAGES = {"torch": "2.13.0", "transformers": "5.22.2", "peft": "0.21.2", "bitsandbytes": "0.50", **BESIDE}
LORA = "tune: {method: lora}\ntrain: {batch: 32, steps: 100, deterministic: true}\n"
FULL = "tune: {method: full}\ntrain: {batch: 32, steps: 100, deterministic: true}\n"


def box(card: str = "RTX4090", count: int = 1, **facts: Any) -> Machine:
    """A machine that was looked at."""
    return machine(card, count, **{"examined": True, "packages": PACKAGES, "memory_bytes": 512 << 30, **facts})


def left(made: Plan, on: Machine, step: int = 40) -> Earlier:
    """The checkpoint that a trainer with this plan on this machine would leave."""
    device = on.devices[0].name if on.kind == "cuda" else made.card
    versions = {name: version for name, version in on.packages.items() if name not in BESIDE}
    fingerprint = {"device": device, **TORCH_ONLY, **versions, "code": own_code.digest(), **moves.decided(made)}
    return Earlier(step, fingerprint, made.data.digest, VERSION)


def test_a_run_that_was_never_trained_has_nothing_to_go_on_from() -> None:
    assert plan(LORA, box()).resume is None


def test_the_same_machine_goes_on_exactly_and_is_planned_as_before() -> None:
    first = plan(LORA, box())
    again = plan(LORA, box(), earlier=left(first, box()))
    assert again.resume is not None
    assert (again.resume.tier, again.resume.step, again.resume.changed) == ("EXACT", 40, [])
    assert set(again.resume.unseen) == set(TORCH_ONLY)
    assert (again.batch, again.strategy, again.argv) == (first.batch, first.strategy, first.argv)


def test_what_is_compared_at_startup_is_said_in_words_and_without_cuda_on_a_processor() -> None:
    on = processor()
    first = plan(LORA, on)
    again = plan(LORA, on, earlier=left(first, on))
    (why,) = [one for one in again.reasons if one.key == "why.resume.unseen"]
    assert "the processor's instructions" in why.text
    assert not any(word in why.text for word in ("driver", "CUDA", "NCCL"))
    first = plan(LORA, box())
    (why,) = [one for one in plan(LORA, box(), earlier=left(first, box())).reasons if one.key == "why.resume.unseen"]
    assert "the driver" in why.text


def test_a_run_that_is_done_does_not_go_on() -> None:
    first = plan(LORA, box())
    assert plan(LORA, box(), earlier=left(first, box(), step=100)).resume is None


@pytest.mark.parametrize("before", [1, 2, 4, 8])
@pytest.mark.parametrize("now", [1, 2, 4, 8])
def test_another_number_of_cards_keeps_the_micro_batch_and_the_tier(before: int, now: int) -> None:
    stated = f"{LORA}where: {{micro: 2}}\n"
    earlier = left(plan(stated, box(count=before)), box(count=before))
    moved = plan(LORA, box(count=now), earlier=earlier)
    assert moved.resume is not None
    assert (moved.resume.tier, moved.resume.changed) == ("EXACT", [])
    assert (moved.batch.micro, moved.batch.effective) == (2, 32)
    assert reason(moved, "batch.micro") == "why.micro.earlier"


def test_without_the_canonical_sum_another_count_is_named() -> None:
    earlier = left(plan(FULL, box(count=2)), box(count=2))
    moved = plan(FULL, box(count=4), earlier=earlier)
    assert moved.resume is not None
    assert moved.resume.tier == "SAMPLE-EXACT"
    assert "devices: 2 -> 4" in moved.resume.changed


def test_a_micro_batch_that_no_longer_divides_a_share_is_replaced_and_said() -> None:
    """32 sequences on one card by 8; on eight cards each has 4."""
    earlier = left(plan(f"{LORA}where: {{micro: 8}}\n", box()), box())
    moved = plan(LORA, box(count=8), earlier=earlier)
    assert 4 % moved.batch.micro == 0
    assert moved.batch.micro * moved.batch.accumulation * 8 == 32
    assert reason(moved, "batch.micro") == "why.micro.divides"
    assert moved.resume is not None
    assert moved.resume.tier == "SAMPLE-EXACT"
    assert f"micro: 8 -> {moved.batch.micro}" in moved.resume.changed


def test_a_micro_batch_that_no_longer_fits_is_replaced_and_said() -> None:
    """What an A100 took at once is too much for a T4; batch and length stay."""
    earlier = left(plan(f"{LORA}where: {{micro: 32, loss: plain}}\n", box("A100")), box("A100"))
    moved = plan(f"{LORA}where: {{loss: plain}}\n", box("T4"), earlier=earlier)
    assert moved.fits != "no"
    assert moved.batch.micro < 32
    assert moved.batch.effective == 32
    assert reason(moved, "batch.micro") == "why.micro.fits"
    assert moved.resume is not None
    assert moved.resume.tier == "SAMPLE-EXACT"
    assert {line.partition(":")[0] for line in moved.resume.changed} >= {"device", "precision", "micro"}
    (said,) = [one.text for one in moved.reasons if one.about == "batch.micro"]
    assert "32" in said
    assert "T4" in said


def test_another_card_keeps_a_micro_batch_that_fits() -> None:
    """Random streams are numbered by micro batches, so that they stay the same where the bits cannot."""
    earlier = left(plan(f"{LORA}where: {{micro: 1}}\n", box("T4")), box("T4"))
    moved = plan(LORA, box("A100"), earlier=earlier)
    assert moved.batch.micro == 1 != plan(LORA, box("A100")).batch.micro
    assert moved.resume is not None
    assert moved.resume.tier == "SAMPLE-EXACT"
    assert not any(line.startswith("micro") for line in moved.resume.changed)


def test_recomputing_and_a_larger_micro_batch_are_kept_where_bits_can_be_and_dropped_on_another_card() -> None:
    fixed = "where: {micro: 1, gradient_checkpointing: true}\n"
    first = plan(LORA + fixed, box())
    same = plan(LORA, box(), earlier=left(first, box()))
    assert (same.gradient_checkpointing, same.batch.micro) == (True, 1)
    assert reason(same, "gradient_checkpointing") == "why.checkpointing.as_before"
    assert same.resume is not None
    assert same.resume.tier == "EXACT"
    other = plan(LORA, box("A100"), earlier=left(first, box()))
    assert not other.gradient_checkpointing


@pytest.mark.parametrize("count", [1, 2, 4])
def test_shards_stay_shards_on_any_count_where_their_bits_can_be_kept(count: int) -> None:
    earlier = left(plan(f"{LORA}where: {{strategy: fsdp2, micro: 1}}\n", box(count=2)), box(count=2))
    moved = plan(LORA, box(count=count), earlier=earlier)
    assert moved.strategy == "fsdp2"
    assert reason(moved, "strategy") == "why.strategy.earlier"
    assert moved.resume is not None
    assert (moved.resume.tier, moved.resume.changed) == ("EXACT", [])


def test_shards_of_a_run_without_the_canonical_sum_are_given_up_on_one_card() -> None:
    earlier = left(plan(f"{FULL}where: {{strategy: fsdp2}}\n", box(count=2)), box(count=2))
    assert plan(FULL, box(), earlier=earlier).strategy == "single"


def test_three_cards_take_over_from_shards_by_whole_gradients() -> None:
    """The canonical sum of shards needs a power of two."""
    text = "tune: {method: lora}\ntrain: {batch: 12, steps: 100, deterministic: true}\n"
    earlier = left(plan(f"{text}where: {{strategy: fsdp2, micro: 1}}\n", box(count=2)), box(count=2))
    moved = plan(text, box(count=3), earlier=earlier)
    assert (moved.strategy, moved.batch.micro) == ("ddp", 1)
    assert moved.resume is not None
    assert moved.resume.tier == "SAMPLE-EXACT"
    assert "strategy: fsdp2 -> ddp" in moved.resume.changed


def test_without_deterministic_kernels_cuda_is_never_exact_and_says_why() -> None:
    text = LORA.replace(", deterministic: true", "")
    again = plan(text, box(), earlier=left(plan(text, box()), box()))
    assert again.resume is not None
    assert (again.resume.tier, again.resume.changed) == ("SAMPLE-EXACT", [])
    assert reason(again, "resume") == "why.resume.kernels"


@pytest.mark.parametrize(
    "words",
    [
        "where: {compile: on}",
        *(f"native: {{trainer: {{torch_compile_{option}}}}}" for option in ("backend: inductor", "mode: default")),
    ],
)
def test_a_compiled_model_is_never_exact_and_says_why(words: str) -> None:
    text = f"{LORA}{words}\n"
    again = plan(text, box(), earlier=left(plan(text, box()), box()))
    assert again.resume is not None
    assert (again.resume.tier, again.resume.changed) == ("SAMPLE-EXACT", [])
    assert reason(again, "resume") == "why.resume.compiled"
    assert moves.unprovable(again) == "where.compile"
    assert reason(again, "native.trainer.torch_compile") == "why.compile"


def test_a_mac_is_never_exact_and_says_why() -> None:
    mac = box("M4 Max")
    again = plan(LORA, mac, earlier=left(plan(LORA, mac), mac))
    assert again.resume is not None
    assert again.resume.tier == "SAMPLE-EXACT"
    assert reason(again, "resume") == "why.resume.mps"


def test_other_versions_are_seen_and_those_of_a_machine_that_is_not_here_are_not() -> None:
    first = plan(LORA, box())
    newer = box(packages={**PACKAGES, "torch": "2.14.0", "accelerate": "1.15"})
    moved = plan(LORA, newer, earlier=left(first, box()))
    assert moved.resume is not None
    assert set(moved.resume.changed) == {"torch: 2.13.0 -> 2.14.0", "accelerate: None -> 1.15"}
    fewer = box(packages={name: version for name, version in PACKAGES.items() if name != "bitsandbytes"})
    gone = plan(LORA, fewer, earlier=left(first, box()))
    assert gone.resume is not None
    assert gone.resume.changed == ["bitsandbytes: 0.50 -> None"]
    # A rented box whose image has only torch: the rest comes with Stoker.
    bare = plan(LORA, box(packages={"torch": "2.14.0"}), earlier=left(first, box()), elsewhere=True)
    assert bare.resume is not None
    assert (bare.resume.tier, bare.resume.changed) == ("EXACT", [])
    assert {"torch", "transformers", "peft"} <= set(bare.resume.unseen)
    assert "threads" not in bare.resume.unseen
    far = plan(LORA, machine(), earlier=left(first, box()))
    assert far.resume is not None
    assert far.resume.changed == []
    assert {"torch", "peft", "threads", "driver"} <= set(far.resume.unseen)


def test_other_data_or_another_order_is_another_training() -> None:
    made = inputs(LORA, box())
    prepared = dataclasses.replace(made, data=dataclasses.replace(made.data, digest="one"))
    earlier = left(make_plan(prepared), box())
    for changes in ({"data_digest": "another"}, {"order_version": VERSION + 1}):
        moved = make_plan(dataclasses.replace(prepared, earlier=dataclasses.replace(earlier, **changes)))  # type: ignore[arg-type]
        assert moved.resume is not None
        assert moved.resume.tier == "OTHER"


def test_a_processor_s_threads_are_part_of_it() -> None:
    cpu = processor(threads=8, examined=True)
    earlier = left(plan(f"{LORA}where: {{micro: 1}}\n", cpu), cpu)
    moved = plan(f"{LORA}where: {{processes: 4}}\n", cpu, earlier=earlier)
    assert moved.resume is not None
    assert (moved.resume.tier, moved.resume.changed) == ("SAMPLE-EXACT", ["threads: 8 -> 2"])
    alone = processor(threads=1, examined=True)
    earlier = left(plan(f"{LORA}where: {{micro: 1}}\n", alone), alone)
    assert plan(f"{LORA}where: {{processes: 4}}\n", alone, earlier=earlier).resume.tier == "EXACT"  # type: ignore[union-attr]


def test_what_ran_out_of_memory_is_not_kept() -> None:
    """The ladder goes before exactness."""
    first = plan(f"{LORA}where: {{micro: 4}}\n", box())
    rung = Rung(strategy="single", gradient_checkpointing=False, micro=4, card=first.card, step=50)
    moved = plan(LORA, box(), earlier=left(first, box()), out_of_memory=(rung,))
    assert moved.batch.micro < 4 or moved.gradient_checkpointing
    assert moved.resume is not None
    assert moved.resume.tier == "SAMPLE-EXACT"


def test_what_the_run_file_states_goes_before_what_was() -> None:
    earlier = left(plan(f"{LORA}where: {{micro: 2}}\n", box()), box())
    moved = plan(f"{LORA}where: {{micro: 4}}\n", box(), earlier=earlier)
    assert moved.batch.micro == 4
    assert moved.resume is not None
    assert "micro: 2 -> 4" in moved.resume.changed


def test_another_version_of_liger_is_named_where_it_is_used() -> None:
    liger = f"{FULL}native: {{trainer: {{use_liger_kernel: true}}}}\n"
    before, now = (box(packages={**PACKAGES, "liger_kernel": version}) for version in ("0.6.0", "0.7.0"))
    again = plan(liger, now, earlier=left(plan(liger, before), before))
    assert again.resume is not None
    assert (again.resume.tier, again.resume.changed) == ("SAMPLE-EXACT", ["liger_kernel: 0.6.0 -> 0.7.0"])
    assert "liger_kernel" not in moves.libraries(plan(FULL, now))
