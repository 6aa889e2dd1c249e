"""Starts the supervisor of a training on this machine and reads its files: never through a pipe (law 9)."""

import datetime
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from stoker import env
from stoker.errors import StokerError
from stoker.launch import group, local
from stoker.rundir import files, lock
from stoker.rundir.layout import RunDir

_PROGRAMS = {"stoker.engine.train", "stoker.launch.supervisor"}
_ENDED = {"done", "stopped", "failed"}
_SILENT_SECONDS = 60.0
"""A supervisor beats every few seconds; clocks of two machines may differ by some."""


def start(run_dir: RunDir) -> subprocess.Popen[bytes]:
    """Start the supervisor, which starts the trainer, in a session of its own: a closed terminal changes nothing."""
    local.check_engine()
    run_dir.logs.mkdir(parents=True, exist_ok=True)
    with (run_dir.logs / "supervisor.log").open("ab") as output:
        return subprocess.Popen(  # noqa: S603  # our own program, no shell
            [sys.executable, "-X", "utf8", "-m", "stoker.launch.supervisor", str(run_dir.path.resolve())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env.child_environment({}),
            **group.DETACHED,
        )


def ask_to_stop(run_dir: RunDir) -> None:
    """Ask for a committed checkpoint at the next step boundary and an end."""
    run_dir.stop_file.touch()


def running_pid(run_dir: RunDir) -> int | None:
    """The process that trains here now, or the supervisor where it waits or cleans up; None where neither is."""
    pids = [_pid(run_dir.process_file), _pid(run_dir.supervisor_file)]
    return next((pid for pid in pids if pid and _is_training(pid, run_dir)), None)


def is_running(run_dir: RunDir) -> bool:
    """Whether the run is trained, here or on another machine that shares its folder."""
    return running_pid(run_dir) is not None or _beats_elsewhere(run_dir)


def _beats_elsewhere(run_dir: RunDir) -> bool:
    """Whether a supervisor on another machine, such as a node of a queue, gave a sign of life just now."""
    seen = supervision(run_dir)
    if seen.get("host", "") in ("", socket.gethostname()) or seen.get("state") in _ENDED:
        return False
    last = max(str(seen.get("beat") or ""), str(seen.get("next_retry") or ""))
    try:
        silent = datetime.datetime.now(datetime.timezone.utc) - datetime.datetime.fromisoformat(last)
    except (ValueError, TypeError):
        return False
    return silent.total_seconds() < _SILENT_SECONDS


def orphan(run_dir: RunDir) -> int | None:
    """A trainer whose supervisor is gone."""
    trainer, supervisor = _pid(run_dir.process_file), _pid(run_dir.supervisor_file)
    watched = supervisor is not None and _is_training(supervisor, run_dir)
    return trainer if trainer and not watched and "stoker.engine.train" in _words(trainer, run_dir) else None


def supervision(run_dir: RunDir) -> dict[str, Any]:
    """`supervisor.json`: how the supervisor sees the run; empty where there never was one."""
    try:
        return dict(files.read_json(run_dir.supervisor_file))
    except (OSError, ValueError):
        return {}


def _pid(path: Path) -> int | None:
    try:
        return int(files.read_json(path)["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def require_idle(run_dir: RunDir) -> None:
    """Nothing of a run is touched while it is being trained."""
    running = running_pid(run_dir)
    if running:
        raise StokerError("STK411", pid=running, name=run_dir.name)


def newest_log(run_dir: RunDir) -> Path:
    """The log of the newest attempt."""
    logs = sorted(run_dir.logs.glob("train-*-rank0.log"), key=lambda path: int(path.name.split("-")[1]))
    if not logs:
        raise StokerError("STK505", name=run_dir.name)
    return logs[-1]


def _is_training(pid: int, run_dir: RunDir) -> bool:
    """Whether the process is alive and ours: pids are used again.

    Linux says what a process runs from its first moment; elsewhere the trainer's lock does, a few seconds later.
    """
    if not Path("/proc/self/cmdline").exists():
        return lock.is_held(run_dir.lock_file) or lock.is_held(run_dir.supervisor_lock)
    return bool(_PROGRAMS & _words(pid, run_dir))


def _words(pid: int, run_dir: RunDir) -> set[str]:
    """The command line of a process that works on this run; empty for others."""
    words = set(group.words(pid))
    return words if str(run_dir.path.resolve()) in words else set()
