"""Copies of checkpoints in the run's store, by `stoker push` in the background, and a last one at the end."""

import subprocess

from stoker.errors import EXIT_DONE, EXIT_USER
from stoker.supervise.status import SupervisedRun


class StoreCopies:
    """One copy at a time; one that failed is tried again, ever later."""

    def __init__(self, run: SupervisedRun) -> None:
        self.seconds = 0.0
        """What the newest copy took."""
        self._run = run
        self._push: subprocess.Popen[bytes] | None = None
        self._step: int | None = None
        self._began = 0.0
        self._not_before = 0.0
        self._failures = 0
        self._refused: int | None = None

    def start_newest(self) -> None:
        """Start a copy of the newest checkpoint, where there is none and none is under way."""
        if not self._run.plan.get("store") or not self._is_idle():
            return
        newest = self._run.status.committed_step
        is_wanted = newest and newest not in (self._run.status.stored_step, self._refused)
        if is_wanted and self._now() >= self._not_before:
            self._step = newest
            self._began = self._now()
            try:
                self._push = self._run.start_stoker("push", "store.log")
            except OSError:
                self._fail()
                raise

    def _is_idle(self) -> bool:
        """Whether no copy is under way; takes the result of one that has ended."""
        if self._push is None:
            return True
        code = self._push.poll()
        if code is None:
            return False
        self._push = None
        if code == EXIT_DONE:
            self._run.status.stored_step, self._failures = self._step, 0
            self.seconds = self._now() - self._began
        elif code == EXIT_USER:
            self._refused = self._step  # waiting would not help: the next checkpoint asks again
        else:
            self._fail()
        return True

    def _fail(self) -> None:
        self._failures += 1
        self._not_before = self._now() + self._run.settings.pause_seconds(self._failures)

    def finish(self, seconds: float, *, failed: bool) -> bool:
        """Whether the store has a verified copy that was started after the trainer's end.

        Args:
            seconds: How long to try; a connection may be down.
            failed: Whether the run failed: then one copy is tried, if the newest checkpoint is not there yet.
        """
        status = self._run.status
        if not self._run.plan.get("store") or not status.committed_step:
            return True
        self._run.say("copying", status.reason)
        self._not_before, self._failures, self._refused = 0.0, 0, None
        if not failed:
            self._step = status.stored_step = None  # an earlier copy may have missed the finished model
        ended, newest = self._now(), status.committed_step
        while self._now() < ended + seconds and newest not in (status.stored_step, self._refused):
            if failed and self._is_idle() and self._began > ended:
                break
            with self._run.tolerating():
                self.start_newest()
            self._run.wait_a_look()
            self._run.beat()
        if self._push is not None:
            self._push.kill()
            self._push.wait()
        return status.stored_step == newest

    def _now(self) -> float:
        return self._run.clock.own()
