"""How a program of ours is started: `python -X utf8 -m MODULE ...`, with its output in a file or nowhere.

Its output never goes through a pipe that somebody has to keep reading; programs that are talked with are in
`launch/programs.py`.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker import env
from stoker.rundir import in_place

DETACHED: dict[str, Any] = {
    "start_new_session": os.name != "nt",
    "creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
}
"""A session of its own: the process outlives the terminal, and Ctrl-C there does not reach it."""


def command(module: str, *words: object) -> list[str]:
    """The command line of a module of ours."""
    return python("-m", module, *words)


def python(*words: object) -> list[str]:
    """A command line of this interpreter; pipes and logs are UTF-8 on every system."""
    return [sys.executable, "-X", "utf8", *map(str, words)]


def start(
    words: list[str],
    log: Path | None,
    variables: Mapping[str, str] | None = None,
    *,
    detached: bool,
    is_told: bool = False,
) -> "subprocess.Popen[bytes]":
    """Start a program.

    Args:
        words: The command line.
        log: Where its output is appended, in the `logs` of a run directory; None for nowhere.
        variables: Environment variables on top of ours.
        detached: Whether it outlives this process and its terminal.
        is_told: Whether it reads what to do from a pipe of ours; all others have no input.
    """
    with contextlib.ExitStack() as stack:
        output: Any = subprocess.DEVNULL
        if log is not None:
            output = stack.enter_context(in_place.appending(log, log.parent.parent))
        return subprocess.Popen(  # noqa: S603  # our own program, no shell
            words,
            stdin=subprocess.PIPE if is_told else subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env.child_environment(variables or {}),
            **(DETACHED if detached else {}),
        )
