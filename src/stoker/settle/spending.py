"""What a run has cost so far and will have at its end, by the price in its plan and the time its machine was on."""

import datetime
from dataclasses import dataclass
from typing import Any

from stoker.launch import training
from stoker.rundir import files
from stoker.rundir.layout import RunDir
from stoker.settle import meter


@dataclass(frozen=True)
class Price:
    """What the machine costs."""

    per_hour: float
    currency: str


@dataclass(frozen=True)
class Spent:
    """Money at two moments."""

    so_far: float
    at_end: float
    currency: str


def price(run_dir: RunDir) -> Price | None:
    """The plan's, over all devices that are paid for; None where none is known."""
    try:
        cost = files.read_json(run_dir.plan_file)["cost"]
        return Price(cost["price_per_hour"] * cost["billed_devices"], str(cost["currency"])) if cost else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def spent(run_dir: RunDir, known: Price, seconds_left: float, *, running: bool) -> Spent:
    """By the supervisor's count, or the one of whoever settled the run after it."""
    records = [training.supervision(run_dir), meter.settled(run_dir)]
    seconds = max(_counted(record) for record in records)
    if running:
        seconds = _counted(records[0]) + _since(records[0])
    hours, left = seconds / 3600, seconds_left / 3600
    return Spent(hours * known.per_hour, (hours + left) * known.per_hour, known.currency)


def _counted(record: dict[str, Any]) -> float:
    seconds = record.get("spent_seconds")
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def _since(record: dict[str, Any]) -> float:
    """Seconds since a record was written."""
    try:
        then = datetime.datetime.fromisoformat(record["beat"])
        return max(0.0, (datetime.datetime.now(datetime.timezone.utc) - then).total_seconds())
    except (LookupError, TypeError, ValueError):
        return 0.0
