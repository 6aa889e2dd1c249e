"""SHA-256 of whole files, remembered for this user: a file that did not change since is not read again.

One small record per file in Stoker's per-user folder (`digests/`), by device and inode; it holds for the same size and
the same two times only. Records are replaced in one step and sealed: processes at once, a full disk or a damaged record
cost another reading, never a wrong digest. The folder may be deleted at any time.
"""

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stoker import env
from stoker.rundir import files

Progress = Callable[[int, int], None]
"""Told the bytes that are read so far, and those to be read in all."""

_REMEMBERED_BYTES = 1 << 20
"""Smaller files are read again: that costs no more than looking up a record."""
_CHUNK_BYTES = 1 << 22
_WORKERS = 4
_SETTLED_NS = 3_000_000_000
"""Times are as coarse as two seconds (FAT): a file changed that recently may change again and keep its times."""
_SHOWN_SECONDS = 0.2


def of(path: Path) -> str:
    """The file's SHA-256 in hex."""
    return of_all([path])[path]


def of_all(paths: Iterable[Path], progress: Progress = lambda *_: None) -> dict[Path, str]:
    """The SHA-256 of each file; several are read at once."""
    wanted = list(dict.fromkeys(paths))
    known = {path: digest for path in wanted if (digest := _remembered(path))}
    unread = [path for path in wanted if path not in known]
    meter = _Meter(progress, sum(path.stat().st_size for path in unread))
    with ThreadPoolExecutor(min(_WORKERS, len(unread) or 1)) as pool:
        read = dict(zip(unread, pool.map(lambda path: _digest(path, meter), unread), strict=True))
    return {path: known.get(path) or read[path] for path in wanted}


class _Meter:
    """Counts the bytes that all workers have read."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total = progress, total
        self._done = 0
        self._shown_at = time.monotonic()
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._shown_at >= _SHOWN_SECONDS:
                self._shown_at = now
                self._progress(self._done, self._total)


def _digest(path: Path, meter: _Meter) -> str:
    began, before = _now_ns(), _facts(path)
    digest = _hashed(path, meter)
    changed_ns = before[-1] if os.name != "nt" else before[-2]  # Windows' second time is that of creation
    if before[2] >= _REMEMBERED_BYTES and changed_ns + _SETTLED_NS < began and _facts(path) == before:
        _remember(before, digest)
    return digest


def _hashed(path: Path, meter: _Meter) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            meter.add(len(chunk))
    return digest.hexdigest()


def _facts(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _remembered(path: Path) -> str:
    facts = _facts(path)
    if facts[2] < _REMEMBERED_BYTES:
        return ""
    record = files.read_if_any(_record_file(facts))
    whole = record.get("file") == facts and record.get("seal") == _seal(facts, record.get("sha256"))
    return str(record["sha256"]) if whole else ""


def _remember(facts: list[int], digest: str) -> None:
    path = _record_file(facts)
    with contextlib.suppress(OSError):  # a home that is full or read-only
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_unsynced(path, {"file": facts, "sha256": digest, "seal": _seal(facts, digest)})


def _record_file(facts: list[int]) -> Path:
    return env.home() / "digests" / f"{facts[0]:x}-{facts[1]:x}.json"


def _seal(facts: list[int], digest: Any) -> str:
    return hashlib.sha256(json.dumps([facts, digest]).encode()).hexdigest()


def _now_ns() -> int:
    return time.time_ns()
