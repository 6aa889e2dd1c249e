"""The protocol of stores, with time limits and retries. Each kind of store has a file of its own.

A store holds files by name below one root. A name shows a complete file or none: partial files have other names.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from stoker import env, messages
from stoker.errors import StokerError

T = TypeVar("T")
LARGEST_SMALL_BYTES = 16 << 20
"""A store's content is not trusted: larger files are not read into memory."""


class Fault(Exception):
    """The store request failed and may succeed later: a lost connection, a busy server, a full quota.

    Args:
        reason: A sentence or the underlying error; secrets are removed.
        gained_bytes: Bytes transferred before the failure that need not be sent again.
    """

    def __init__(self, reason: object, gained_bytes: int = 0) -> None:
        super().__init__(env.without_secrets(str(reason) or type(reason).__name__))
        self.gained_bytes = gained_bytes


@dataclass(frozen=True)
class Patience:
    """Time limits and retries."""

    stall_seconds: float = 60
    """Longest time without a response."""
    least_bytes_per_second: float = 32 << 10
    """A slower transfer counts as stalled."""
    tries: int = 6
    """Failures in a row without progress."""
    part_bytes: int = 8 << 20
    """Size of one transfer, and the most that is repeated after a lost connection. S3 takes no parts below 5 MiB."""
    first_pause_seconds: float = 1
    longest_pause_seconds: float = 60
    on_fault: Callable[[Fault], None] | None = None
    """Called with each fault that is retried."""

    def seconds_for(self, size_bytes: int) -> float:
        """Time limit for transferring this many bytes."""
        return self.stall_seconds + size_bytes / self.least_bytes_per_second

    def pause(self, attempt: int) -> None:
        """Wait before the next attempt, longer each time."""
        time.sleep(min(self.longest_pause_seconds, self.first_pause_seconds * 2**attempt))


@dataclass
class Bandwidth:
    """Limits the mean transfer rate."""

    bytes_per_second: float = 0
    """0: no cap."""
    _free_at: float = field(default=0.0, init=False)

    def spend(self, size_bytes: int) -> None:
        """Wait until this many bytes may be sent."""
        if not self.bytes_per_second:
            return
        now = time.monotonic()
        begin = max(now, self._free_at)
        self._free_at = begin + size_bytes / self.bytes_per_second
        time.sleep(begin - now)


class Store(Protocol):
    """Files by name. Names are relative, with `/` between folders. A temporary failure raises `Fault`."""

    beats: bool
    """Whether a small file may be rewritten twice a minute."""

    def names(self, folder: str) -> dict[str, int]:
        """Every file below a folder, with its size; none where there is no such folder."""

    def read(self, name: str) -> bytes:
        """A small file; FileNotFoundError where there is none."""

    def write(self, name: str, content: bytes) -> None:
        """Write a small file, replacing an earlier one."""

    def create(self, name: str, content: bytes) -> bool:
        """Write a small file only if there is none; returns whether it did."""

    def swap(self, name: str, before: bytes, after: bytes) -> bool:
        """Replace a small file only if it still holds `before`; returns whether it did."""

    def upload(self, source: Path, name: str, sha256: str) -> None:
        """Copy a file, resuming an earlier attempt; the store's copy is verified before this returns."""

    def download(self, name: str, target: Path, size_bytes: int) -> None:
        """Append the missing bytes of a file to `target`."""

    def sha256(self, name: str, size_bytes: int) -> str:
        """The digest of the stored file, computed again."""

    def remove(self, names: list[str]) -> None:
        """Delete files, in this order; missing ones are ignored."""

    def sweep(self, folder: str, current: str) -> None:
        """Delete leftovers of unfinished uploads below a folder, except below `current`."""


class ByteRange(NamedTuple):
    """Part of a stored file."""

    name: str
    begin: int
    end: int


@runtime_checkable
class Ranged(Protocol):
    """A store whose files can be read in parts, for training that reads while it runs; not every kind can."""

    def ranges(self, wanted: Sequence[ByteRange]) -> Iterator[tuple[int, bytes]]:
        """Each range by its place in the list, in any order; a `Fault` comes after those that arrived."""


@dataclass(frozen=True)
class Patient:
    """A store with retries: a bounded number of failures in a row without progress."""

    inner: Store
    patience: Patience
    package: str | None = None
    """Name and version of the package that provides the store, where it is not built in; faults name it."""

    @property
    def beats(self) -> bool:
        """See `Store`."""
        return self.inner.beats

    def names(self, folder: str) -> dict[str, int]:
        """See `Store`."""
        return self._persist(lambda: self.inner.names(folder))

    def read(self, name: str) -> bytes:
        """See `Store`."""
        return self._persist(lambda: self.inner.read(name))

    def write(self, name: str, content: bytes) -> None:
        """See `Store`."""
        self._persist(lambda: self.inner.write(name, content))

    def create(self, name: str, content: bytes) -> bool:
        """See `Store`; if a response was lost, the stored content decides."""
        return self._persist(lambda: self.inner.create(name, content)) or self._holds(name, content)

    def swap(self, name: str, before: bytes, after: bytes) -> bool:
        """See `Store`; if a response was lost, the stored content decides. A missing file is not replaced."""
        try:
            return self._persist(lambda: self.inner.swap(name, before, after)) or self._holds(name, after)
        except FileNotFoundError:
            return False

    def upload(self, source: Path, name: str, sha256: str) -> None:
        """See `Store`."""
        self._persist(lambda: self.inner.upload(source, name, sha256))

    def download(self, name: str, target: Path, size_bytes: int) -> None:
        """See `Store`."""
        self._persist(lambda: self.inner.download(name, target, size_bytes))

    def sha256(self, name: str, size_bytes: int) -> str:
        """See `Store`."""
        return self._persist(lambda: self.inner.sha256(name, size_bytes))

    def remove(self, names: list[str]) -> None:
        """See `Store`."""
        self._persist(lambda: self.inner.remove(names))

    def sweep(self, folder: str, current: str) -> None:
        """See `Store`."""
        self._persist(lambda: self.inner.sweep(folder, current))

    def _holds(self, name: str, content: bytes) -> bool:
        try:
            return self.read(name) == content
        except FileNotFoundError:
            return False

    def _persist(self, attempt: Callable[[], T]) -> T:
        failed = 0
        while True:
            try:
                return self._attributed(attempt)
            except Fault as fault:
                failed = 1 if fault.gained_bytes else failed + 1
                if failed >= self.patience.tries:
                    raise
                if self.patience.on_fault is not None:
                    self.patience.on_fault(fault)
            self.patience.pause(failed - 1)

    def _attributed(self, attempt: Callable[[], T]) -> T:
        """Errors from another package's store become faults that name the package."""
        if self.package is None:
            return attempt()
        try:
            return attempt()
        except (StokerError, FileNotFoundError):
            raise
        except Fault as fault:
            raise Fault(f"{self.package}: {fault}", fault.gained_bytes) from fault
        except Exception as error:  # someone else's code may raise anything
            raise Fault(f"{self.package}: {type(error).__name__}: {error}") from error


def bounded(operation: Callable[[], T], seconds: float) -> T:
    """Run in a thread that is abandoned after the time limit: a dead mount or a client library may never return."""
    results: list[T] = []
    problems: list[BaseException] = []

    def run() -> None:
        try:
            results.append(operation())
        except BaseException as error:  # noqa: BLE001  # raised again in the calling thread
            problems.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if problems:
        raise problems[0]
    if not results:
        raise Fault(messages.text("reason.no_response", seconds=round(seconds)))
    return results[0]


def require_small(name: str, size_bytes: int) -> None:
    """Refuse to read a file into memory that is larger than any record of Stoker's."""
    if size_bytes > LARGEST_SMALL_BYTES:
        raise StokerError("STK658", file=name, reason=messages.text("damage.large", found=size_bytes))


def sha256_of(content: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(content).hexdigest()
