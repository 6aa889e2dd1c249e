"""Engine programs in forked children of a process that has torch imported already: a second each instead of ten."""

import importlib
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import tiny_run  # imports what the programs need, and sets the lock of progress bars

from stoker.engine import program
from stoker.errors import StokerError
from stoker.launch import programs
from stoker.supervise import starting


def use(patch: pytest.MonkeyPatch) -> None:
    """From now on programs of ours are forked, not started anew."""
    patch.setattr(starting, "start", _start)
    patch.setattr(programs, "run_on_folder", _run_on_folder)


class _Forked:
    """As `launch.programs` sees a process."""

    stdin = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        end = time.monotonic() + timeout if timeout is not None else None
        while self.poll() is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("forked", timeout or 0)
            time.sleep(0.02)
        return self.returncode

    def terminate(self) -> None:
        os.kill(self.pid, 15)


def _start(
    words: list[str], log: Path | None, variables: Mapping[str, str] | None = None, *, detached: bool
) -> _Forked:
    """`python -X utf8 -m MODULE ...` without the python."""
    assert not detached
    module, *arguments = words[words.index("-m") + 1 :]
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)

    def work() -> int:
        os.environ |= dict(variables or {})
        sys.argv = [f"{module.rpartition('.')[2]}.py", *arguments]
        return program.run(importlib.import_module(module).main)

    return _fork(work, log or Path(os.devnull))


def _run_on_folder(name: str, folder: Path) -> None:
    log = folder / "forked.log"
    code = _fork(lambda: importlib.import_module(f"stoker.engine.{name}").main(folder), log).wait()
    if code:
        reason = log.read_text(encoding="utf-8").strip().splitlines()[-1]
        raise StokerError("STK222", program=name, exit_code=code, reason=reason)


def _fork(work: Callable[[], int], log: Path) -> _Forked:
    pid = tiny_run.fork()
    if pid:
        return _Forked(pid)
    code = 2
    try:
        with log.open("ab") as words:
            os.dup2(words.fileno(), 1)
            os.dup2(words.fileno(), 2)
        sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115  # pytest has its own
        code = work()
    except BaseException:  # noqa: BLE001  # the child's last word
        traceback.print_exc()
    finally:
        os._exit(code)
