"""Tried inside the sandbox: which of its doors are open. Prints their names as JSON; standard library only.

Arguments: a file of the machine that must not be seen, and how many processes there may be.
"""

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path


def open_doors(outside: str, processes: int) -> Iterator[str]:
    """What is not held here, by name."""
    if {name for _, name in socket.if_nameindex()} - {"lo"}:
        yield "network"
    if Path(outside).exists():
        yield "files"
    if any(_can_write(folder) for folder in ("/", "/usr", "/dev", sys.prefix)):
        yield "writing"
    if _forks(processes + 1) > processes:
        yield "processes"


def _can_write(folder: str) -> bool:
    path = Path(folder, f".stoker-probe-{os.getpid()}")
    with contextlib.suppress(OSError):
        path.write_bytes(b"")
        path.unlink()
        return True
    return False


def _forks(most: int) -> int:
    """How many processes can be started, up to so many."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        while len(children) < most:
            child = os.fork()
            if not child:
                signal.pause()
                os._exit(0)
            children.append(child)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return len(children)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(list(open_doors(sys.argv[1], int(sys.argv[2])))))
