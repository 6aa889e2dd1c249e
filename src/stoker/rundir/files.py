"""Small files, written so that a reader or a crash never sees half of one, and digests of large ones."""

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from stoker.errors import StokerError

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)
"""What a disk says that is full, over quota, broken or read-only."""
_CHUNK_BYTES = 1 << 22
_WHOLE_BYTES = 1 << 26
_BLOCKS, _BLOCK_BYTES = 64, 1 << 20


def write_text(path: Path, text: str) -> None:
    """Replace `path` with `text` in one step: written aside, synced, renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Replace `path` with `value` as JSON in one step."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """JSON as it is written into files of ours."""
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def write_through(path: Path, text: str) -> None:
    """Write `text` under its own name and sync it: for readers who can tell half of it from all of it."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_json(path: Path) -> Any:
    """The JSON value in `path`."""
    return json.loads(path.read_text(encoding="utf-8"))


def sha256(path: Path, *, from_disk: bool = False) -> str:
    """The file's SHA-256 in hex, read in chunks; from the disk itself where the system can be asked to forget."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if from_disk and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def content_digest(path: Path) -> str:
    """A digest that follows the content, not the clock: whole up to 64 MiB, of evenly spread blocks beyond."""
    size = path.stat().st_size
    if size <= _WHOLE_BYTES:
        return sha256(path)
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for block in range(_BLOCKS):
            file.seek((size - _BLOCK_BYTES) * block // (_BLOCKS - 1))
            digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()


def folder_bytes(folder: Path) -> int:
    """What the files below a folder take."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


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
    finally:
        os.close(descriptor)
