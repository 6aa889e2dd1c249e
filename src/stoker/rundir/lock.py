"""One trainer per run directory: a lock the operating system gives back when its process ends, however it ends."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.rundir import in_place

if sys.platform == "win32":
    import msvcrt

    def _take(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _take(descriptor: int) -> None:
        # A record lock: unlike flock's it is not shared with forked children, so a killed trainer's loader
        # processes do not keep it.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


_PROBE_SECONDS = 0.2
"""Probing a lock (`is_held`) holds it for less than this."""


@contextmanager
def held(
    path: Path, tries: int = 1, wait: Callable[[float], None] = time.sleep, inside: Path | None = None
) -> Iterator[bool]:
    """Hold the lock for the block; yields whether it could be taken.

    Args:
        path: The lock.
        tries: Attempts to take it: probing it (`is_held`) holds it for a moment.
        wait: How time passes between two attempts.
        inside: The run directory, where the lock is not directly in it.
    """
    descriptor = in_place.descriptor(path, os.O_RDWR, inside)
    try:
        yield _taken(descriptor, tries, wait)
    finally:
        os.close(descriptor)


def _taken(descriptor: int, tries: int, wait: Callable[[float], None]) -> bool:
    for left in reversed(range(tries)):
        try:
            _take(descriptor)
        except OSError:  # noqa: PERF203  # the loop waits anyway
            if left:
                wait(_PROBE_SECONDS)
        else:
            return True
    return False


def is_held(path: Path) -> bool:
    """Whether some process holds the lock."""
    if not path.exists():
        return False
    with held(path) as free:
        return not free
