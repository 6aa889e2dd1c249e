"""One machine at a time writes a run's copies: `<run>/lease.json`, renewed as long as the run is trained.

Whoever finds a lease that is not renewed for its time takes it over; whoever finds one that is, stays away. No two
clocks need to agree: the other's renewals are watched for. A writer that lost its lease (its machine slept) finds that
out before its next record and stops.
"""

import contextlib
import datetime
import hashlib
import json
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.errors import StokerError
from stoker.rundir import files, filesystem
from stoker.store.store_protocol import Fault, Patient

NAME = "lease.json"
SECONDS = 120.0
_RENEWALS = 4
"""In the time of a lease."""
_LOOK_SECONDS = 5.0
_OWN_INODES = ("fuse", "9p")
_MACHINE_FILES = (Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id"))


class Lease:
    """This run directory's right to write under a run's name.

    Args:
        store: Where.
        run_name: Whose copies.
        token: Who we are (`own_token`); the same for all programs of one run directory.
        seconds: How long it holds without being renewed.
    """

    def __init__(self, store: Patient, run_name: str, token: str, seconds: float = SECONDS) -> None:
        self._store = store
        self._name = f"{run_name}/{NAME}"
        self._run_name = run_name
        self._token = token
        self._seconds = seconds

    def acquire(self, waiting: Callable[[float], None] | None = None) -> None:
        """Take the lease, or raise STK656: another machine holds it and is alive.

        Args:
            waiting: Told for how long at most the other is watched.
        """
        if not self._store.beats:
            return
        while not self._taken():
            found = self._read()
            if self._is_ours(found):
                return  # a program of this run directory renewed it this very moment
            if found is None:
                continue
            if waiting is not None:
                waiting(self._seconds)
            self._watch(found)
            self._store.swap(self._name, found, self._content())

    def renew(self) -> bool:
        """Say that we are alive; False where the lease is another's by now. One that was given back is left so."""
        found = self._read() if self._store.beats else None
        if found is None or self._renewed(found):
            return True
        now = self._read()
        return now is None or self._is_ours(now)

    def require(self) -> None:
        """The lease is still ours, or STK656."""
        if self._store.beats and not self._is_ours(self._read()):
            raise StokerError("STK656", name=self._run_name)

    def release(self) -> None:
        """Give it back, if it is ours."""
        if self._store.beats and self._is_ours(self._read()):
            self._store.remove([self._name])

    def _taken(self) -> bool:
        found = self._read()
        if found is None:
            return self._store.create(self._name, self._content())
        return self._renewed(found)

    def _renewed(self, found: bytes) -> bool:
        return self._is_ours(found) and self._store.swap(self._name, found, self._content())

    def _watch(self, found: bytes) -> None:
        """Look whether the holder renews it; it is dead if not."""
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            time.sleep(min(_LOOK_SECONDS, self._seconds / _RENEWALS))
            now = self._read()
            if now is None or self._is_ours(now):
                return
            if now != found:
                raise StokerError("STK656", name=self._run_name)

    def _read(self) -> bytes | None:
        try:
            return self._store.read(self._name)
        except FileNotFoundError:
            return None

    def _is_ours(self, content: bytes | None) -> bool:
        return content is not None and _holder(content).get("token") == self._token

    def _content(self) -> bytes:
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        return json.dumps({"token": self._token, "at": now, "beat": secrets.token_hex(8)}).encode()


class Renewing:
    """Renews a lease in the background, for the length of a block; a fault of the line is not yet a loss.

    Args:
        lease: Nobody else is to use its store meanwhile: a connection serves one at a time.
        seconds: How long it holds without being renewed.
        gives_back: Asked at the end of the block whether the lease is given back.
    """

    def __init__(self, lease: Lease, seconds: float = SECONDS, gives_back: Callable[[], bool] = lambda: False) -> None:
        self._lease = lease
        self._every = seconds / _RENEWALS
        self._gives_back = gives_back
        self._over = threading.Event()
        self.lost = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Renew until the process ends."""
        self._thread.start()

    def __enter__(self) -> "Renewing":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """A dead line is not waited for: a lease that is not given back runs out by itself."""
        self._over.set()
        self._thread.join(min(self._every, 1.0))

    def _run(self) -> None:
        while not self._over.wait(self._every):
            try:
                if not self._lease.renew():
                    self.lost.set()
                    return
            except (Fault, StokerError):  # noqa: PERF203  # the loop waits anyway
                continue
        if self._gives_back():
            with contextlib.suppress(Fault, StokerError):
                self._lease.release()


def own_token(path: Path) -> str:
    """Who this run directory is to the store: drawn once, and bound to where it is, so that a copy is another.

    A copied folder has another inode, a cloned disk another machine; a renamed folder is the same. A machine that was
    restarted is another, too: it waits until its old lease runs out.
    """
    if not path.exists():
        files.write_text(path, secrets.token_hex(16))
    bound = [path.read_text(encoding="utf-8").strip(), _file(path), *_machine()]
    return hashlib.sha256("\n".join(bound).encode()).hexdigest()[:32]


def _file(path: Path) -> str:
    """Which file it is: by its inode, or by its path where that may change (file systems in user space)."""
    if filesystem.kind_of(path.parent).startswith(_OWN_INODES):
        return str(path.resolve())
    found = path.stat()
    return f"{found.st_dev}:{found.st_ino}"


def _machine() -> list[str]:
    """This boot of this machine; its name elsewhere, but on a Mac, which is named by the network it is in."""
    found = [] if sys.platform == "darwin" else [socket.gethostname()]
    for file in _MACHINE_FILES:
        with contextlib.suppress(OSError):
            found.append(file.read_text(encoding="utf-8").strip())
    return found


def _holder(content: bytes) -> dict[str, Any]:
    try:
        found = files.parse_json(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
