"""A detached process and everything it started: what it runs, who of its group lives, and how all of it is ended."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.errors import StokerError

DETACHED: dict[str, Any] = {
    "start_new_session": os.name != "nt",
    "creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
}
"""How a process is started that outlives the terminal: closing it or Ctrl-C in it changes nothing."""
_END_SECONDS = 30.0
"""For the first process to end by itself, and its children with it."""
_LEFT_SECONDS = 3.0
"""For what it left behind."""
_LOOK_SECONDS = 0.1


def words(pid: int) -> list[str]:
    """A process' command line; empty where it has ended."""
    if Path("/proc/self/cmdline").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        except OSError:
            return []
    query = ["ps", "-ww", "-o", "command=", "-p", str(pid)]
    if os.name == "nt":
        query = ["powershell", "-NoProfile", f"(Get-CimInstance Win32_Process -Filter 'ProcessId={pid}').CommandLine"]
    said = subprocess.run(query, capture_output=True, text=True, check=False)  # noqa: S603  # fixed words and a number
    return said.stdout.split()


def end(pid: int) -> None:
    """Ask the process to end, then end what is left of its group."""
    if os.name == "nt":
        subprocess.run(["taskkill", "/T", "/F", "/PID", str(pid)], capture_output=True, check=False)  # noqa: S603, S607
        return
    _signal(pid, signal.SIGTERM, group=False)
    _wait(lambda: pid not in members(pid), _END_SECONDS)
    _signal(pid, signal.SIGTERM, group=True)
    _wait(lambda: not members(pid), _LEFT_SECONDS)
    _signal(pid, signal.SIGKILL, group=True)
    _wait(lambda: not members(pid), _LEFT_SECONDS)
    if left := members(pid):
        raise StokerError("STK603", pids=", ".join(map(str, left)))


def _wait(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


def _signal(pid: int, number: int, *, group: bool) -> None:
    try:
        os.killpg(pid, number) if group else os.kill(pid, number)
    except (ProcessLookupError, PermissionError):  # ended; macOS says so of a group of ended ones
        return


def members(group: int) -> list[int]:
    """Living processes of a process group; one that ended and was not collected yet does not count."""
    if not Path("/proc/self/stat").exists():
        said = subprocess.run(["ps", "-A", "-o", "pid=,pgid=,stat="], capture_output=True, text=True, check=False)  # noqa: S607
        rows = [line.split() for line in said.stdout.splitlines()]
        return [int(row[0]) for row in rows if int(row[1]) == group and not row[2].startswith("Z")]
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgid = path.read_text(encoding="utf-8").rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(pgid) == group and state != "Z":
            found.append(int(path.parent.name))
    return found
