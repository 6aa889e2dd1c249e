"""One trainer per run directory: a lock the operating system gives back when its process ends, however it ends."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Hold the lock for the block; says whether it could be had."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        try:
            _take(descriptor)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether some process holds the lock."""
    if not path.exists():
        return False
    with held(path) as free:
        return not free
