"""Follows the events a trainer writes: how far it is, what it committed, which errors it recorded, how it ended.

A run directory may come from elsewhere: an event that is not as ours are says nothing.
"""

import contextlib
from collections.abc import Iterator

from stoker.rundir import events, files
from stoker.rundir.events import Event
from stoker.supervise.judge import BAD_STEP, Ended
from stoker.supervise.signs_of_life import SignsOfLife
from stoker.supervise.status import SupervisedRun


class TrainerEvents:
    """What the events of a run have said so far; writes steps and progress into the status."""

    def __init__(self, run: SupervisedRun, life: SignsOfLife) -> None:
        """Follow a run from its first event on.

        Args:
            run: The run.
            life: Told of every event of a trainer at work.
        """
        self.attempt = Ended(0)
        """The newest one, as far as it is known."""
        self.errors: list[Event] = []
        """Of this attempt."""
        self.save_seconds = 0.0
        """What the newest checkpoint took."""
        self.warned: set[tuple[str, float]] = set()
        """Budgets, each with its limit, that the user was warned of."""
        self.passed_over = 0
        """Steps passed over since the newest progress."""
        self.faults: dict[str, int] = {}
        """Since then, too: at which step the program failed for which reason."""
        self._run, self._life = run, life
        self._path = run.run_dir / "events.jsonl"
        self._furthest = 0
        self._offset = 0

    def recall(self) -> list[Event]:
        """Take the events of earlier attempts; what they committed is no progress of this supervisor."""
        past = self._seen(events.recent(self._path))
        for event in past:
            self.take(event)
        self._furthest = 0
        return past

    def begin(self) -> None:
        """Another attempt."""
        self.attempt, self.errors = Ended(0, step=self._run.status.committed_step), []

    def follow(self) -> None:
        """Take what was written since the last look."""
        for event in self._new():
            self.take(event)

    def _new(self) -> list[Event]:
        return self._seen(events.follow(self._path, self._offset))

    def _seen(self, following: Iterator[tuple[Event, int]]) -> list[Event]:
        found = []
        with contextlib.suppress(OSError):
            for event, behind in following:
                self._offset = behind
                found.append(event)
        return [event for event in found if isinstance(event["event"], str)]

    def take(self, event: Event) -> None:
        """Take what an event says."""
        if event["event"] in events.AT_WORK:
            self._life.hear()
        with contextlib.suppress(*files.FOREIGN):
            self._take(event)

    def _take(self, event: Event) -> None:
        kind, status = event["event"], self._run.status
        if kind == "attempt":
            step = status.step = self.attempt.step = int(event["resumed_step"])
            self._progress(step)  # committed, and killed before its event was written
            if step < (status.stored_step or 0):
                status.stored_step = None
        elif kind == "step":
            status.step = self.attempt.step = int(event["step"])
            self._life.time_step(files.number(event["seconds"]))
        elif kind == "rehearsal" and event["part"] == "save":
            self.save_seconds = max(self.save_seconds, files.number(event["seconds"]))
        elif kind == "checkpoint":
            self.save_seconds = files.number(event["seconds"])
            self._progress(int(event["step"]))
        elif kind == "error" and event["program"] == "train":
            self._take_error(event["error"])
        elif kind == "end":
            self.attempt.status = event["status"]
        elif kind == "warning":
            self.warned.add((event["reason"], event["limit_seconds"]))

    def _take_error(self, error: Event) -> None:
        self.errors.append(error)
        self.attempt.codes.append(str(error["code"]))
        if error["code"] in BAD_STEP:
            self.attempt.bad_step = int(error["fields"]["step"])

    def _progress(self, step: int) -> None:
        """The newest checkpoint; after a damaged one it may be an older one, which is no progress."""
        self._run.status.committed_step = step
        if step > self._furthest:
            self._furthest = step
            self._run.status.fruitless = self.passed_over = 0
            self.faults.clear()
