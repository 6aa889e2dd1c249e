"""What a run has cost so far and will have cost at its end: the price in its plan times the time its machine was on."""

import time
from dataclasses import dataclass

from stoker.launch import training
from stoker.rundir import files
from stoker.rundir.layout import RunDir
from stoker.settle import settled_record
from stoker.supervise import limits


@dataclass(frozen=True)
class Price:
    """What the machine costs."""

    per_hour: float
    currency: str


@dataclass(frozen=True)
class Spent:
    """Money at two moments."""

    so_far: float
    at_end: float | None
    """None where nobody knows how long the rest takes."""
    currency: str


def price(run_dir: RunDir) -> Price | None:
    """The plan's, over all devices that are paid for; None where none is known."""
    try:
        cost = files.read_json(run_dir.plan_file)["cost"]
        return Price(cost["price_per_hour"] * cost["billed_devices"], str(cost["currency"])) if cost else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def spent(run_dir: RunDir, known: Price, seconds_left: float | None, *, running: bool) -> Spent:
    """By the supervisor's count, or the one of whoever settled the run after it."""
    supervision = training.supervision(run_dir)
    seconds = limits.counted_seconds(supervision, settled_record.read(run_dir))
    if running:
        seconds = limits.counted_seconds(supervision) + limits.seconds_since(supervision, time.time())
    so_far = seconds / 3600 * known.per_hour
    at_end = None if seconds_left is None else so_far + seconds_left / 3600 * known.per_hour
    return Spent(so_far, at_end, known.currency)
