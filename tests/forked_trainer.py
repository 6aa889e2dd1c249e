"""The real training program in forked children of a process that has torch imported, for a supervisor to start."""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import tiny_run  # imports what a trainer needs, and sets the lock of progress bars

from stoker.supervise import processes
from stoker.supervise.supervisor import Supervisor


class Forked:
    """A forked trainer, as the supervisor sees it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


def starter(before: Callable[[int], None] = lambda attempt: None) -> Callable[[Supervisor], Forked]:
    """Starts trainers by forking; `before(attempt)` runs in the child first, to injure it."""

    def start(watching: Supervisor) -> Forked:
        pid = tiny_run.fork()
        if pid:
            return Forked(pid)
        code = 70
        try:
            code = _train(watching, before)
        finally:
            os._exit(code)

    return start


def _train(watching: Supervisor, before: Callable[[int], None]) -> int:
    from stoker.engine import program, train

    os.setsid()
    attempt, path = watching.status.attempt, watching.run_dir
    with processes.log_file(path, attempt).open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115  # pytest has its own
    logging.disable(logging.WARNING)
    os.environ |= {"STOKER_ATTEMPT": str(attempt)}
    sys.argv = ["train", str(path)]
    before(attempt)
    return program.run(train.main)


def logs(path: Path) -> str:
    """Everything the trainers said, for a test's message."""
    return "\n".join(log.read_text(errors="replace")[-2000:] for log in sorted((path / "logs").glob("train-*.log")))
