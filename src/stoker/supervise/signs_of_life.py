"""Whether a trainer hangs: no events, no heartbeat, no growing checkpoint for too long, by the supervisor's own clock.

Before the model is there, any CPU or disk activity of the process counts.
"""

import statistics
from collections import deque
from pathlib import Path

from stoker.supervise import processes
from stoker.supervise.limits import Clock
from stoker.supervise.settings import SupervisorSettings

_MOST_LOOKS = 10
"""A gap between two looks counts as at most so many: a machine that slept did not hang."""


class SignsOfLife:
    """Of one trainer after the other."""

    def __init__(self, run_dir: Path, settings: SupervisorSettings, clock: Clock) -> None:
        """Nothing is seen yet.

        Args:
            run_dir: The run directory.
            settings: How long silence may last.
            clock: How time passes.
        """
        self.silent_seconds = 0.0
        """Without a sign of life."""
        self._run_dir, self._settings, self._clock = run_dir, settings, clock
        self._step_seconds: deque[float] = deque(maxlen=50)
        self._has_model = self._is_heard = False
        self._idle_seconds = 0.0
        self._signs: tuple[float, ...] = ()
        self._used = 0
        self._looked_at = 0.0

    def begin(self) -> None:
        """Watch another trainer."""
        self._has_model = self._is_heard = False
        self.silent_seconds = self._idle_seconds = 0.0
        self._looked_at = self._clock.own()
        self._signs = self._seen()

    def hear(self) -> None:
        """An event of a trainer that has its model."""
        self._has_model = self._is_heard = True

    def time_step(self, seconds: float) -> None:
        """What a step took."""
        self._step_seconds.append(seconds)

    def median_step_seconds(self) -> float:
        """Of the newest steps; 0 before the first."""
        return statistics.median(self._step_seconds) if self._step_seconds else 0.0

    def hangs(self, pid: int, *, is_asked: bool) -> bool:
        """Whether there was no sign of life for too long; each call is a look.

        Args:
            pid: The trainer.
            is_asked: Whether it was asked to stop.
        """
        now = self._clock.own()
        passed = elapsed(self._looked_at, now, self._settings)
        self._looked_at = now
        if self._is_heard:
            self._is_heard, self.silent_seconds, self._idle_seconds = False, 0.0, 0.0
            return False
        signs, before, used = self._seen(), self._signs, 0 if self._has_model else processes.used(pid)
        self._has_model = self._has_model or signs[0] != before[0]
        self.silent_seconds = self.silent_seconds + passed if signs == before else 0.0
        self._idle_seconds = self._idle_seconds + passed if used and used == self._used else 0.0
        self._signs, self._used = signs, used
        is_idle = self._idle_seconds > self._settings.hang_floor_seconds
        return is_idle or self.silent_seconds > self._patience_seconds(is_asked=is_asked)

    def _seen(self) -> tuple[float, ...]:
        folders = (_newest_change(self._run_dir / parent) for parent in ("checkpoints", "artifacts"))
        return (_modified(self._run_dir / "heartbeat"), *folders)

    def _patience_seconds(self, *, is_asked: bool) -> float:
        patience = self._settings.start_seconds
        if self._has_model:
            patience = self._settings.hang_floor_seconds + self._settings.hang_steps * self.median_step_seconds()
        return min(patience, self._settings.stop_seconds) if is_asked else patience


def elapsed(before: float, now: float, settings: SupervisorSettings) -> float:
    """Seconds between two looks, as far as they count as silence."""
    return min(now - before, _MOST_LOOKS * settings.look_seconds)


def is_writing(run_dir: Path) -> bool:
    """Whether a checkpoint or a finished model is half written; also while a folder is being renamed."""
    try:
        marks = [*(run_dir / "checkpoints").glob(".step-*.tmp"), *(run_dir / "checkpoints").glob("step-*/.writing")]
        return bool(marks) or (run_dir / "artifacts" / ".final.tmp").exists()
    except OSError:
        return True


def _newest_change(folder: Path) -> float:
    """When anything in the folders of a folder was written last; they come and go meanwhile."""
    try:
        inner = [path for child in folder.iterdir() for path in (child, *(child.iterdir() if child.is_dir() else ()))]
    except OSError:
        return 0.0
    return max(map(_modified, inner), default=0.0)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
