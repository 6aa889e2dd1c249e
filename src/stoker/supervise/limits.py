"""Budgets and deadlines: what is spent, what is left, and what is held back for the last checkpoint and its copy.

Pure arithmetic on records, shared by the supervisor, by settling and by what shows the cost. It reads no file and stops
nothing.
"""

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from stoker.rundir import files
from stoker.rundir.events import AT_WORK

BUDGETS = ("time", "money")
DEADLINE = "deadline"
Record = dict[str, Any]


@dataclass(frozen=True)
class Clock:
    """How time passes; a campaign has its own."""

    now: Callable[[], float] = time.time
    wait: Callable[[float], None] = time.sleep
    own: Callable[[], float] = time.monotonic
    """Seconds of a clock that nobody sets."""


class SpentTime:
    """Seconds that count against budgets: those of earlier processes, and those since this object was made."""

    def __init__(self, clock: Clock, before_seconds: float = 0.0) -> None:
        self.before_seconds = before_seconds
        self._clock = clock
        self._began = clock.own()

    @property
    def seconds(self) -> float:
        """Until now."""
        return self.before_seconds + self._clock.own() - self._began


def counted_seconds(*records: Record) -> float:
    """What the process that counted the longest has counted; each goes on from the one before."""
    return max(files.number(record.get("spent_seconds")) for record in records)


def trained_seconds(past: Iterable[Record]) -> float:
    """Training time by the events: all that a new machine knows of a budget, and what an orphaned trainer did.

    It is the sum of what the trainer measured by a clock that nobody sets: every step, eval and part of a rehearsal,
    and saves for as long as training stood still. The wall clock, which may be corrected by years, counts only for
    steps that an old log leaves out, and only where it is near what the next step tells of them.
    """
    total, step, last = 0.0, 0, 0.0
    for event in past:
        with contextlib.suppress(*files.FOREIGN):
            kind = event["event"]
            if kind not in AT_WORK:
                continue
            at = datetime.fromisoformat(event["at"]).timestamp()
            if kind == "attempt":
                step = int(files.number(event.get("resumed_step")))
            elif kind == "step":
                total += _steps_seconds(event["step"] - step, files.number(event["seconds"]), at - last)
                step = event["step"]
            else:
                total += files.number(event.get("stall_seconds" if kind == "checkpoint" else "seconds"))
            last = at
    return total


def _steps_seconds(steps: int, last_seconds: float, passed_seconds: float) -> float:
    """What so many steps took, of which only the last was measured; in between the wall clock passed."""
    expected = max(1, steps) * last_seconds
    return passed_seconds if steps > 1 and expected / 2 <= passed_seconds <= expected * 2 else expected


def launch_seconds(launched: str, records: Iterable[Record], now: float) -> float:
    """Since the launch on a rented machine: installing, preparing and copying are billed like training.

    Args:
        launched: When it began, in ISO 8601; empty where nobody says so.
        records: Of supervisors of this run: what they counted is not counted again.
        now: The time.
    """
    if not launched:
        return 0.0
    beats = [str(record.get("beat", "")) for record in records]
    try:
        times = [datetime.fromisoformat(text).timestamp() for text in (launched, *beats) if text]
    except ValueError:
        return 0.0
    return max(0.0, now - max(times))


def seconds_since(record: Record, now: float) -> float:
    """Since a record was written; 0 where it does not say when."""
    try:
        return max(0.0, now - datetime.fromisoformat(record["beat"]).timestamp())
    except files.FOREIGN:
        return 0.0


def left_seconds(limits: Record, spent_seconds: float, now: float) -> dict[str, float]:
    """Until each limit of a plan."""
    given = {word: limits.get(f"{word}_seconds") for word in BUDGETS}
    left = {word: seconds - spent_seconds for word, seconds in given.items() if seconds is not None}
    if limits.get(DEADLINE):
        with contextlib.suppress(*files.FOREIGN):
            left[DEADLINE] = datetime.fromisoformat(limits[DEADLINE]).timestamp() - now
    return left


def first_limit(
    left: dict[str, float], reserve_seconds: float, deadline_reserve_seconds: float
) -> tuple[str, float] | None:
    """The limit that is reached first, and the seconds until training must stop for it.

    Args:
        left: Seconds until each limit.
        reserve_seconds: For the last checkpoint and its copy.
        deadline_reserve_seconds: On top of that, before a platform's hard end.
    """
    until = {word: seconds - reserve_seconds for word, seconds in left.items()}
    if DEADLINE in until:
        until[DEADLINE] -= deadline_reserve_seconds
    return min(until.items(), key=lambda one: one[1], default=None)


def reserve_seconds(save_seconds: float, step_seconds: float, copy_seconds: float) -> float:
    """Held back for the step under way, a last checkpoint and its copy: twice what they took so far."""
    return 2 * (save_seconds + step_seconds + copy_seconds)


def last_copy_seconds(left: dict[str, float], longest_seconds: float, once_seconds: float) -> float:
    """How long the last copy is waited for: until the nearest limit, but always long enough for one copy.

    Args:
        left: Seconds until each limit.
        longest_seconds: Where there is no limit.
        once_seconds: What one copy takes.
    """
    return min([longest_seconds, *(max(once_seconds, seconds) for seconds in left.values())])


def is_mostly_spent(limit_seconds: float | None, spent_seconds: float, share: float) -> bool:
    """Whether so large a share of a budget is spent that the user is warned."""
    return bool(limit_seconds) and spent_seconds >= share * (limit_seconds or 0.0)


def backoff_seconds(failures: int, first_seconds: float, longest_seconds: float) -> float:
    """Before the next try: doubled after each failure in a row."""
    return min(longest_seconds, first_seconds * 2.0 ** min(failures - 1, 20))


def stamp(seconds: float) -> str:
    """A time of the wall clock in ISO 8601, as records have it."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
