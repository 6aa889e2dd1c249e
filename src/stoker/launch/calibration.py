"""Measures a run on this machine: its first steps, by the real training program, in a scratch folder."""

import math
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.config.load import RunFile
from stoker.errors import StokerError
from stoker.facts.machine import Machine
from stoker.launch import plan_inputs, programs, training
from stoker.plan.make import make_plan
from stoker.rundir import events, files, layout
from stoker.rundir.layout import RunDir
from stoker.supervise import processes

STEPS = 20
_WARM_UP = 5
"""Steps in which kernels are chosen and caches fill; they are not counted where there are more."""
_NINE_IN_TEN = 1.75
"""Standard errors on each side that hold 90 %, of some 15 values."""
_LOOK_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the first steps showed."""

    steps: int
    """Steps that were counted."""
    tokens_per_second: float
    tokens_per_second_range: tuple[float, float]
    """90 % interval of the mean, by the spread of the steps."""
    memory_bytes: int
    """Peak: of the allocator on a GPU, of the process on a CPU; 0 where it cannot be measured."""


def measure(run_file: RunFile, run_dir: RunDir, on: Machine, on_step: Callable[[int], None]) -> Measured:
    """Train the first steps beside a run whose data is prepared.

    Args:
        run_file: The run with `train.steps` lowered to `STEPS`.
        run_dir: Where the data is.
        on: This machine.
        on_step: Called with the number of steps done.
    """
    training.require_idle(run_dir)
    with _scratch(run_dir) as scratch:
        layout.write(scratch, run_file)
        shutil.copytree(run_dir.data, scratch.data, copy_function=files.link)
        plan = make_plan(plan_inputs.inputs(run_file, scratch, on))
        written = plan.model_dump()
        files.write_json(scratch.plan_file, written)
        programs.check_engine()
        meeting = processes.meeting_place(written)
        process = processes.start_trainer(scratch.path.resolve(), written, 1, meeting)
        try:
            peak = _follow(process, scratch, on_step, min(STEPS, plan.steps.total))
        finally:
            processes.terminate(process.pid)
            process.wait()
            if meeting:
                shutil.rmtree(meeting, ignore_errors=True)
        return of_steps(list(events.steps(scratch.events_file).values()), peak if plan.strategy == "single" else 0)


@contextmanager
def _scratch(run_dir: RunDir) -> Iterator[RunDir]:
    """A run directory beside the data, removed afterwards; after an error it stays, for its log."""
    path = Path(tempfile.mkdtemp(prefix="calibrate-", dir=run_dir.path))
    try:
        yield RunDir(path)
    except StokerError:
        raise
    except BaseException:
        shutil.rmtree(path)
        raise
    shutil.rmtree(path)


def _follow(process: subprocess.Popen[bytes], scratch: RunDir, on_step: Callable[[int], None], wanted: int) -> int:
    """Wait for the last step; the process' own peak memory."""
    peak = 0
    while True:
        ended = process.poll() is not None
        peak = _resident_bytes(process.pid) or peak
        done = max(events.steps(scratch.events_file), default=0)
        on_step(done)
        if done >= wanted:
            return peak
        if ended:
            _raise(scratch, process.returncode)
        try:
            process.wait(_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            continue


def _raise(scratch: RunDir, code: int) -> None:
    for event in events.read(scratch.events_file):
        if event["event"] == "error":
            raise StokerError.from_json(event["error"])
    raise StokerError("STK409", program="train", exit_code=code, log=training.newest_log(scratch))


def of_steps(steps: list[dict[str, Any]], peak: int) -> Measured:
    """What the events of a run's steps show; `peak` stands for memory that they do not have."""
    counted = steps[_WARM_UP:] if len(steps) > 2 * _WARM_UP else steps[len(steps) > 1 :]
    pace = sum(step["tokens"] for step in counted) / sum(step["seconds"] for step in counted)
    apart = [step["seconds"] * pace / step["tokens"] for step in counted]
    error = statistics.stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else 0.0
    return Measured(
        steps=len(counted),
        tokens_per_second=pace,
        tokens_per_second_range=(pace / (1 + _NINE_IN_TEN * error), pace / max(0.1, 1 - _NINE_IN_TEN * error)),
        memory_bytes=max(step["memory_bytes"] for step in steps) or peak,
    )


def _resident_bytes(pid: int) -> int:
    """Peak resident memory of a process; 0 where the system does not show it."""
    file = Path(f"/proc/{pid}/status")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)
