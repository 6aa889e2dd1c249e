"""Runs engine programs on this machine and returns their events, answers and errors.

For programs that are waited for or talked with (prepare, show, evaluate, chat). Training, which must outlive the
terminal, is in `training.py`.
"""

import errno
import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from stoker import env, messages
from stoker.errors import EXIT_DONE, EXIT_STOPPED, EXIT_USER, StokerError, StokerErrors
from stoker.rundir import events, files, in_place
from stoker.rundir.events import EventCallback
from stoker.rundir.layout import RunDir
from stoker.supervise import starting

_NEEDED = ("torch", "transformers", "tokenizers", "numpy", "jinja2")
_TRAINING = {"train", "supervisor"}
"""Who writes the errors of a training."""
_LOOK_SECONDS = 0.1
_NO_ROOM_BYTES = 1 << 16


def check_engine() -> None:
    """Check that the packages of the heavy world are installed here."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise StokerError("STK406", missing=missing)


def run_engine(program: str, run_dir: RunDir, on_event: EventCallback, *arguments: str) -> int:
    """Run `stoker.engine.<program>` to its end; its output goes to `logs/<program>.log`.

    Returns:
        0, or 75 where the program stopped with a committed checkpoint. Errors it recorded are raised.
    """
    check_engine()
    start = seen = _end(run_dir)
    ends_with = [str(os.getpid())] if program == "prepare" else []  # this process, however it ends
    command = _command(program, run_dir.path, *arguments, *ends_with)
    process = starting.start(command, _log(program, run_dir), _variables(run_dir), detached=False)
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
    with in_place.appending(_log(program, run_dir), run_dir.path) as log:
        process = subprocess.Popen(  # noqa: S603  # our own program, no shell
            _command(program, run_dir.path, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            encoding="utf-8",
            env=env.child_environment(_variables(run_dir)),
        )
        with process, _ended(process):
            yield process


def run_on_folder(program: str, folder: Path) -> None:
    """Run `stoker.engine.<program>` on a folder that is no run directory; the last line of stderr is its error."""
    done = subprocess.run(  # noqa: S603  # our own program, no shell
        _command(program, folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=env.child_environment({}),
        check=False,
    )
    if done.returncode:
        reason = next(reversed(done.stderr.strip().splitlines()), "")
        raise StokerError("STK222", program=program, exit_code=done.returncode, reason=reason)


def raise_engine_error(program: str, run_dir: RunDir, code: int, since_byte: int) -> NoReturn:
    """Raise the errors that a program recorded since it was started; of a training, those since its last restart.

    Other programs write events of the run meanwhile: a training that goes on, copies to a store.
    """
    problems: list[StokerError] = []
    writers = _TRAINING if program in _TRAINING else {program}
    for event, _ in events.follow(run_dir.events_file, since_byte):
        if event["event"] == "error" and event.get("program") in writers:
            problems.append(StokerError.from_json(event["error"]))
        elif event["event"] == "restart" and program in _TRAINING:
            problems.clear()
    if code == EXIT_USER and problems:
        raise StokerErrors(problems)
    if hasattr(signal, "SIGPROF") and code == -signal.SIGPROF:  # the kernel's end of a chat template without one
        raise StokerError("STK513", tokenizer=run_dir.name, reason=messages.text("template.endless"))
    if code == EXIT_USER and _is_full(run_dir):  # it had no room for what it had to say
        raise StokerError("STK901", reason=f"{os.strerror(errno.ENOSPC)}: {run_dir.path}")
    raise StokerError("STK409", program=program, exit_code=code, log=_log(program, run_dir))


def _is_full(run_dir: RunDir) -> bool:
    with suppress(OSError):
        return shutil.disk_usage(run_dir.path).free < _NO_ROOM_BYTES
    return False


def _end(run_dir: RunDir) -> int:
    """Where the events end now."""
    return events.end(run_dir.events_file)


def _command(program: str, folder: Path, *arguments: str) -> list[str]:
    return starting.command(f"stoker.engine.{program}", folder, *arguments)


def _variables(run_dir: RunDir) -> dict[str, str]:
    """Every program of a run uses the GPUs that the plan chose."""
    chosen = files.read_object(run_dir.plan_file).get("env") if run_dir.plan_file.exists() else {}
    name = env.CUDA_VISIBLE_DEVICES.name
    return {name: str(chosen[name])} if isinstance(chosen, dict) and name in chosen else {}


def _log(program: str, run_dir: RunDir) -> Path:
    return run_dir.logs / f"{program}.log"


def _relay(run_dir: RunDir, seen: int, on_event: EventCallback) -> int:
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
            with suppress(BrokenPipeError):  # it ended before it read what it was sent
                process.stdin.close()
        if process.poll() is None:
            process.terminate()
            process.wait()
