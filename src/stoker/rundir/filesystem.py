"""What the disk under a folder promises: its kind, its room, and whether a folder is renamed there in one step.

Where it is not (network and user-space file systems, FAT), checkpoints are committed by a file instead of a rename.
"""

import errno
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from stoker.rundir import files

_NOT_AT_ONCE = ("nfs", "cifs", "smb", "fuse", "9p", "drvfs", "vfat", "exfat", "msdos", "afs")
"""File systems whose renames may be retried, split or seen late: by what they are, since no single try shows it."""
_MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True)
class Filesystem:
    """A disk as found."""

    kind: str
    """As the system calls it; empty where it does not say."""
    renames: bool
    """Whether a folder's rename is one step."""
    reason: str
    """Why not; empty where it is."""


@dataclass(frozen=True)
class Room:
    """What is free."""

    free_bytes: int
    free_files: int | None
    """None where files are not counted."""


def probe(folder: Path) -> Filesystem:
    """The disk under a folder, tried: write, sync, rename, read back."""
    kind = kind_of(folder)
    if kind.startswith(_NOT_AT_ONCE):
        return Filesystem(kind, renames=False, reason=kind)
    wrong = _try_rename(folder)
    return Filesystem(kind, renames=not wrong, reason=wrong)


def kind_of(folder: Path) -> str:
    """The file system's name by the system's own table of mounts."""
    if not _MOUNTS.exists():
        return ""
    place = folder.resolve()
    found = ("", Path("/"))
    for line in _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        left, _, right = line.partition(" - ")
        mounted = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), left.split()[4]))
        if place.is_relative_to(mounted) and mounted.is_relative_to(found[1]):
            found = (right.split()[0], mounted)
    return found[0]


def _try_rename(folder: Path) -> str:
    """What is wrong with a folder's rename here, or nothing. That the disk is full or read-only is not its fault."""
    before = folder / f".probe.{os.getpid()}.tmp"
    after = before.with_suffix(".gone")
    try:
        before.mkdir()
        (before / "file").write_text("whole", encoding="utf-8")
        files.sync_file(before / "file")
        files.sync_folder(before)
        before.rename(after)
        files.sync_folder(folder)
        seen = (after / "file").read_text(encoding="utf-8")
        return "" if seen == "whole" and not before.exists() else "the old name stayed"
    except OSError as error:
        if error.errno in files.DISK_ERRORS:
            raise
        return str(error.strerror)
    finally:
        shutil.rmtree(before, ignore_errors=True)
        shutil.rmtree(after, ignore_errors=True)


def room(folder: Path) -> Room:
    """What is free on the folder's disk for this user. Quotas do not show here."""
    free = shutil.disk_usage(folder).free
    if not hasattr(os, "statvfs"):
        return Room(free, None)
    counts = os.statvfs(folder)
    return Room(free, counts.f_favail if counts.f_files else None)


def require(folder: Path, needed_bytes: int, needed_files: int) -> None:
    """Check free space first, and raise the error that the disk would raise halfway."""
    there = room(folder)
    if there.free_bytes < needed_bytes or (there.free_files is not None and there.free_files < needed_files):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
