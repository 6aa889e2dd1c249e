"""Activations in main memory: the last rung of the ladder, what it saves and costs, figured by hand."""

import pytest
from plan_case import SEVEN, inputs, machine, plan, processor, reason

from stoker.errors import StokerError
from stoker.plan import moves
from stoker.plan.make import make_plan
from stoker.plan.plan import Plan, Rung

QLORA = "tune: {method: qlora}\n"
LENGTH = 16384
LAYERS, WIDTH = 28, 3584


def asked(recompute: str, length: int = LENGTH) -> Plan:
    where = f"where: {{micro: 1, gradient_checkpointing: {recompute}}}\n"
    return plan(QLORA + where, machine("RTX4090"), model=SEVEN, sizes=f"length: {length}")


def test_it_is_taken_where_nothing_else_fits_and_not_before() -> None:
    short, long = (plan(QLORA, machine("RTX4090"), model=SEVEN, sizes=f"length: {one}") for one in (8192, LENGTH))
    assert (short.gradient_checkpointing, short.offload_activations) == (True, False)
    assert (long.gradient_checkpointing, long.offload_activations) == (True, True)
    assert (long.fits, asked("true").fits) == ("tight", "no")
    assert reason(long, "offload_activations") == "why.offload"
    assert long.native.trainer["gradient_checkpointing_kwargs"] == {"use_reentrant": False, "offload": True}
    assert short.native.trainer["gradient_checkpointing_kwargs"] == {"use_reentrant": False}


def test_what_it_saves_is_the_input_of_every_block_but_those_in_use() -> None:
    """16,384 tokens of 3,584 numbers in fp32, as the stream of a 4-bit model is."""
    one = LENGTH * WIDTH * 4
    saved = asked("true").memory.peak_allocated_bytes - asked("offload").memory.peak_allocated_bytes
    assert (LAYERS - 3) * one < saved < LAYERS * one


def test_its_time_is_that_of_the_copies_there_and_back_over_the_bus() -> None:
    """A 4090 has 16 lanes of PCIe 4, 31.5 GB/s each way, of which measured links reach a share."""
    there, here = asked("offload"), asked("true")
    copied = 2 * LAYERS * WIDTH * 4 * here.speed.step_seconds * here.speed.tokens_per_second
    taken = there.speed.parts["offload"]
    assert 31.5e9 * 0.5 < copied / taken < 31.5e9
    assert there.speed.step_seconds - here.speed.step_seconds == pytest.approx(taken, rel=0.01)
    (said,) = [one.fields for one in there.reasons if one.key == "why.offload"]
    assert float(said["seconds"]) == pytest.approx(taken, abs=0.01)
    assert float(said["rate"]) * 1e9 == pytest.approx(copied / taken, rel=0.03)
    assert float(said["gib"]) == LAYERS * 0.25, "224 MiB of each block are pinned as 256"


def test_it_decides_no_bit() -> None:
    assert moves.decided(asked("offload")) == moves.decided(asked("true"))


def test_the_ladder_ends_with_it() -> None:
    rungs = [
        Rung(strategy="single", gradient_checkpointing=True, offload_activations=away, micro=1, card="RTX4090", step=3)
        for away in (False, True)
    ]
    words = {"model": SEVEN, "sizes": "length: 8192"}
    after = make_plan(inputs(QLORA, machine("RTX4090"), out_of_memory=(rungs[0],), **words))
    assert (after.batch.micro, after.offload_activations) == (1, True)
    with pytest.raises(StokerError, match="STK675"):
        make_plan(inputs(QLORA, machine("RTX4090"), out_of_memory=tuple(rungs), **words))


def test_it_needs_main_memory_for_what_it_moves() -> None:
    def on(gib: int) -> Plan:
        there = machine("RTX4090", examined=True, memory_bytes=gib << 30)
        return plan(QLORA, there, model=SEVEN, sizes=f"length: {LENGTH}")

    assert on(8).offload_activations
    assert not on(6).offload_activations


def test_a_processor_is_told_that_it_computes_in_main_memory() -> None:
    with pytest.raises(StokerError, match="STK247"):
        plan("where: {gradient_checkpointing: offload}\n", processor())
    assert not plan("", processor()).offload_activations
