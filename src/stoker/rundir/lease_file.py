"""A lock for disks without record locks: numbered files next to it, the highest of which is renewed by its holder.

`train.lock.lease-7`: whoever wants the lock creates the next number, which only one can, once the highest is released,
its process is dead (on this machine: by its pid), or it was not renewed for `SECONDS` (on another one: watched, so that
no two clocks need to agree). The highest is never deleted, so a number is never given twice. A holder that slept and
was replaced ends at once.
"""

import contextlib
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stoker.errors import EXIT_USER, StokerError
from stoker.rundir import in_place

SECONDS = 60.0
"""How long a lease holds without being renewed."""
_RENEWALS = 12
"""In the time of a lease."""
_LOOK_SECONDS = 0.5
_LONG_AGO_SECONDS = 3600.0
"""Not renewed for so long by any clock: not worth watching for."""
_RECORD_BYTES = 400


@contextmanager
def held(path: Path, tries: int, wait: Callable[[float], None], pause_seconds: float) -> Iterator[bool]:
    """Hold the lock for the block; yields whether it could be taken."""
    mine = _created(path)
    for _ in range(tries - 1):
        if mine is not None:
            break
        wait(pause_seconds)
        mine = _created(path)
    if mine is None:
        yield False
        return
    with _Renewed(path, *mine):
        yield True


def is_held(path: Path) -> bool:
    """Whether some process holds the lock."""
    newest = _newest(path)
    return newest > 0 and not _is_over(_lease(path, newest))


class _Renewed:
    """Our lease, renewed in the background for the length of a block."""

    def __init__(self, path: Path, number: int, descriptor: int) -> None:
        self._path, self._number, self._descriptor = path, number, descriptor
        self._pid = os.getpid()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        if os.getpid() == self._pid:  # not a forked child that leaves the block
            self._over.set()
            self._thread.join()
            with contextlib.suppress(OSError):
                _write(self._descriptor, {"released": True})
        os.close(self._descriptor)

    def _renew(self) -> None:
        beat = 0
        while not self._over.wait(SECONDS / _RENEWALS):
            beat += 1
            with contextlib.suppress(OSError):  # a full disk or a lost mount: the next one may succeed
                if _newest(self._path) != self._number:
                    sys.stderr.write(f"{StokerError('STK411', pid='?', name=self._path.parent.name)}\n")
                    os._exit(EXIT_USER)  # another works here by now: not one more file is written
                _write(self._descriptor, {**_self(), "beat": beat})


def _created(path: Path) -> tuple[int, int] | None:
    """Number and descriptor of a lease of ours; None where another holds it, or was faster."""
    newest = _newest(path)
    if newest and not _is_over(_lease(path, newest)):
        return None
    try:
        descriptor = in_place.descriptor(_lease(path, newest + 1), os.O_RDWR | os.O_EXCL)
    except FileExistsError:
        return None
    if _newest(path) != newest + 1:  # numbers were given out while we looked: ours is an old one
        os.close(descriptor)
        with contextlib.suppress(OSError):
            _lease(path, newest + 1).unlink()
        return None
    _write(descriptor, {**_self(), "beat": 0})
    for number, old in _leases(path):
        if number <= newest:
            with contextlib.suppress(OSError):
                old.unlink()
    return newest + 1, descriptor


def _newest(path: Path) -> int:
    return max((number for number, _ in _leases(path)), default=0)


def _leases(path: Path) -> Iterator[tuple[int, Path]]:
    named = re.compile(re.escape(path.name) + r"\.lease-(\d{1,18})")
    for one in path.parent.iterdir():
        if found := named.fullmatch(one.name):
            yield int(found[1]), one


def _lease(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.lease-{number}")


def _is_over(lease: Path) -> bool:
    """Whether a lease binds nobody any more; one of another machine is watched for a sign of life."""
    record = _read(lease)
    if record is None or record.get("released") is True:
        return record is not None
    if record.get("machine") == _machine() and _started(os.getpid()):
        return _started(record.get("pid")) != record.get("started")
    if time.time() - lease.stat().st_mtime > _LONG_AGO_SECONDS:
        return True
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        time.sleep(min(_LOOK_SECONDS, SECONDS / _RENEWALS))
        now = _read(lease)
        if now != record:
            return now is not None and now.get("released") is True
    return True


def _write(descriptor: int, record: dict[str, Any]) -> None:
    """In place and always as long, so that a reader finds a whole one."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, json.dumps(record).ljust(_RECORD_BYTES).encode()[:_RECORD_BYTES])


def _read(lease: Path) -> dict[str, Any] | None:
    """What a lease says; empty while it is being created, None where a newer one has replaced it."""
    try:
        value = json.loads(lease.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _self() -> dict[str, Any]:
    return {"machine": _machine(), "pid": os.getpid(), "started": _started(os.getpid())}


def _machine() -> str:
    """Which boot of which machine, and which pids mean something here; without /proc only its name."""
    parts = [socket.gethostname()[:64]]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def _started(pid: Any) -> str:
    """When a living process began, in ticks; empty for a dead one, and where the system does not say."""
    try:
        state, *rest = Path(f"/proc/{int(pid)}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (OSError, ValueError, TypeError):
        return ""
    return "" if state in "ZX" else rest[18]
