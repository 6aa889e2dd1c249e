"""A plan beside what happened: memory, speed, time and money, each with its interval and whether that held."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from stoker.api.run_progress import RunProgress
from stoker.errors import StokerError
from stoker.plan.plan import Plan
from stoker.report.run_history import RunHistory
from stoker.rundir import files
from stoker.rundir.layout import RunDir


@dataclass(frozen=True)
class PlannedFigure:
    """One figure of a plan, and what became of it."""

    name: Literal["memory_bytes", "tokens_per_second", "time_seconds", "money"]
    planned: float
    low: float
    high: float
    measured: float | None
    """None where it was not measured; of time and money, all of the run's steps are meant."""
    currency: str = ""

    @property
    def held(self) -> bool | None:
        """Whether it lies in the interval; None where nothing was measured."""
        return None if self.measured is None else self.low <= self.measured <= self.high


def read_plan(run_dir: RunDir) -> Plan | None:
    """A run's plan; one that was never planned, or planned by a Stoker that wrote another format, has none."""
    try:
        return files.read_record(run_dir.plan_file, Plan)
    except (FileNotFoundError, StokerError):
        return None


def compare(plan: Plan, history: RunHistory, progress: RunProgress) -> list[PlannedFigure]:
    """The figures that a plan states. Time and money are those of the steps alone, as the plan's are.

    Of a run that is not done they are measured as far as it came, at the pace it had, for all of its steps.
    """
    memory, pace, cost = plan.memory, plan.speed, plan.cost
    used = memory.peak_reserved_bytes if plan.device == "cuda" else memory.peak_device_bytes
    runtime = memory.peak_device_bytes - used  # what the driver shows, and no step measures
    seconds = history.seconds_per_step * (progress.total_steps or plan.steps.total)
    found = [
        PlannedFigure(
            "memory_bytes",
            used,
            max(0, memory.device_bytes_range[0] - runtime),
            memory.device_bytes_range[1] - runtime,
            history.peak_bytes or None,
        ),
        PlannedFigure(
            "tokens_per_second",
            pace.tokens_per_second,
            *pace.tokens_per_second_range,
            history.tokens_per_second or None,
        ),
        PlannedFigure("time_seconds", plan.time_seconds, *plan.time_seconds_range, seconds or None),
    ]
    if cost and cost.amount:
        paid = seconds / 3600 * cost.price_per_hour * cost.billed_devices
        found.append(PlannedFigure("money", cost.amount, *cost.amount_range, paid or None, cost.currency))
    return found


def to_json(figures: list[PlannedFigure]) -> list[dict[str, Any]]:
    """The figures for `--json`."""
    return [{**asdict(one), "held": one.held} for one in figures]
