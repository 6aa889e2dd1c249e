"""A run of the runs folder: its state, figures, events, checkpoints and artifacts, read from its files as they grow.

Never part of the training: a handle reads what any terminal reads, and asks to stop as `stoker stop` does.
"""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker.api import stopping
from stoker.api.plan_page import PlanPage
from stoker.api.run_progress import RunProgress, wait_a_little
from stoker.api.sentences import to_log
from stoker.errors import StokerError
from stoker.launch import training
from stoker.plan.plan import Plan
from stoker.rundir import checkpoints, events, files, layout
from stoker.rundir.layout import RunDir


def open_run(name: str | Path) -> "RunHandle":
    """A run that was trained or is being trained, by its name (see `stoker runs`) or its folder."""
    return RunHandle(layout.find(str(name)))


class RunHandle:
    """What is known of a run now; every property reads it anew.

    Args:
        run_dir: The run directory.
        process: The supervisor, where this process started it.
        start_byte: Where in the run's events `events` begins.
    """

    def __init__(self, run_dir: RunDir, process: subprocess.Popen[bytes] | None = None, start_byte: int = 0) -> None:
        self._run_dir = run_dir
        self._process = process
        self._start_byte = start_byte

    @property
    def name(self) -> str:
        """The run's name."""
        return self._run_dir.name

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._run_dir.path

    @property
    def state(self) -> str:
        """`new`, `running`, `stopped`, `done`, `failed` or `interrupted`; of a run elsewhere, what was last known."""
        return self._progress().state

    @property
    def is_running(self) -> bool:
        """Whether it is trained now."""
        self._reap()
        # A supervisor that was just started has not written its pid yet.
        lives = self._process is not None and self._process.returncode is None
        return lives or training.is_running(self._run_dir)

    @property
    def figures(self) -> dict[str, Any]:
        """Step, loss, pace, time left, money and more, under the names of `stoker watch --json`."""
        return self._progress().figures()

    @property
    def losses(self) -> dict[int, float]:
        """The training loss of each step."""
        found = sorted(events.steps(self._run_dir.events_file).items())
        return {step: loss for step, event in found if (loss := events.loss(event)) is not None}

    @property
    def eval_losses(self) -> dict[int, float]:
        """The loss on the eval split, by the step after which it was measured."""
        found = (event for event in events.skim(self._run_dir.events_file) if event["event"] == "eval")
        return {event["step"]: float(event["eval_loss"]) for event in found if events.is_whole(event)}

    @property
    def checkpoints(self) -> dict[int, Path]:
        """The committed checkpoints' folders, by step."""
        return {one.commit.step: one.path for one in checkpoints.committed(self._run_dir.checkpoints)}

    @property
    def artifacts(self) -> dict[str, Path]:
        """The folders of finished models by name: `final`, `merged`, `export` and others."""
        found = (path for path in sorted(self._run_dir.artifacts.glob("[!.]*")) if path.is_dir())
        return {path.name: path for path in found}

    @property
    def plan(self) -> PlanPage:
        """The plan it is trained by."""
        if not self._run_dir.plan_file.exists():
            raise StokerError("STK515", name=self.name)
        return PlanPage.of(files.read_record(self._run_dir.plan_file, Plan))

    @property
    def error(self) -> StokerError | None:
        """Why it failed, where it wrote that down."""
        progress = self._progress()
        return progress.problem if progress.error else None

    def events(self) -> Iterator[dict[str, Any]]:
        """Events as they are written, until the run ends; of an opened run those of the past first."""
        read_bytes, running = self._start_byte, True
        while running:
            # Looked at before reading: what a process writes last is still seen.
            running = self.is_running
            for event, behind in events.follow(self._run_dir.events_file, read_bytes):
                yield event
                read_bytes = behind
            if running:
                wait_a_little()

    def wait(self, timeout_seconds: float | None = None) -> str:
        """Wait until the run ends, or for so long; returns its state. The error of a run that failed is raised."""
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while self.is_running:
            if until is not None and time.monotonic() >= until:
                return self.state
            wait_a_little()
        if self.state in ("failed", "interrupted"):
            raise self.error or self._died()
        return self.state

    def stop(self) -> str:
        """Ask for a committed checkpoint at the next step boundary, and wait until the run has ended."""
        stopping.stop(self._run_dir, to_log)
        return self.wait()

    def ask_to_stop(self) -> None:
        """Ask, without waiting."""
        training.ask_to_stop(self._run_dir)

    def __repr__(self) -> str:
        progress = self._progress()
        return f"<run {self.name}: {progress.state}, step {progress.done_steps}/{progress.total_steps}>"

    def _progress(self) -> RunProgress:
        self._reap()
        progress = RunProgress(self._run_dir)
        progress.update()
        return progress

    def _died(self) -> StokerError:
        """It ended without a word."""
        code = self._process.returncode if self._process else "-"
        return StokerError("STK409", program="train", exit_code=code, log=training.newest_log(self._run_dir))

    def _reap(self) -> None:
        """A child that ended stays in the list of processes until its parent asks for its code."""
        if self._process:
            self._process.poll()
