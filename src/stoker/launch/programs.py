"""Starts engine programs on this machine and brings back their events, answers and errors.

For programs that are waited for or talked with (prepare, show, evaluate, chat). Training, which must outlive the
terminal, is in `training.py`.
"""

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from stoker import env
from stoker.errors import EXIT_DONE, EXIT_STOPPED, EXIT_USER, StokerError, StokerErrors
from stoker.rundir import events, files
from stoker.rundir.layout import RunDir

_NEEDED = ("torch", "transformers", "tokenizers", "numpy", "jinja2")
_LOOK_SECONDS = 0.1

Event = dict[str, Any]


def check_engine() -> None:
    """The packages of the heavy world are installed here."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise StokerError("STK406", missing=", ".join(missing))


def run_engine(program: str, run_dir: RunDir, on_event: Callable[[Event], None], *arguments: str) -> int:
    """Run `stoker.engine.<program>` to its end; its words go to `logs/<program>.log`.

    Returns:
        0, or 75 where the program stopped with a committed checkpoint. Errors it wrote down are raised.
    """
    check_engine()
    start = seen = _end(run_dir)
    with _log(program, run_dir).open("ab") as log:
        process = subprocess.Popen(  # noqa: S603  # our own program, no shell
            _command(program, run_dir, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(run_dir),
        )
        with _ended(process):
            while process.poll() is None:
                seen = _relay(run_dir, seen, on_event)
                _wait(process)
    _relay(run_dir, seen, on_event)
    if process.returncode not in (EXIT_DONE, EXIT_STOPPED):
        raise_engine_error(program, run_dir, process.returncode, start)
    return process.returncode


def ask_engine(program: str, run_dir: RunDir, *arguments: str) -> str:
    """Run `stoker.engine.<program>` and return what it writes to stdout."""
    start = _end(run_dir)
    with open_engine(program, run_dir, *arguments) as process:
        answer, _ = process.communicate()
    if process.returncode != EXIT_DONE:
        raise_engine_error(program, run_dir, process.returncode, start)
    return answer


@contextmanager
def open_engine(program: str, run_dir: RunDir, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`stoker.engine.<program>` to talk with: lines to its stdin, answers from its stdout."""
    check_engine()
    with _log(program, run_dir).open("ab") as log:
        process = subprocess.Popen(  # noqa: S603  # our own program, no shell
            _command(program, run_dir, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            encoding="utf-8",
            env=_environment(run_dir),
        )
        with process, _ended(process):
            yield process


def raise_engine_error(program: str, run_dir: RunDir, code: int, since_byte: int = 0) -> NoReturn:
    """Raise the errors a program wrote down before it ended; they are the last events since it was started."""
    problems: list[StokerError] = []
    for event, _ in events.follow(run_dir.events_file, since_byte):
        if event["event"] == "error":
            problems.append(StokerError.from_json(event["error"]))
        elif event["event"] != "store":  # written by a process of its own
            problems.clear()
    if code == EXIT_USER and problems:
        raise StokerErrors(problems)
    raise StokerError("STK409", program=program, exit_code=code, log=_log(program, run_dir))


def _end(run_dir: RunDir) -> int:
    """Where the events end now."""
    return run_dir.events_file.stat().st_size if run_dir.events_file.exists() else 0


def _command(program: str, run_dir: RunDir, *arguments: str) -> list[str]:
    """Pipes and logs of the program are UTF-8 on every system."""
    return [sys.executable, "-X", "utf8", "-m", f"stoker.engine.{program}", str(run_dir.path), *arguments]


def _environment(run_dir: RunDir) -> dict[str, str]:
    """The GPUs that the plan chose are those every program of a run uses."""
    chosen = files.read_json(run_dir.plan_file)["env"] if run_dir.plan_file.exists() else {}
    name = env.CUDA_VISIBLE_DEVICES.name
    return env.child_environment({name: chosen[name]} if name in chosen else {})


def _log(program: str, run_dir: RunDir) -> Path:
    run_dir.logs.mkdir(parents=True, exist_ok=True)
    return run_dir.logs / f"{program}.log"


def _relay(run_dir: RunDir, seen: int, on_event: Callable[[Event], None]) -> int:
    """Pass on new events; the offset behind them."""
    for event, behind in events.follow(run_dir.events_file, seen):
        on_event(event)
        seen = behind
    return seen


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_LOOK_SECONDS)
    except subprocess.TimeoutExpired:
        return


@contextmanager
def _ended(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Leave no program behind, also after Ctrl-C."""
    try:
        yield
    finally:
        if process.stdin:
            process.stdin.close()
        if process.poll() is None:
            process.terminate()
            process.wait()
