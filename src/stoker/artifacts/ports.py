"""Ports of this machine's loopback: whether one is free, and who holds it."""

import contextlib
import os
import shutil
import socket
import subprocess
from pathlib import Path

from stoker import messages
from stoker.errors import StokerError
from stoker.supervise import processes

LOOPBACK = "127.0.0.1"
_LISTENS = "0A"
"""State of a listening socket in /proc/net/tcp."""
_SHOWN_LETTERS = 60


def require_free(port: int) -> None:
    """Refuse a port that is in use, and name the process that holds it where that can be known."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if os.name != "nt":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            reason = str(error.strerror or error)
            if holder := held_by(port):
                reason = messages.text("port.held", reason=reason, holder=holder)
            raise StokerError("STK620", port=port, reason=reason, other=port + 1) from error


def is_open(port: int) -> bool:
    """Whether somebody takes connections there."""
    try:
        with socket.create_connection((LOOPBACK, port), 1):
            return True
    except OSError:
        return False


def held_by(port: int) -> str:
    """The process that listens on a port, by pid and command; empty where this user may not know."""
    pid = _pid_in_proc(port) if Path("/proc/net/tcp").exists() else _pid_by_lsof(port)
    if pid is None:
        return ""
    words = " ".join(processes.words_of(pid))
    return f"{words[:_SHOWN_LETTERS]}{'…' if len(words) > _SHOWN_LETTERS else ''} (pid {pid})"


def _pid_in_proc(port: int) -> int | None:
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        lines = Path(table).read_text(encoding="ascii").splitlines()[1:] if Path(table).exists() else []
        for fields in map(str.split, lines):
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                sockets.add(f"socket:[{fields[9]}]")
    for folder in Path("/proc").glob("[0-9]*/fd") if sockets else ():
        with contextlib.suppress(OSError):  # another user's, or it ended meanwhile
            if any(str(one.readlink()) in sockets for one in folder.iterdir()):
                return int(folder.parent.name)
    return None


def _pid_by_lsof(port: int) -> int | None:
    """Macs have `lsof`."""
    program = shutil.which("lsof")
    if program is None:
        return None
    words = [program, "-nP", f"-iTCP:{port}", "-sTCP:LISTEN", "-t"]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()  # noqa: S603  # no shell
    return int(said[0]) if said and said[0].isdigit() else None
