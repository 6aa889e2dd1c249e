"""Starts the supervisor of a training on this machine, and reads its files: nothing it says needs a reader (law 9)."""

import datetime
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stoker import env
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.facts import platforms
from stoker.launch import programs
from stoker.plan import ending
from stoker.rundir import files, in_place, lock
from stoker.rundir.layout import RunDir
from stoker.supervise import early_trainer, limits, processes, starting

Supervisor = subprocess.Popen[bytes]
_SUPERVISOR_SECONDS = 60.0
"""A busy machine with a slow disk takes this long to start a Python."""
_LOOK_SECONDS = 0.05
_LAUNCH_TRIES = 5
_PROGRAMS = {"stoker.engine.train", "stoker.supervise.supervisor"}
_ENDED = {"done", "stopped", "failed"}
_SILENT_SECONDS = 60.0
"""A supervisor writes its heartbeat every few seconds; clocks of two machines may differ."""


def start(run_dir: RunDir, early: Callable[[], Supervisor | None] = lambda: None) -> Supervisor:
    """Start the supervisor, which starts the trainer, detached from the terminal, or have an early one go on."""
    programs.check_engine()
    process = early() or start_supervisor(run_dir)
    # Until it holds its lock: between ours and its own, another run's end could switch the machine off.
    until = time.monotonic() + _SUPERVISOR_SECONDS
    try:
        while process.poll() is None and not lock.is_held(run_dir.supervisor_lock) and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:  # else it would train though nobody was told that it began
        processes.terminate(process.pid)
        raise
    return process


def start_supervisor(run_dir: RunDir, *, early: bool = False) -> Supervisor:
    """The program itself; an early one waits to be told to go on (`early_trainer`)."""
    command = starting.command("stoker.supervise.supervisor", run_dir.path.resolve())
    variables = early_trainer.ENVIRONMENT if early else {}
    return starting.start(command, run_dir.logs / "supervisor.log", variables, detached=True, is_told=early)


def keep_lease(run_dir: RunDir) -> None:
    """Start the program that renews the run's lease on its store, where it has one; a second one ends at once."""
    if run_dir.run().save.store is not None:
        command = starting.command("stoker.store.lease_keeper", run_dir.path.resolve())
        starting.start(command, run_dir.logs / "store.log", detached=True)


@contextmanager
def claimed(run_dir: RunDir) -> Iterator[None]:
    """Hold the launch lock of an idle run: without it nothing is written into a run directory before training."""
    run_dir.path.mkdir(parents=True, exist_ok=True)
    with lock.held(run_dir.launch_lock, tries=_LAUNCH_TRIES) as alone:
        if not alone:
            raise StokerError("STK426", name=run_dir.name)
        require_idle(run_dir)
        yield


@contextmanager
def launching(run_dir: RunDir, run: Run) -> Iterator[None]:
    """Hold the launch lock for what comes before the supervisor: planning, preparing.

    When a launch from another machine fails, nobody is watching: the run counts as failed, and its meter is settled.
    """
    with claimed(run_dir):
        try:
            yield
        except BaseException:
            if env.read(env.LAUNCHED) and not lock.is_held(run_dir.supervisor_lock):
                _fail(run_dir, run)
            raise


def _fail(run_dir: RunDir, run: Run) -> None:
    """Write `supervisor.json` in the supervisor's place, and start `stoker settle`, which outlives us."""
    now = datetime.datetime.now(datetime.timezone.utc)
    before = supervision(run_dir)
    launch_seconds = limits.launch_seconds(env.read(env.LAUNCHED), [], now.timestamp())
    verdict = {
        "state": "failed",
        "reason": "launch",
        "asked": "",
        "after": ending.after(run, platforms.here()),
        "spent_seconds": limits.counted_seconds(before) + launch_seconds,
        "beat": now.isoformat(timespec="seconds"),
    }
    files.write_json(run_dir.supervisor_file, {"pid": os.getpid(), "step": 0, **before, **verdict})
    command = starting.command("stoker", "settle", run_dir.path.resolve())
    starting.start(command, None, detached=True)  # no log: the events have it all, and the disk may be full


def ask_to_stop(run_dir: RunDir) -> None:
    """Ask it to commit a checkpoint at the next step boundary and stop."""
    in_place.touch(run_dir.stop_file)


def running_pid(run_dir: RunDir) -> int | None:
    """The trainer, or the supervisor where it waits or cleans up; None where neither is running."""
    pids = [_pid(run_dir.process_file), _pid(run_dir.supervisor_file)]
    return next((pid for pid in pids if pid and _is_training(pid, run_dir)), None)


def is_running(run_dir: RunDir) -> bool:
    """Whether the run is trained, here or on another machine that shares its folder."""
    return running_pid(run_dir) is not None or _beats_elsewhere(run_dir)


def _beats_elsewhere(run_dir: RunDir) -> bool:
    """Whether a supervisor on another machine, such as a node of a queue, has written its heartbeat just now.

    Or waits to retry, when it writes none. A heartbeat of the future is of a clock that was wrong, and no sign of life.
    """
    seen = supervision(run_dir)
    if seen.get("host", "") in ("", socket.gethostname()) or seen.get("state") in _ENDED:
        return False
    try:
        beat = datetime.datetime.fromisoformat(seen["beat"]).timestamp()
        until = datetime.datetime.fromisoformat(seen.get("next_retry") or seen["beat"]).timestamp()
    except files.FOREIGN:
        return False
    now = time.time()
    return beat < now + _SILENT_SECONDS and now < max(beat, until) + _SILENT_SECONDS


def was_cut_off(run_dir: RunDir) -> bool:
    """Whether its supervisor is gone and never said how the run ended: killed, or its machine was restarted."""
    seen = supervision(run_dir)
    return bool(seen) and seen.get("state") not in _ENDED


def orphan(run_dir: RunDir) -> int | None:
    """A trainer whose supervisor is gone."""
    trainer, supervisor = _pid(run_dir.process_file), _pid(run_dir.supervisor_file)
    watched = supervisor is not None and _is_training(supervisor, run_dir)
    return trainer if trainer and not watched and "stoker.engine.train" in _words(trainer, run_dir) else None


def supervision(run_dir: RunDir) -> dict[str, Any]:
    """`supervisor.json`; empty where there is none."""
    return files.read_if_any(run_dir.supervisor_file)


def _pid(path: Path) -> int | None:
    try:
        return int(files.read_json(path)["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def require_idle(run_dir: RunDir) -> None:
    """Refuse to touch a run that is being trained, here, in another container, or on a machine that shares its folder.

    A process of another container has no pid here, and one that has just started is in no file: both hold their locks.
    """
    running = running_pid(run_dir)
    if running or _is_locked(run_dir) or _is_shared(run_dir):
        raise StokerError("STK411", pid=running or "?", name=run_dir.name)


def _is_locked(run_dir: RunDir) -> bool:
    return lock.is_held(run_dir.supervisor_lock) or lock.is_held(run_dir.lock_file)


def _is_shared(run_dir: RunDir) -> bool:
    """Whether another machine trains in this very folder; of a run that was sent away the heartbeat was pulled."""
    return _beats_elsewhere(run_dir) and not run_dir.place_file.exists()


def newest_log(run_dir: RunDir) -> Path:
    """The log of the newest attempt."""
    logs = {path.name.split("-")[1]: path for path in run_dir.logs.glob("train-*-rank0.log") if path.is_file()}
    attempts = [attempt for attempt in logs if attempt.isdecimal()]
    if not attempts:
        raise StokerError("STK505", name=run_dir.name)
    return logs[max(attempts, key=int)]


def _is_training(pid: int, run_dir: RunDir) -> bool:
    """Whether the process is alive and ours: pids are used again.

    Linux shows the command line of a process at once; elsewhere the trainer's lock is taken a few seconds later.
    """
    if not Path("/proc/self/cmdline").exists():
        return _is_locked(run_dir)
    return bool(_PROGRAMS & _words(pid, run_dir))


def _words(pid: int, run_dir: RunDir) -> set[str]:
    """The command line of a process that works on this run; empty for others."""
    words = processes.words_of(pid)
    return set(words) if processes.is_named(words, run_dir.path.resolve()) else set()
