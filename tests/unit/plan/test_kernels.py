"""When Liger's kernels compute norms, rotary positions and gated activations, why not, and what the figures say."""

import pytest
from plan_case import SEVEN, machine, plan, processor, reason

from stoker.config import load
from stoker.errors import StokerError
from stoker.facts.machine import Machine
from stoker.plan import checks, moves

INSTALLED = {"torch": "2.13", "peft": "0.21", "tensorboard": "2", "liger_kernel": "0.8.5"}


def card(name: str = "A100-80-SXM4", **packages: str) -> Machine:
    return machine(name, examined=True, memory_bytes=256 << 30, packages={**INSTALLED, **packages})


def test_they_are_taken_where_they_are_asked_for_and_leave_the_loss_alone() -> None:
    made = plan("where: {kernels: liger}\n", card(), model=SEVEN)
    assert (made.kernels, reason(made, "kernels"), made.loss) == ("liger", "why.asked", "fused")
    config = made.native.trainer["liger_kernel_config"]
    assert [name for name, on in config.items() if on] == ["rope", "rms_norm", "swiglu"]
    assert not config["fused_linear_cross_entropy"]
    assert "liger_kernel" in moves.libraries(made)


def test_nobody_has_them_unasked() -> None:
    for there in (machine("A100-80-SXM4"), card(), processor(packages=INSTALLED)):
        made = plan("", there, model=SEVEN if there.kind == "cuda" else "Qwen/Qwen2.5-0.5B")
        assert made.kernels == "plain"
        assert reason(made, "kernels") == ("why.kernels.plain" if there.kind == "cuda" else "why.kernels.none")
    run = load.parse("model: a/b\ndata: {train: a.jsonl}\nwhere: {kernels: liger}\n", "run.yaml")
    assert checks.extra_packages(run) == ("liger-kernel",)


def test_they_save_traffic_and_activations_of_norms_and_gates() -> None:
    where = "where: {{micro: 2, gradient_checkpointing: false, kernels: {}}}\ntune: {{method: lora}}\n"
    plain, liger = (plan(where.format(one), card(), model=SEVEN, sizes="length: 2048") for one in ("plain", "liger"))
    assert liger.speed.parts["bandwidth"] < 0.9 * plain.speed.parts["bandwidth"]
    assert liger.speed.parts["forward"] == pytest.approx(plain.speed.parts["forward"], rel=0.01), "the same products"
    assert liger.memory.parts["activations"] < plain.memory.parts["activations"]
    compiled = plan(where.format("plain, compile: on, loss: plain"), card(), model=SEVEN, sizes="length: 2048")
    assert compiled.speed.parts["bandwidth"] < liger.speed.parts["bandwidth"], "it fuses more than these"


@pytest.mark.parametrize(
    ("words", "model", "version", "named"),
    [
        ("where: {kernels: liger}\n", "google/gemma-2-27b", "0.8.5", "gemma2"),
        ("where: {kernels: liger, compile: on}\n", SEVEN, "0.8.5", "where.compile"),
        ("where: {kernels: liger}\nnative: {trainer: {use_liger_kernel: true}}\n", SEVEN, "0.8.5", "use_liger_kernel"),
        (
            "where: {kernels: liger}\nnative: {trainer: {liger_kernel_config: {rope: false}}}\n",
            *(SEVEN, "0.8.5", "liger_kernel_config"),
        ),
        ("where: {kernels: liger}\n", SEVEN, "0.8.4", "liger-kernel 0.8.4"),
    ],
)
def test_what_keeps_them_away_is_named(words: str, model: str, version: str, named: str) -> None:
    with pytest.raises(StokerError, match=rf"{named}.*STK248"):
        plan(f"tune: {{method: lora}}\n{words}", card(liger_kernel=version), model=model)


def test_a_processor_has_no_triton() -> None:
    with pytest.raises(StokerError, match="STK248"):
        plan("where: {kernels: liger}\n", processor())
    bare = processor(examined=True, packages={"torch": "2.13", "tensorboard": "2"})
    with pytest.raises(StokerError, match="STK248"):  # no package would help
        plan("where: {kernels: liger}\n", bare)
    there = machine("A100-80-SXM4", examined=True, memory_bytes=256 << 30, packages={"torch": "2.13"})
    with pytest.raises(StokerError, match="STK215"):
        plan("where: {kernels: liger}\n", there, model=SEVEN)
