"""Watches the limits of a run: budgets, the platform's deadline, and the cloud's spot notices.

Says when training must stop and how long it may still take; the arithmetic is in `limits.py`.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from stoker import env
from stoker.supervise import limits
from stoker.supervise.copying import StoreCopies
from stoker.supervise.signs_of_life import SignsOfLife, is_writing
from stoker.supervise.status import SupervisedRun
from stoker.supervise.trainer_events import TrainerEvents

HOOKS = (env.WEBHOOK, env.AUTODL_TOKEN, env.NOTIFY_COMMAND)
"""Where the user wants to be notified."""
_CLOUD = "169.254.169.254"
_ENDLESS_SECONDS = 1e9


class LimitWatch:
    """Of one run."""

    def __init__(self, run: SupervisedRun, events: TrainerEvents, life: SignsOfLife, copies: StoreCopies) -> None:
        """Watch a run's limits.

        Args:
            run: The run.
            events: Knows what a save took, and what was warned of.
            life: Knows what a step takes.
            copies: Knows what a copy took.
        """
        self._run, self._events, self._life, self._copies = run, events, life, copies
        self._notices: subprocess.Popen[bytes] | None = None
        self._taken_at: float | None = None
        self._notifying: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def asking_for_notices(self) -> Iterator[None]:
        """Have a program beside this one ask the cloud: if that hangs, this one does not. It ends with us."""
        address = env.read(env.METADATA, _CLOUD)
        program = Path(__file__).with_name("spot_notices.py")
        if address != "off":
            with contextlib.suppress(OSError):  # no new process: notices are a bonus
                self._notices = subprocess.Popen(  # noqa: S603  # our own program, no shell
                    [sys.executable, "-I", str(program), address, str(self._run.settings.notice_seconds)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=os.name != "nt",
                )
        try:
            yield
        finally:
            if self._notices is not None:
                self._notices.kill()
                self._notices.communicate()

    def reached(self) -> str:
        """The limit that is reached, or nothing; each leaves room for a last checkpoint and its copy."""
        status, settings = self._run.status, self._run.settings
        if (taken_at := self._notice()) is not None:
            status.stops_at = limits.stamp(taken_at)
            return "notice"
        steps, copy = self._life.median_step_seconds(), self._copies.seconds
        reserve = limits.reserve_seconds(self._events.save_seconds, steps, copy)
        first = limits.first_limit(self.left_seconds(), reserve, settings.deadline_reserve_seconds)
        status.stops_at = limits.stamp(self._run.clock.now() + first[1]) if first else None
        return first[0] if first and first[1] <= 0 else ""

    def _notice(self) -> float | None:
        """When the cloud takes this machine back, where it has said so."""
        if self._notices is not None and self._notices.poll() is not None:
            said = self._notices.communicate()[0]
            self._notices = None
            self._taken_at = float(said) if said else None
        return self._taken_at

    def left_seconds(self) -> dict[str, float]:
        """Until each limit."""
        plan, clock = self._run.plan, self._run.clock
        return limits.left_seconds(plan.get("limits", {}), self._run.spent.seconds, clock.now())

    def is_overdue(self, asked: str) -> bool:
        """Whether a limit has passed, and the trainer that was asked to stop is not about to commit.

        A commit syncs and digests its files for long without a sign of life; a half-written one on the disk is one.
        """
        settings = self._run.settings
        late = -self.left_seconds().get(asked, _ENDLESS_SECONDS)
        if late < settings.overtime_seconds:
            return False
        is_busy = self._life.silent_seconds <= settings.silent_seconds or is_writing(self._run.run_dir)
        return not is_busy or late > settings.stop_seconds

    def last_copy_seconds(self) -> float:
        """How long the last copy may take; with a notice, until the machine is taken back."""
        settings = self._run.settings
        once = settings.deadline_reserve_seconds + 2 * self._copies.seconds
        room = limits.last_copy_seconds(self.left_seconds(), settings.copy_seconds, once)
        return room if self._taken_at is None else min(room, self._taken_at - self._run.clock.now())

    def warn(self) -> None:
        """Once for each budget, when most of it is spent."""
        spent = round(self._run.spent.seconds, 1)
        for word in limits.BUDGETS:
            limit = self._run.plan.get("limits", {}).get(f"{word}_seconds")
            is_due = limits.is_mostly_spent(limit, spent, self._run.settings.warning_share)
            if is_due and (word, limit) not in self._events.warned:
                self._events.warned.add((word, limit))
                self._run.note("warning", reason=word, spent_seconds=spent, limit_seconds=limit)
                if wants_news():
                    self._notifying = self._run.start_stoker("settle", "settle.log", "--warning", word)


def wants_news() -> bool:
    """Whether the user has named a way to be notified."""
    return any(env.read(hook) for hook in HOOKS)
