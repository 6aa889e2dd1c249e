"""Starts the training program on this machine and watches over it through files: never through a pipe (law 9)."""

import subprocess
import sys
import tempfile
from pathlib import Path

from stoker import env
from stoker.errors import StokerError
from stoker.launch import group, local
from stoker.plan.plan import Plan
from stoker.rundir import files, lock
from stoker.rundir.layout import RunDir


def start(run_dir: RunDir, plan: Plan) -> subprocess.Popen[bytes]:
    """Start training in a session of its own, so that a closed terminal changes nothing."""
    local.check_engine()
    run_dir.stop_file.unlink(missing_ok=True)
    attempt = next_attempt(run_dir)
    log = run_dir.log_file(attempt)
    log.parent.mkdir(parents=True, exist_ok=True)
    settings = {
        **plan.env,
        env.TENSORBOARD_LOGGING_DIR.name: str((run_dir.logs / "tensorboard").resolve()),
        env.ATTEMPT.name: str(attempt),
    }
    if plan.strategy != "single":
        # A folder of this user's own: whoever could write there could join the training.
        settings[env.RENDEZVOUS.name] = tempfile.mkdtemp(prefix="stoker-")
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603  # our own program, no shell
            [sys.executable, "-X", "utf8", *plan.argv, str(run_dir.path.resolve())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env.child_environment(settings),
            **group.DETACHED,
        )
    files.write_json(run_dir.process_file, {"pid": process.pid})
    return process


def ask_to_stop(run_dir: RunDir) -> None:
    """Ask for a committed checkpoint at the next step boundary and an end."""
    run_dir.stop_file.touch()


def running_pid(run_dir: RunDir) -> int | None:
    """The process that trains here now, or None."""
    try:
        pid = int(files.read_json(run_dir.process_file)["pid"])
    except (OSError, ValueError, KeyError):
        return None
    return pid if _is_training(pid, run_dir) else None


def require_idle(run_dir: RunDir) -> None:
    """Nothing of a run is touched while it is being trained."""
    running = running_pid(run_dir)
    if running:
        raise StokerError("STK411", pid=running, name=run_dir.name)


def next_attempt(run_dir: RunDir) -> int:
    """Attempts are numbered by their logs, from 1."""
    return 1 + len(list(run_dir.logs.glob("train-*-rank0.log")))


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
        return lock.is_held(run_dir.lock_file)
    words = group.words(pid)
    return "stoker.engine.train" in words and str(run_dir.path.resolve()) in words
