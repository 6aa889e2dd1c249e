"""Measures the first steps of a run on this machine, and what time and money are left at that pace."""

from collections.abc import Callable
from dataclasses import dataclass

from stoker.api import preparation
from stoker.config import load
from stoker.config.load import RunFile
from stoker.facts import setup_times
from stoker.launch import calibration, plan_inputs
from stoker.launch.calibration import Measured
from stoker.plan import make, money
from stoker.plan.make import Found
from stoker.plan.plan import Cost
from stoker.rent import bill
from stoker.rent.bill import Span
from stoker.rundir import events


@dataclass(frozen=True)
class Calibration:
    """What was predicted, what was measured, and what is left."""

    found: Found
    measured: Measured
    done_steps: int
    seconds: tuple[float, float, float]
    """Time left: expected, least, most."""
    cost: Cost | None
    """Money left, where a price is known."""
    setup: dict[str, float]
    """Seconds besides training, by part: what `stoker train` spends here, with the data prepared."""

    @property
    def stay(self) -> Span:
        """Both together: expected, least, most."""
        return bill.span(self.seconds, self.setup)

    @property
    def comparable_bytes(self) -> int:
        """Predicted memory: on a GPU the allocator's figure is measured, on a processor all of the process."""
        used = self.found.way.memory
        return used.reserved if self.found.inputs.machine.kind == "cuda" else used.device


def calibrate(name: str, run_file: RunFile, on_step: Callable[[int], None]) -> Calibration:
    """Train a few steps aside, under the same plan."""
    with run_file.located(), preparation.created(run_file) as run_dir:
        preparation.ensure(run_dir)
        on = plan_inputs.machine(None, run_file.run)
        found = make.find(plan_inputs.inputs(run_file, run_dir, on))
        few = [*run_file.overrides, f"train.steps={min(calibration.STEPS, found.steps.total)}"]
        measured = calibration.measure(load.load(name, few), run_dir, on, on_step)
    done = max(events.newest_steps(run_dir.events_file, 1), default=0)
    left = found.tokens * (found.steps.total - done) / found.steps.total
    slowest, fastest = measured.tokens_per_second_range
    seconds = left / measured.tokens_per_second, left / fastest, left / slowest
    cost = money.cost(seconds, found.billed_devices, found.inputs.offer, found.inputs.machine.nodes)
    return Calibration(found, measured, done, seconds, cost, setup_seconds(found, measured))


def setup_seconds(found: Found, measured: Measured) -> dict[str, float]:
    """Seconds besides training; an evaluation is as much faster or slower than planned as the steps are."""
    parts = bill.setup(found, setup_times.LOCAL)
    factor = found.tokens_per_second[0] / measured.tokens_per_second
    return {part: seconds * (factor if part == "evaluation" else 1.0) for part, seconds in parts.items()}
