"""Memory and speed of a few trainings beside their plans, and how often a step waits for the GPU."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stoker.doctor import activity
from stoker.facts.machine import Machine
from stoker.launch import calibration
from stoker.plan.plan import Plan
from stoker.prove import trials
from stoker.prove.check import Check, absent, failed, passed
from stoker.prove.resuming import losses_apart
from stoker.prove.trials import Trials
from stoker.rundir import events, files
from stoker.rundir.layout import RunDir

_TEXT = """
model: {{shape: llama, layers: {layers}, width: {width}, heads: {heads}, vocab: {vocab}, tied: false}}
tokenizer: {{train: bpe, vocab: 1024}}
data: {{train: recipe:text/shakespeare.txt, length: {length}}}
train: {{objective: pretrain, epochs: 20, steps: {steps}, batch: 8, learning_rate: 1e-3, eval_every: never}}
save: {{every: 1000 steps}}
where: {{after: stay}}
"""
_LARGE = {"layers": 8, "width": 512, "heads": 8, "vocab": 32000}
"""60 million weights: small enough for any card, large enough that its kernels are not all launch."""
_TINY = {"layers": 2, "width": 128, "heads": 2, "vocab": 4096}
"""Where a processor trains."""
_STEPS = 4
_LOSS_LIMIT = 1e-4
"""Of the first step, relative: both sums are made in fp32, of logits in the type of the products."""


@dataclass(frozen=True)
class Point:
    """A micro batch."""

    micro: int
    length: int


CARD_POINTS = tuple(Point(*one) for one in ((1, 512), (4, 512), (1, 1024), (4, 1024), (8, 1024), (2, 2048)))
CPU_POINTS = tuple(Point(*one) for one in ((1, 128), (4, 128), (2, 256), (8, 256)))


def memory(on: Trials) -> Check:
    """Planned against measured, at every point."""
    return measured_memory(on, CPU_POINTS if on.machine.kind == "cpu" else CARD_POINTS)


def measured_memory(on: Trials, points: Sequence[Point]) -> Check:
    """A few steps at each point; failed where a card needed more than the plan's interval has."""
    return judged_memory([_at_point(on, point) for point in points])


def judged_memory(figures: list[dict[str, Any]]) -> Check:
    """The verdict: on a card, by what the driver or torch's allocator says; a process' own memory is only told."""
    beyond = [f"{one['micro']} x {one['length']}" for one in figures if _held(one) > one["planned_device_range"][1]]
    if beyond:
        return failed("memory", "prove.reason.memory", {"points": figures}, points=", ".join(beyond))
    return passed("memory", points=figures)


def speed(on: Trials) -> Check:
    """20 steps with the loss from all logits at once and 20 with the loss without them: tokens/s beside the plan's."""
    runs = {way: _paced(on, way) for way in ("plain", "fused")}
    figures: dict[str, Any] = {way: _pace(run_dir) for way, run_dir in runs.items()}
    apart = losses_apart(runs["plain"], runs["fused"], steps=1)
    figures["loss_apart"] = apart
    if apart > _LOSS_LIMIT:
        return failed("speed", "prove.reason.loss", figures, apart=f"{apart:.1e}")
    return passed("speed", **figures)


def synchronisation(on: Trials) -> Check:
    """Calls per step and per micro batch that make the processor wait, by the difference of three trainings.

    What start, rehearsal and the last save wait for is in all of them.
    """
    if on.machine.kind != "cuda":
        return absent("synchronisation", "prove.reason.no_cuda")
    few, more, split = (_observed(on, steps, micro) for steps, micro in ((10, 4), (30, 4), (30, 1)))
    return judged_waits(few, more, split)


def judged_waits(few: dict[str, Any], more: dict[str, Any], split: dict[str, Any]) -> Check:
    """The verdict on trainings of 10 and 30 steps of 2 micro batches, and one of 30 steps of 8."""
    per_step = (more["synchronisations"] - few["synchronisations"]) / 20
    per_micro = (split["synchronisations"] - more["synchronisations"]) / (30 * 6)
    figures = {"per_step": per_step, "per_micro_batch": per_micro, "places": more["places"]}
    if per_micro > 0:
        return failed("synchronisation", "prove.reason.synchronisation", figures, count=f"{per_micro:.2f}")
    return passed("synchronisation", **figures)


def _at_point(on: Trials, point: Point) -> dict[str, Any]:
    name = f"point-{point.micro}-{point.length}"
    run_dir = on.make(name, _text(on.machine, point.length, _STEPS), f"where.micro={point.micro}")
    watch = _CardMemory(on.machine)
    trials.run_program(run_dir, "observed_training", watch.look)
    plan, seen = trials.plan_of(run_dir), files.read_object(run_dir.path / "observed.json")
    return {
        "micro": point.micro,
        "length": point.length,
        **_planned(plan),
        **{key: seen[key] for key in ("allocated_bytes", "reserved_bytes", "process_bytes")},
        "driver_bytes": watch.used_bytes,
    }


def _planned(plan: Plan) -> dict[str, Any]:
    return {
        "planned_allocated_bytes": plan.memory.peak_allocated_bytes,
        "planned_reserved_bytes": plan.memory.peak_reserved_bytes,
        "planned_device_bytes": plan.memory.peak_device_bytes,
        "planned_device_range": list(plan.memory.device_bytes_range),
    }


def _held(one: dict[str, Any]) -> int:
    """What a card held; 0 where that is not known."""
    return max(int(one["driver_bytes"] or 0), int(one["reserved_bytes"] or 0))


def _paced(on: Trials, loss: str) -> RunDir:
    run_dir = on.make(f"pace-{loss}", _text(on.machine, 512, calibration.STEPS), f"where.loss={loss}")
    trials.run_program(run_dir, "train")
    return run_dir


def _pace(run_dir: RunDir) -> dict[str, Any]:
    steps, plan = list(events.steps(run_dir.events_file).values()), trials.plan_of(run_dir)
    found = calibration.of_steps(steps, 0)
    return {
        "tokens_per_second": round(found.tokens_per_second, 1),
        "planned_tokens_per_second": round(plan.speed.tokens_per_second, 1),
        "planned_range": [round(one, 1) for one in plan.speed.tokens_per_second_range],
        "wait_seconds": round(statistics.median(step["wait_seconds"] for step in steps), 6),
        "loss": plan.loss,
        "micro": plan.batch.micro,
        "precision": plan.precision,
    }


def _observed(on: Trials, steps: int, micro: int) -> dict[str, Any]:
    run_dir = on.make(f"waits-{steps}-{micro}", _text(on.machine, 512, steps), f"where.micro={micro}")
    trials.run_program(run_dir, "observed_training")
    return files.read_object(run_dir.path / "observed.json")


def _text(machine: Machine, length: int, steps: int) -> str:
    sizes = _TINY if machine.kind == "cpu" else _LARGE
    return _TEXT.format(**sizes, length=length if machine.kind != "cpu" else min(length, 256), steps=steps)


class _CardMemory:
    """What the driver says that the first card holds beyond what it held before."""

    def __init__(self, machine: Machine) -> None:
        self._index = machine.devices[0].index if machine.kind == "cuda" else -1
        self._before = self._now()
        self._peak = self._before

    def look(self, _: int) -> None:
        """Ask again, while something runs there."""
        if self._before is not None:
            self._peak = max(self._peak or 0, self._now() or 0)

    @property
    def used_bytes(self) -> int | None:
        """The peak; None where there is no card, or its driver does not say."""
        return None if self._before is None or self._peak is None else self._peak - self._before

    def _now(self) -> int | None:
        loads = activity.gpus() if self._index >= 0 else []
        return next((one.memory_used_bytes for one in loads if one.index == self._index), None)
