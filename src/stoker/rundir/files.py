"""Small files, written so that a reader or a crash never sees half of one."""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from stoker.errors import StokerError

DISK_ERRORS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EROFS,
    errno.EFBIG,
    errno.ENOTCONN,
    errno.ESTALE,
)
"""What a disk says that is full, over quota, broken, read-only, or mounted from somewhere that is gone."""
_NO_FOLDER_SYNC = (errno.EBADF, errno.EINVAL, errno.ENOTSUP)
"""What a file system says that can sync files only: 9p, old CIFS, some in user space."""
_OF_A_DISK = ("lost+found", "System Volume Information", "$RECYCLE.BIN")
_CHUNK_BYTES = 1 << 22
_LARGEST_RECORD_BYTES = 1 << 28
_MOST_DIGITS = 20

FOREIGN = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
"""What reading a record that is not ours may raise: a run directory comes from a store, a message from a socket."""
_ENDLESS_SECONDS = 1e9
"""No step, save or run lasts longer."""

Record = TypeVar("Record", bound="Validating")


class Validating(Protocol):
    """A kind of record that checks what it is made of, as pydantic's models do; this file needs no pydantic."""

    @classmethod
    def model_validate(cls: type[Record], obj: Any) -> Record:
        """The record, or a ValueError."""


class Unreadable(OSError):
    """The disk does not hand out a checkpoint right now: no permission, a lost mount, a failing device.

    It may be whole, so it is neither put aside nor passed over.
    """

    def named(self) -> StokerError:
        """The error that the user sees."""
        return StokerError("STK440", path=self.filename, reason=self.strerror)


def write_text(path: Path, text: str) -> None:
    """Replace `path` with `text` in one step: written aside, synced, renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, text, write_through)
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Replace `path` with `value` as JSON in one step."""
    write_text(path, json_text(value))


def write_unsynced(path: Path, value: Any) -> None:
    """Replace `path` with `value` as JSON in one step, without waiting for the disk: for a heartbeat."""
    _replace(path, json_text(value), _write_unsynced)


def _replace(path: Path, text: str, write: Callable[[Path, str], None]) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(aside, text)
        aside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def _write_unsynced(path: Path, text: str) -> None:
    """Write `text` into a new file, and leave the rest to the system."""
    path.unlink(missing_ok=True)
    with path.open("x", encoding="utf-8", newline="\n") as file:
        file.write(text)


def json_text(value: Any) -> str:
    """JSON as it is written into files of ours."""
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def write_through(path: Path, text: str) -> None:
    """Write `text` into a new file of this name and sync it: for readers who can tell half of it from all of it."""
    path.unlink(missing_ok=True)  # left by a crash, or a stranger's link
    with path.open("x", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_json(path: Path) -> Any:
    """The JSON value in `path`; a ValueError for anything else, however large or deep."""
    if (size := path.stat().st_size) > _LARGEST_RECORD_BYTES:
        raise ValueError(f"{size} bytes are too large for a record")
    return parse_json(path.read_text(encoding="utf-8"))


def parse_json(text: str | bytes) -> Any:
    """A JSON value that others wrote; a ValueError for anything else."""
    try:
        return json.loads(text, parse_int=_bounded)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _bounded(digits: str) -> int:
    """A whole number of at most 64 bits: a larger one ends in an OverflowError wherever it is counted with."""
    if len(digits) > _MOST_DIGITS:
        raise ValueError("a number is too large")
    return int(digits)


def read_if_any(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is no such file or it holds something else."""
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def number(value: Any) -> float:
    """A count or a duration in a record; 0 for anything else."""
    return float(value) if isinstance(value, int | float) and 0 <= value < _ENDLESS_SECONDS else 0.0


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run directory; one that holds none is named."""
    try:
        value = read_json(path)
    except ValueError as error:
        raise unreadable(path, error) from error
    if not isinstance(value, dict):
        raise unreadable(path, TypeError(type(value).__name__))
    return value


def read_record(path: Path, kind: type[Record]) -> Record:
    """A record of a run directory; a file that holds none of this kind is named."""
    value = read_object(path)
    try:
        return kind.model_validate(value)
    except ValueError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> StokerError:
    """The error that names a file that could not be read."""
    return StokerError("STK512", path=path, reason=reason(error))


def reason(error: BaseException) -> str:
    """What a reader says of a file, in one line."""
    said = str(error).strip().splitlines()
    kind = type(error).__name__
    if not said:
        return kind
    return f"{kind}: {said[0]}" if isinstance(error, LookupError | TypeError | AttributeError) else said[0]


def error_number(error: BaseException) -> int | None:
    """The errno of a disk error, also from the text of safetensors' and tokenizers' exceptions; None for others."""
    if isinstance(error, OSError):
        return error.errno
    said = re.search(r"\(os error (\d+)\)", str(error))
    return int(said[1]) if said else None


def sha256(path: Path, *, from_disk: bool = False) -> str:
    """The file's SHA-256 in hex, read in chunks; from the disk itself where the system can be asked to forget."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if from_disk and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def link(source: Path | str, target: Path | str) -> None:
    """A second name for a large file that is never written in place; a copy where the disk cannot."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise  # a copy would be written through it into what another name means
    except OSError:
        shutil.copy2(source, target)
        sync_file(Path(target))


def below(folder: Path) -> list[Path]:
    """Every file below a folder; what the disk cannot list is its error: from Python 3.12 on pathlib passes over it."""
    return sorted(sizes_below(folder))


def sizes_below(folder: Path) -> dict[Path, int]:
    """The same with their sizes."""

    def listed(error: OSError) -> None:
        if not holds_nothing(error, folder):
            raise error

    walked = os.walk(folder, onerror=listed)
    found = ((path, _size(path)) for parent, _, names in walked for path in (Path(parent, name) for name in names))
    return {path: size for path, size in found if size is not None}


def _size(path: Path) -> int | None:
    """Of a file; None of anything else, and of what is gone by now."""
    try:
        said = path.stat()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return None
    return said.st_size if stat.S_ISREG(said.st_mode) else None


def holds_nothing(error: OSError, top: Path) -> bool:
    """Whether a folder that cannot be listed is gone, or is below `top` and a disk's own that is nobody's to list."""
    if isinstance(error, PermissionError):
        path = Path(error.filename)
        return path != top and (path.name in _OF_A_DISK or path.name.startswith("."))
    return isinstance(error, FileNotFoundError | NotADirectoryError)


def folder_bytes(folder: Path) -> int:
    """What the files below a folder take."""
    return sum(sizes_below(folder).values())


def require_room(folder: Path, needed: int) -> None:
    """There is room on the folder's disk for so many bytes."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StokerError("STK407", needed=f"{needed / 1e9:.1f}", free=f"{free / 1e9:.1f}", folder=folder)


def sync_file(path: Path) -> None:
    """Push the file's bytes to the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Push a folder's entries to the disk. Windows has no such call and needs none for its renames."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)
