"""Background saves: the state is copied to the host between steps; a thread writes and commits it.

A save that fails is dropped: the last good checkpoint stays, training continues, and the next try follows a pause.
"""

import contextlib
import errno
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.engine.shares import Share
from stoker.engine.writers import Writers
from stoker.errors import StokerError
from stoker.plan import save_interval
from stoker.rundir import checkpoints, files, filesystem
from stoker.rundir.events import EventLog

_PAUSES_SECONDS = (15.0, 30.0, 60.0, 120.0, 240.0, 600.0)
"""Pauses before a retry, by consecutive failures."""
_LAST_TRIES_SECONDS = (1.0, 4.0, 10.0)
"""Pauses between retries of a run's last save: a platform's grace period is about 30 seconds."""
_SMALL_FILES_BYTES = 1 << 16
"""The commit record, and directory entries."""
_FILES = 32
_UNMEASURED_SECONDS = 600.0
"""The interval until a save has been measured."""


@dataclass(frozen=True)
class Copied:
    """A step's state on the host, and the function that writes it into a folder."""

    write: Callable[[Path], None]
    """On the first rank: everything, or everything but the bytes of shares."""
    bytes: int
    """Of the checkpoint."""
    share: Share | None = None
    """What this rank writes, if all write together."""


@dataclass(frozen=True)
class SaveJob:
    """One save."""

    step: int
    copied: Copied
    facts: dict[str, Any]
    best: int | None
    """The best step so far, where one is tracked."""
    stall_seconds: float
    """How long training paused for the copy."""


@dataclass
class Saver:
    """Writes checkpoints of one run, one at a time; the same ones on every rank that writes."""

    folder: Path
    events: EventLog
    keep: int
    background: bool
    renames: bool = True
    between_failures_seconds: float = 0.0
    shares_cores: bool = False
    """Whether writing slows training: on a CPU both share the cores."""
    writers: Writers = field(default_factory=Writers)

    committed: int = -1
    """The newest step committed by this process."""
    refused: int = errno.EIO
    """The errno of the last dropped save."""
    cost_seconds: float | None = None
    """Training time lost to the last save."""
    size_bytes: int = 0
    """Size of the last checkpoint; 0 before the first."""
    _write_seconds: float = 0.0
    _failures: int = 0
    _retry_at: float = 0.0
    _owed: SaveJob | None = None
    """A dropped save of the best step: later saves cannot replace it, so its copy is kept and written first."""
    _thread: threading.Thread | None = None
    _surprise: list[BaseException] = field(default_factory=list)
    _checks: list[threading.Thread] = field(default_factory=list)

    # ---- read between steps

    @property
    def failed(self) -> bool:
        """Whether the newest save was dropped."""
        return self._failures > 0

    def is_due(self, *, due: bool) -> bool:
        """Whether to save now: as scheduled, or a retry after the pause."""
        if self.failed:
            trying = self._thread is not None and self._thread.is_alive()
            return time.monotonic() >= self._retry_at and not trying
        return due

    @property
    def interval_seconds(self) -> float:
        """The interval of `save.every: auto`."""
        if self.cost_seconds is None:
            return _UNMEASURED_SECONDS
        return save_interval.interval_seconds(self.cost_seconds, self.between_failures_seconds, self._write_seconds)

    # ---- saving

    def begin(self, job: SaveJob) -> None:
        """Start writing a step's copied state; returns at once if in the background."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(job,), name=f"save-{job.step}")
        self._thread.start()
        if not self.background:
            self.wait()

    def join(self) -> None:
        """Wait for the write in progress."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wait(self) -> None:
        """Wait for the write in progress; errors that are not the disk's are raised here."""
        self.join()
        if self._surprise:
            raise self._surprise.pop()

    def require(self, check: Callable[[], None]) -> None:
        """Add a background check; its error ends the run before anything more is committed."""

        def run() -> None:
            try:
                check()
            except Exception as error:  # noqa: BLE001  # raised where the run waits for saves
                self._surprise_by(error)

        self._checks.append(threading.Thread(target=run, name="check", daemon=True))

    def start_checks(self) -> None:
        """Start the added checks."""
        for check in self._checks:
            if check.ident is None:
                check.start()

    def require_checked(self) -> None:
        """Wait for every check."""
        self.start_checks()
        for check in self._checks:
            check.join()
        self.wait()

    def settle(self, job: SaveJob) -> None:
        """The last save of a run: waited for, and retried a few times."""
        self.wait()
        for pause in _LAST_TRIES_SECONDS:
            if self.committed == job.step:
                return
            time.sleep(pause)
            self.begin(job)
            self.wait()

    def measure(self, stall_seconds: float, write_seconds: float, size_bytes: int) -> None:
        """Record a save's cost: seconds of the copy, seconds of the write, and bytes."""
        self._measured(stall_seconds + (write_seconds if self._in_the_way else 0.0), write_seconds)
        self.size_bytes = size_bytes

    @property
    def _in_the_way(self) -> bool:
        return self.shares_cores or not self.background

    def _measured(self, cost_seconds: float, write_seconds: float) -> None:
        before = self.interval_seconds
        self.cost_seconds, self._write_seconds = cost_seconds, write_seconds
        if self.between_failures_seconds and not 0.5 < before / self.interval_seconds < 2:
            self.events.write(
                "interval",
                seconds=round(self.interval_seconds, 1),
                cost_seconds=round(cost_seconds, 3),
                between_failures_seconds=self.between_failures_seconds,
            )

    def _run(self, job: SaveJob) -> None:
        if self._owed is not None and self._owed.step != job.best:
            self._owed = None  # superseded by a better step
        owed = [self._owed] if self._owed is not None and self._owed.step != job.step else []
        for one in (*owed, job):
            self._try(one)
            if self.failed:
                return

    def _try(self, job: SaveJob) -> None:
        try:
            self._save(job)
            self._owed = None if self._owed is job else self._owed
        except Exception as error:  # noqa: BLE001  # sorted below; no error may be lost in a thread
            number = files.error_number(error)
            if number is None:
                self._surprise_by(error)
            else:
                self._drop(job, number)

    def _surprise_by(self, error: Exception) -> None:
        """Raised in `wait`; logged at once, because something else may end the run first."""
        with contextlib.suppress(OSError):  # the log may be on the same disk
            traceback.print_exception(error)
        self._surprise.append(error)

    def _save(self, job: SaveJob) -> None:
        if self.writers.first:
            with self.writers.leading():
                self._commit(job)
        elif job.copied.share is not None:
            self.writers.assist(job.copied.share, self.folder)
        self.committed, self._failures = max(self.committed, job.step), 0

    def write(self, folder: Path, job: SaveJob) -> None:
        """On the first rank: write a checkpoint and commit it in a folder, which is the saver's own or inside it."""
        with checkpoints.writing(folder, job.step, renames=self.renames, **job.facts) as aside:
            job.copied.write(aside)
            self.writers.share_out(job.copied.share, aside, self.folder)
            written = sum(size for path, size in files.sizes_below(aside).items() if path.suffix == ".safetensors")
            if written < job.copied.bytes:  # the digests that seal it would be of what is there
                raise OSError(errno.EIO, f"{written:,} of {job.copied.bytes:,} bytes were written", str(aside))

    def _commit(self, job: SaveJob) -> None:
        started = time.perf_counter()
        self.folder.mkdir(exist_ok=True)
        filesystem.require(self.folder, self._needed(job), _FILES)
        self.write(self.folder, job)
        written = time.perf_counter() - started
        made = checkpoints.read_commit(self.folder / checkpoints.folder_name(job.step))
        if isinstance(made, str):
            raise OSError(errno.EIO, made)
        self.size_bytes = made.total_bytes
        checkpoints.rotate(self.folder, self.keep, {job.best} if job.best else set(), renames=self.renames)
        self.measure(job.stall_seconds, time.perf_counter() - started, self.size_bytes)
        self.events.write(
            "checkpoint",
            step=job.step,
            seconds=round(job.stall_seconds + written, 3),
            stall_seconds=round(job.stall_seconds + (0 if self.background else written), 3),
            bytes=self.size_bytes,
            best=job.step == job.best,
            digest=made.digest,
            writers=self.writers.count,
        )

    def _needed(self, job: SaveJob) -> int:
        return max(self.size_bytes, job.copied.bytes) + _SMALL_FILES_BYTES

    def _drop(self, job: SaveJob, number: int) -> None:
        """Report the dropped save and the next retry. The last good checkpoint is untouched."""
        pause = _PAUSES_SECONDS[min(self._failures, len(_PAUSES_SECONDS) - 1)]
        self._failures += 1
        self.refused = number
        if job.step == job.best:
            self._owed = job
        self._retry_at = time.monotonic() + pause
        free, kept = self._left()
        error = StokerError(
            "STK419",
            step=job.step,
            reason=f"{errno.errorcode.get(number, number)}: {os.strerror(number)}",
            needed=f"{self._needed(job):,}",
            free="?" if free is None else f"{free:,}",
            folder=self.folder,
            kept=kept,
            pause=f"{pause:g}",
        )
        with contextlib.suppress(OSError):  # the log may be on the same disk
            sys.stderr.write(f"{error}\n")
        self.events.write(
            "save_failed",
            step=job.step,
            error=error.to_json(),
            needed_bytes=self._needed(job),
            free_bytes=free,
            retry_seconds=pause,
        )

    def _left(self) -> tuple[int | None, int | str]:
        """Free bytes and the newest committed step; unknown if the disk is gone."""
        try:
            kept = checkpoints.committed(self.folder)
            return filesystem.room(self.folder).free_bytes, kept[-1].step if kept else "-"
        except OSError:
            return None, "?"
