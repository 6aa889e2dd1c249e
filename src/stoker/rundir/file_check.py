"""Files of a checkpoint as the disk hands them out: right, wrong, or unreadable for now."""

import contextlib
import errno
import stat
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from stoker import messages
from stoker.rundir import files
from stoker.rundir.files import Unreadable

_PAUSES_SECONDS = (0.2, 1.0)
"""Before a file that could not be read is read again; a network disk is often back by then."""
_ABSENT = (errno.ENOENT, errno.ENOTDIR)
_OF_ANOTHER_KIND = (errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL)
"""What the system says of a name that is no file of a checkpoint, however often it is asked."""

Answer = TypeVar("Answer")


def inside(folder: Path) -> list[Path]:
    """Everything in a folder; nothing where there is none."""

    def listed() -> list[Path]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return list(folder.iterdir())
        return []

    return patiently(folder, listed)


def read_json(path: Path) -> Any:
    """A file as JSON; None where there is none, or something else.

    Raises:
        Unreadable: Where the disk does not say: what it may have is not to be made again over it.
    """

    def read() -> Any:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError):
            return files.read_json(path)
        return None

    return patiently(path, read)


def wrong(path: Path, name: str, size_bytes: int, sha256: str, *, from_disk: bool) -> str:
    """What is wrong with a file by its size and digest; empty where nothing is."""
    return patiently(path, lambda: _wrong(path, name, size_bytes, sha256, from_disk=from_disk))


def _wrong(path: Path, name: str, size_bytes: int, sha256: str, *, from_disk: bool) -> str:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            return messages.text("damage.missing", name=name)
        if found.st_size != size_bytes:
            return messages.text("damage.size", name=name, found=found.st_size, expected=size_bytes)
        same = files.sha256(path, from_disk=from_disk) == sha256
    except OSError as error:
        return damage(name, error)
    return "" if same else messages.text("damage.digest", name=name)


def damage(name: str, error: OSError) -> str:
    """What is wrong with a file, by what the system says of its name; raised again where it says nothing of it."""
    if error.errno in _ABSENT:
        return messages.text("damage.missing", name=name)
    if error.errno in _OF_ANOTHER_KIND:
        return messages.text("damage.unreadable", name=name, reason=error.strerror)
    raise error


def patiently(path: Path, read: Callable[[], Answer]) -> Answer:
    """What `read` returns; where the disk refuses, it is asked again, and in the end that is `Unreadable`."""
    for pause in _PAUSES_SECONDS:
        with contextlib.suppress(OSError):
            return read()
        time.sleep(pause)
    try:
        return read()
    except OSError as error:
        raise Unreadable(error.errno, error.strerror, str(error.filename or path)) from error


def is_inside(name: str) -> bool:
    """Whether a file of this name exists in its folder."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and "\\" not in name and ":" not in name
