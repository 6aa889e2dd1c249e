"""The one opener of files that are written under their own names: events, logs, locks, heartbeat, stop file, tokens.

A run directory may be a stranger's. No link is followed, neither as the file nor as a folder between the run directory
and it, and only a plain file with one name is opened: `events.jsonl -> ~/.bashrc` is an error. The run directory itself
and the folders above it may be links. `unusual` finds links and devices before anything in a run directory is used.
"""

import errno
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from stoker import messages

_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Windows has no such flags but the last: there the look before must do. A pipe must not make a writer wait."""
_DEEPEST = 40
"""Folders in folders beyond this are no run directory, and would exhaust Python's stack."""
_SURROGATE = 0x20000000
"""The bit of a reparse tag on Windows that says that the entry stands for another one: a link or a junction."""


def appending(path: Path, inside: Path | None = None) -> BinaryIO:
    """A file to append to, unbuffered, made where it is not there yet."""
    return os.fdopen(descriptor(path, os.O_WRONLY | os.O_APPEND, inside), "ab", buffering=0)


def touch(path: Path, inside: Path | None = None) -> None:
    """Make a file, or renew its time."""
    _refuse_link(path)
    if path.exists() and os.utime in os.supports_follow_symlinks:
        os.utime(path, follow_symlinks=False)
    else:
        os.close(descriptor(path, os.O_WRONLY, inside))


def descriptor(path: Path, flags: int, inside: Path | None = None, mode: int = 0o644) -> int:
    """A file of a run directory, made where it is not there yet, with the folders to it.

    Args:
        path: The file.
        flags: How it is opened, as `os.open` takes them.
        inside: The run directory, where the file is not directly in it.
        mode: Of a file that is made.

    Raises:
        PermissionError: The file or a folder on the way from the run directory is a link, or it is no plain file.
    """
    folder(path.parent, inside or path.parent)
    _refuse_link(path)
    try:
        opened = os.open(path, flags | os.O_CREAT | _NO_LINK, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, or a pipe without a reader
            raise _refused("files.unusual", path) from error
        raise
    found = os.fstat(opened)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(opened)
        raise _refused("files.names" if stat.S_ISREG(found.st_mode) else "files.unusual", path)
    return opened


def folder(path: Path, inside: Path) -> None:
    """Make a folder of a run directory, none on the way to it a link.

    The run directory itself is there, or was renamed while it trained: then it is not made again.
    """
    for one in reversed([one for one in (path, *path.parents) if one.is_relative_to(inside) and one != inside]):
        _refuse_link(one)
        one.mkdir(exist_ok=True)


def unusual(folder: Path) -> OSError | None:
    """The first entry below a folder that no run directory has (a link, a device, endless folders), as an error."""
    waiting = [(str(folder), 0)]
    while waiting:
        path, depth = waiting.pop()
        if depth > _DEEPEST:
            return _refused("files.deep", Path(path))
        # What a running training deletes meanwhile is no matter.
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as inner:
            for entry in inner:
                if _is_unusual(entry):
                    return _refused("files.link" if entry.is_symlink() else "files.unusual", Path(entry.path))
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, depth + 1))
    return None


def _is_unusual(entry: "os.DirEntry[str]") -> bool:
    if sys.platform == "win32":
        return _is_link(entry.stat(follow_symlinks=False))
    return not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False))


def _refuse_link(path: Path) -> None:
    with suppress(FileNotFoundError):
        if _is_link(path.lstat()):
            raise _refused("files.link", path)


def _is_link(found: os.stat_result) -> bool:
    if sys.platform == "win32":
        return bool(found.st_reparse_tag & _SURROGATE)
    return stat.S_ISLNK(found.st_mode)


def _refused(key: str, path: Path) -> OSError:
    return OSError(errno.EPERM, messages.text(key), str(path))
