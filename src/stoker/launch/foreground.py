"""Runs an engine program on a folder that is no run directory, waits, and says in one line why it failed."""

import subprocess
import sys
from pathlib import Path

from stoker import env
from stoker.errors import StokerError


def run(program: str, folder: Path) -> None:
    """`python -m stoker.engine.<program> FOLDER`."""
    done = subprocess.run(  # noqa: S603  # our own program, no shell
        [sys.executable, "-X", "utf8", "-m", f"stoker.engine.{program}", str(folder)],
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
