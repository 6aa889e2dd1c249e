"""What the supervisor knows and writes about its run: `supervisor.json`, its heartbeat, and its own events.

A full disk must not end it: what cannot be written now is written at the next beat.
"""

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stoker.rundir import events, files
from stoker.supervise import limits, processes, starting
from stoker.supervise.limits import Clock, SpentTime
from stoker.supervise.renamed_folder import RenamedFolder
from stoker.supervise.settings import SupervisorSettings


@dataclass
class SupervisorStatus:
    """`supervisor.json`."""

    pid: int
    host: str = field(default_factory=socket.gethostname)
    """The machine it is on: others may share the folder."""
    boot: str = field(default_factory=processes.boot)
    """Which boot of it: after another one the supervisor is gone, whatever its record says."""
    state: str = "starting"
    """starting, running, waiting (for nodes, too), planning, stopping, copying, done, stopped or failed."""
    attempt: int = 0
    trainer_pid: int | None = None
    step: int = 0
    committed_step: int = 0
    restarts: int = 0
    fruitless: int = 0
    """Restarts in a row without a newer checkpoint."""
    reason: str = ""
    """Of the newest restart, stop or failure."""
    asked: str = ""
    """Who asked it to stop: user, signal, or a limit."""
    ended: str = ""
    """Why the trainer died where it was asked to stop and did not reach its last checkpoint."""
    trouble: str = ""
    """The newest system error the supervisor itself met."""
    next_retry: str | None = None
    started: str = ""
    beat: str = ""
    spent_seconds: float = 0.0
    """Over all supervisors of this run: what counts against budgets."""
    stops_at: str | None = None
    """When a budget or the platform ends it."""
    stored_step: int | None = None
    """Newest checkpoint whose copy in the store was verified."""
    nodes: dict[str, str] = field(default_factory=dict)
    """The machines of a run of several: joined, lost or away."""
    lost: dict[str, Any] | None = None
    """The newest rank that brought an attempt to its end: rank, node, step, reason."""


class SupervisedRun:
    """A run under supervision: its folder and plan, what is written there, and what is started for it."""

    def __init__(self, run_dir: Path, settings: SupervisorSettings, clock: Clock) -> None:
        self.run_dir = run_dir.resolve()
        self.settings = settings
        self.clock = clock
        self.plan: dict[str, Any] = {}
        self.status = SupervisorStatus(os.getpid(), started=limits.stamp(clock.now()))
        self.spent = SpentTime(clock)
        self._beat_at = 0.0
        self._folder = RenamedFolder(self.run_dir)

    @property
    def stop_file(self) -> Path:
        """Whoever wants the training to stop makes it."""
        return self.run_dir / "stop"

    @property
    def log(self) -> Path:
        """Of the newest attempt."""
        return processes.log_file(self.run_dir, self.status.attempt)

    def read_plan(self) -> None:
        """Take the plan as it is now."""
        self.plan = files.read_if_any(self.run_dir / "plan.json")

    def say(self, state: str, reason: str) -> None:
        """Write supervisor.json; on a full disk the old one stays."""
        self.status.state, self.status.reason = state, reason
        self.status.beat = limits.stamp(self.clock.now())
        self.status.spent_seconds = self.spent.seconds
        self._beat_at = self.clock.own()
        self.write("supervisor.json", asdict(self.status))

    def beat(self) -> None:
        """Write it again every few seconds."""
        if self.clock.own() - self._beat_at >= self.settings.beat_seconds:
            self.say(self.status.state, self.status.reason)

    def write(self, name: str, value: dict[str, Any]) -> None:
        """Replace a small file of the run directory, if the disk takes it."""
        with contextlib.suppress(OSError):
            files.write_unsynced(self.run_dir / name, value)

    def note(self, kind: str, **fields: Any) -> None:
        """Append an event, if the disk takes it."""
        with contextlib.suppress(OSError):
            events.append(self.run_dir / "events.jsonl", kind, attempt=self.status.attempt, **fields)

    def note_error(self, code: str, **fields: Any) -> None:
        """Append an error; the command line has the sentence for it."""
        self.note("error", program="supervisor", error={"code": code, "where": "", "fields": fields})

    @contextlib.contextmanager
    def tolerating(self) -> Iterator[None]:
        """What the system refuses now (a full disk, no new process) is tried again at the next look."""
        try:
            yield
        except OSError as error:
            self.status.trouble = str(error)

    def wait_a_look(self, at_most_seconds: float = float("inf")) -> None:
        """Let time pass until the next look."""
        self.follow_renaming()
        self.clock.wait(min(self.settings.look_seconds, at_most_seconds))

    def follow_renaming(self) -> None:
        """Make the run directory reachable by its path, where it was renamed."""
        self._folder.follow()

    def start_stoker(self, command: str, log: str, *words: str, detached: bool = False) -> "subprocess.Popen[bytes]":
        """Start a subcommand of ours on this run; its output goes to a log where the disk has room for one."""
        run_dir = self.run_dir.resolve() if detached else self.run_dir  # renamed, its old path ends with us
        line = starting.command("stoker", command, run_dir, *words)
        try:
            return starting.start(line, self.run_dir / "logs" / log, detached=detached)
        except OSError:
            return starting.start(line, None, detached=detached)

    def close(self) -> None:
        """The run is known by its present name only, from here on."""
        self._folder.close()
