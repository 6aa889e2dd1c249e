"""How a step is cut to the hardware: every way that keeps batch and length, and the fastest that fits.

The order is law 1's ladder: larger micro batches first, then recomputing, then sharing out. Where ways are equally
fast, the first of the ladder is taken.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from stoker.config.run import Run
from stoker.facts.machine import Machine
from stoker.facts.shapes import ModelShape
from stoker.plan import choices, memory, ranges, speed, strategy
from stoker.plan.memory import Estimate
from stoker.plan.speed import Hardware, Pace
from stoker.plan.step import Adapter, Attention, Dtype, Optimizer, Step, Strategy

Verdict = Literal["yes", "tight", "no"]

USABLE_SHARE = 0.98
"""Share of a device's memory that a process gets: the driver keeps the rest (81,050 of 81,920 MiB on an A100)."""
_MAIN_MEMORY_SHARES = {"mps": 0.75, "cpu": 0.95}
"""The same of main memory: about what macOS lets a GPU hold, and what other programs leave a processor."""
_AS_FAST = 0.99
_FLASH_CAPABILITY = 8.0


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What stays the same however the step is cut."""

    run: Run
    machine: Machine
    shape: ModelShape
    longest: int
    """Tokens of the longest sequence."""
    mean: float
    """Tokens of a mean sequence."""
    precision: str
    attention: str
    arrange: str
    devices: int
    share: int
    """Sequences per device and step."""
    earlier_micro: int | None = None


@dataclass(frozen=True, kw_only=True)
class Cut:
    """One way to cut the step to the hardware, with its memory."""

    strategy: str
    micro: int
    checkpointing: bool
    step: Step
    memory: Estimate
    memory_range: tuple[int, int]
    """Nine in ten runs lie between."""
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class Way(Cut):
    """One way to run the step, with its memory and its pace."""

    pace: Pace


def find(asked: Asked) -> Way:
    """The fastest way that surely fits; else one that may; else the smallest."""
    cuts, on = list(_cuts(asked)), hardware(asked.machine)
    for verdict in ("yes", "tight"):
        # Only what is a choice is timed: over all cards that is most of the work.
        fitting = [cut for cut in cuts if cut.verdict == verdict]
        kept = [cut for cut in fitting if cut.micro == asked.earlier_micro]
        if able := [_timed(cut, on) for cut in kept or fitting]:
            fastest = max(way.pace.tokens_per_second for way in able)
            return next(way for way in able if way.pace.tokens_per_second >= _AS_FAST * fastest)
    return _timed(min(cuts, key=lambda cut: cut.memory.device), on)


def usable_share(machine: Machine) -> float:
    """Share of a device's memory that a training process gets."""
    return _MAIN_MEMORY_SHARES.get(machine.kind, USABLE_SHARE)


def hardware(machine: Machine) -> Hardware:
    """The devices of a machine as the roofline sees them."""
    return speed.hardware(machine.card) if machine.card else speed.processor(machine.threads)


def _timed(cut: Cut, on: Hardware) -> Way:
    return Way(**vars(cut), pace=speed.estimate(cut.step, on))


def _cuts(asked: Asked) -> Iterator[Cut]:
    run, machine = asked.run, asked.machine
    stated = run.where.gradient_checkpointing
    recompute = (False, True) if stated == "auto" else (bool(stated),)
    sizes = choices.micro_candidates(run, machine, asked.share, asked.earlier_micro)
    strategies = strategy.candidates(run, machine, asked.devices, asked.precision)
    for chosen, checkpointing in itertools.product(strategies, recompute):
        yield from reversed(_sizes(asked, chosen, sizes, checkpointing=checkpointing))


def _sizes(asked: Asked, chosen: str, sizes: list[int], *, checkpointing: bool) -> list[Cut]:
    """Micro batches from the smallest on, up to one whose activations alone fill the device."""
    machine = asked.machine
    card, room = machine.card, machine.memory_per_device * usable_share(machine)
    cuts = []
    for micro in sorted(sizes):
        step = describe(asked, chosen, micro, checkpointing=checkpointing)
        used = memory.estimate(step, machine.kind)
        around = ranges.of("memory", step, card)
        high = int(used.device * around.high)
        cuts.append(
            Cut(
                strategy=chosen,
                micro=micro,
                checkpointing=checkpointing,
                step=step,
                memory=used,
                memory_range=(int(used.device * around.low), high),
                verdict=_verdict(used.device, high, room),
            )
        )
        if used.parts["activations"] > room:
            break
    return cuts


def _verdict(expected: float, high: float, room: float) -> Verdict:
    if high <= room:
        return "yes"
    return "tight" if expected <= room else "no"


def describe(asked: Asked, chosen: str, micro: int, *, checkpointing: bool) -> Step:
    """A step of ours: what `engine.train` will do with these choices."""
    run, precision = asked.run, asked.precision
    accumulation = asked.share // micro
    sets = memory.gradient_sets(accumulation, exact=strategy.exact(run, chosen))
    return Step(
        shape=asked.shape,
        micro=micro,
        length=asked.longest,
        mean_length=asked.mean,
        accumulation=accumulation,
        adapter=adapter(run),
        weights=_weights(run, precision),
        outer="fp32",
        compute=_DTYPES[precision],
        autocast=precision != "fp32",
        attention=_kernel(asked),
        masked=asked.attention != "flash_attention_2" and asked.arrange == "rows" and run.data.pack,
        recompute="full" if checkpointing else "none",
        loss="fused" if run.native.trainer.get("use_liger_kernel") else "logits_fp32",
        optimizer=_OPTIMIZERS[run.train.optimizer],
        gradient_sets=sets,
        strategy=_STRATEGIES[chosen],
        devices=asked.devices,
        shard_devices=asked.devices,
        expandable=asked.machine.kind == "cuda",
    )


_DTYPES: dict[str, Dtype] = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
_STRATEGIES: dict[str, Strategy] = {
    "single": "single",
    "ddp": "ddp",
    "fsdp2": "fsdp2",
    "zero2": "zero2",
    "zero3": "zero3",
}
_OPTIMIZERS: dict[str, Optimizer] = {
    "adamw": "adamw_fused",
    "adamw_8bit": "adamw_8bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
    "adafactor": "adafactor",
}


def adapter(run: Run) -> Adapter | None:
    """The adapter a run trains."""
    tune = run.tune
    if tune.method == "full":
        return None
    targets = () if isinstance(tune.targets, str) else tuple(tune.targets)
    return Adapter(rank=tune.rank, targets=targets, dropout=tune.dropout > 0)


def _weights(run: Run, precision: str) -> Literal["fp32", "bf16", "fp16", "nf4_double"]:
    if run.tune.method == "qlora":
        return "nf4_double"
    return "fp32" if run.tune.method == "full" else _DTYPES[precision]


def _kernel(asked: Asked) -> Attention:
    """Which kernel the attention's name leads to: torch's own has flash from Ampere on, in 16 bits."""
    if asked.attention == "eager":
        return "eager"
    able = asked.machine.kind == "cuda" and asked.machine.compute_capability >= _FLASH_CAPABILITY
    return "flash" if able and asked.precision != "fp32" else "efficient"
