"""One trainer per run directory: a lock the operating system gives back when its process ends, however it ends.

Where the disk has no such locks (some network and user-space file systems), a lease file with a heartbeat stands in.
"""

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.rundir import in_place, lease_file

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
_HELD = (errno.EAGAIN, errno.EACCES)
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOLCK)
"""What a file system without record locks says; NFS without its lock service: ENOLCK."""


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
        taken = _taken(descriptor, tries, wait)
        if taken is None:
            with lease_file.held(path, tries, wait, _PROBE_SECONDS) as alone:
                yield alone
        else:
            yield taken
    finally:
        os.close(descriptor)


def _taken(descriptor: int, tries: int, wait: Callable[[float], None]) -> bool | None:
    """Whether the lock could be taken; None where the disk has no locks. Any other fault of the disk is raised."""
    for left in reversed(range(tries)):
        try:
            _take(descriptor)
        except OSError as error:  # noqa: PERF203  # the loop waits anyway
            if error.errno in _NO_LOCKS:
                return None
            if error.errno not in _HELD:
                raise
            if left:
                wait(_PROBE_SECONDS)
        else:
            return True
    return False


def is_held(path: Path) -> bool:
    """Whether some process holds the lock."""
    if not path.exists():
        return False
    descriptor = in_place.descriptor(path, os.O_RDWR)
    try:
        taken = _taken(descriptor, 1, time.sleep)
        return lease_file.is_held(path) if taken is None else not taken
    finally:
        os.close(descriptor)
