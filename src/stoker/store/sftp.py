"""SFTP (version 3) spoken through the system's own `ssh -s HOST sftp`: keys, known hosts and jumps are OpenSSH's.

Only what a store needs. Every request has an end: a watch kills the connection when answers stay out, and whoever waits
for one gets a `Fault`. Knows bytes and packets, nothing of stores.
"""

import contextlib
import struct
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from stoker.store.store_protocol import Fault, Patience

INIT, VERSION, OPEN, CLOSE, READ, WRITE, REMOVE, MKDIR, RMDIR, STAT = 1, 2, 3, 4, 5, 6, 13, 14, 15, 17
OPENDIR, READDIR = 11, 12
STATUS, HANDLE, DATA, NAME, ATTRS, EXTENDED = 101, 102, 103, 104, 105, 200
OK, END, NO_SUCH_FILE, NOT_PERMITTED = 0, 1, 2, 3
FOR_READING, FOR_WRITING, CREATE, EXCLUSIVE = 0x01, 0x02, 0x08, 0x20
_HAS_SIZE, _HAS_OWNER, _HAS_MODE, _HAS_TIMES, _HAS_MORE = 0x01, 0x02, 0x04, 0x08, 0x80000000
_PACKET_BYTES = 32 << 10
_IN_FLIGHT = 32
_LOOK_SECONDS = 0.2
_LONGEST_PACKET = 1 << 20


class SftpRefused(Exception):
    """The server answered no; the connection is well."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True)
class SftpEntry:
    """One name of a listing."""

    name: str
    size_bytes: int
    is_folder: bool


class Connection:
    """One `ssh` process and the packets through it."""

    def __init__(self, command: list[str], patience: Patience) -> None:
        self._patience = patience
        self._talk = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the connection
        try:
            self._process = subprocess.Popen(  # noqa: S603  # the system's ssh, no shell
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._talk
            )
        except OSError as error:
            raise Fault(error) from error
        self._answers: dict[int, tuple[int, bytes]] = {}
        self._next = 0
        self._deadlines: list[float] = []
        self._closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()
        try:
            with self._within(patience.stall_seconds):
                self._send(INIT, struct.pack(">I", 3))
                self._receive()
        except Fault:
            self.close()
            raise

    def close(self) -> None:
        """End the process."""
        self._closed.set()
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._talk):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]  # both are pipes

    # ---- what a store needs

    def size(self, path: str) -> int | None:
        """Size of a file, or None where there is none."""
        try:
            return _attributes(self._ask(STAT, _text(path), ATTRS), 0)[0]
        except SftpRefused as refused:
            if refused.code == NO_SUCH_FILE:
                return None
            raise

    def make_folder(self, path: str) -> None:
        """Make a folder where there is none; its parent must be there."""
        if self.size(path) is None:
            try:
                self._ask(MKDIR, _text(path) + struct.pack(">I", 0))
            except SftpRefused:
                if self.size(path) is None:
                    raise

    def entries(self, path: str) -> list[SftpEntry]:
        """The entries of a folder; none if it does not exist."""
        found: list[SftpEntry] = []
        try:
            handle = self._ask(OPENDIR, _text(path), HANDLE)
        except SftpRefused as refused:
            if refused.code == NO_SUCH_FILE:
                return []
            raise
        try:
            while True:
                found += _entries(self._ask(READDIR, handle, NAME))
        except SftpRefused as refused:
            if refused.code != END:
                raise
        finally:
            self._ask(CLOSE, handle)
        return [entry for entry in found if entry.name not in (".", "..")]

    def remove(self, path: str) -> None:
        """Delete a file, if it is there."""
        self._unless_missing(REMOVE, path)

    def remove_folder(self, path: str) -> None:
        """Delete an empty folder, if it is there."""
        self._unless_missing(RMDIR, path)

    def rename(self, path: str, to: str) -> None:
        """Replace `to` atomically."""
        self._ask(EXTENDED, _text("posix-rename@openssh.com") + _text(path) + _text(to))

    def link(self, path: str, to: str) -> None:
        """A second name for a file; refused where that name is taken."""
        self._ask(EXTENDED, _text("hardlink@openssh.com") + _text(path) + _text(to))

    def write(self, path: str, begin: int, chunks: Iterator[bytes], wrote: Callable[[int], None]) -> None:
        """Write chunks from an offset on, synced at the end; `wrote` is called for each acknowledged chunk."""
        with self._opened(path, FOR_WRITING | CREATE) as handle:
            for chunk in chunks:
                packets = (
                    (WRITE, handle + struct.pack(">Q", begin + at) + _text(chunk[at : at + _PACKET_BYTES]))
                    for at in range(0, len(chunk), _PACKET_BYTES)
                )
                for _ in self._pipelined(packets, len(chunk), STATUS):
                    pass
                begin += len(chunk)
                wrote(len(chunk))
            with contextlib.suppress(SftpRefused):  # a server without the extension
                self._ask(EXTENDED, _text("fsync@openssh.com") + handle)

    def read(self, path: str, begin: int, end: int) -> Iterator[bytes]:
        """A range of a file, in chunks."""
        with self._opened(path, FOR_READING) as handle:
            while begin < end:
                behind = min(begin + self._patience.part_bytes, end)
                packets = (
                    (READ, handle + struct.pack(">QI", at, min(_PACKET_BYTES, behind - at)))
                    for at in range(begin, behind, _PACKET_BYTES)
                )
                chunk = b"".join(_string(answer, 0)[0] for answer in self._pipelined(packets, behind - begin, DATA))
                if len(chunk) != behind - begin:
                    raise Fault(f"{len(chunk)} bytes came in place of {behind - begin}")
                yield chunk
                begin = behind

    def ranges(self, path: str, parts: list[tuple[int, int]]) -> list[bytes]:
        """Several ranges of a file, asked for at once."""
        places = [
            (number, at, min(_PACKET_BYTES, end - at))
            for number, (begin, end) in enumerate(parts)
            for at in range(begin, end, _PACKET_BYTES)
        ]
        content = [bytearray() for _ in parts]
        with self._opened(path, FOR_READING) as handle:
            packets = ((READ, handle + struct.pack(">QI", at, size)) for _, at, size in places)
            answers = self._pipelined(packets, sum(size for _, _, size in places), DATA)
            for (number, _, _), answer in zip(places, answers, strict=True):
                content[number] += _string(answer, 0)[0]
        for (begin, end), found in zip(parts, content, strict=True):
            if len(found) != end - begin:
                raise Fault(f"{len(found)} bytes came in place of {end - begin}")
        return [bytes(found) for found in content]

    # ---- requests

    @contextlib.contextmanager
    def _opened(self, path: str, flags: int) -> Iterator[bytes]:
        handle = self._ask(OPEN, _text(path) + struct.pack(">II", flags, 0), HANDLE)
        try:
            yield handle
        finally:
            if self._process.poll() is None:
                self._ask(CLOSE, handle)

    def _unless_missing(self, kind: int, path: str) -> None:
        try:
            self._ask(kind, _text(path))
        except SftpRefused as refused:
            if refused.code != NO_SUCH_FILE:
                raise

    def _ask(self, kind: int, payload: bytes, expected: int = STATUS) -> bytes:
        (answer,) = self._pipelined(iter([(kind, payload)]), 0, expected)
        return answer

    def _pipelined(self, requests: Iterator[tuple[int, bytes]], size_bytes: int, expected: int) -> Iterator[bytes]:
        """Answers in the order of the requests, of which several are on their way at once."""
        waiting: deque[int] = deque()
        with self._within(self._patience.seconds_for(size_bytes)):
            for kind, payload in requests:
                self._next += 1
                self._send(kind, struct.pack(">I", self._next) + payload)
                waiting.append(self._next)
                if len(waiting) >= _IN_FLIGHT:
                    yield self._answer(waiting.popleft(), expected)
            while waiting:
                yield self._answer(waiting.popleft(), expected)

    def _answer(self, number: int, expected: int) -> bytes:
        while number not in self._answers:
            kind, packet = self._receive()
            if len(packet) < 4:
                raise Fault("the server does not speak SFTP")
            self._answers[struct.unpack(">I", packet[:4])[0]] = (kind, packet[4:])
        kind, payload = self._answers.pop(number)
        if kind == STATUS:
            code = struct.unpack(">I", payload[:4])[0]
            if code != OK:
                raise SftpRefused(code, _string(payload, 4)[0].decode("utf-8", "replace") or f"status {code}")
        if kind != expected:
            raise Fault(f"the server answered with a packet of kind {kind}")
        # A handle comes as it is to be sent back: with its length in front.
        return payload

    def _send(self, kind: int, payload: bytes) -> None:
        try:
            self._stdin.write(struct.pack(">IB", 1 + len(payload), kind) + payload)
            self._stdin.flush()
        except OSError as error:
            raise self._broken() from error

    def _receive(self) -> tuple[int, bytes]:
        length = struct.unpack(">I", self._exactly(4))[0]
        if not 1 <= length <= _LONGEST_PACKET:
            raise Fault("the server does not speak SFTP")
        packet = self._exactly(length)
        return packet[0], packet[1:]

    def _exactly(self, count: int) -> bytes:
        content = self._stdout.read(count)
        if len(content) != count:
            raise self._broken()
        return content

    @property
    def _stdin(self) -> BinaryIO:
        assert self._process.stdin is not None
        return self._process.stdin  # type: ignore[return-value]

    @property
    def _stdout(self) -> BinaryIO:
        assert self._process.stdout is not None
        return self._process.stdout  # type: ignore[return-value]

    def _broken(self) -> Fault:
        """What ssh said last."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        self._talk.seek(0)
        said = self._talk.read().decode("utf-8", "replace").strip().splitlines()
        return Fault(said[-1] if said else "the connection ended")

    @contextlib.contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        """The process is killed if the block takes longer; a block inside it has an end of its own, too."""
        deadline = time.monotonic() + seconds
        self._deadlines.append(deadline)
        try:
            yield
        finally:
            self._deadlines.remove(deadline)

    def _watch(self) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            if any(time.monotonic() > deadline for deadline in list(self._deadlines)):
                self._process.kill()
                return


def _text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(">I", len(raw)) + raw


def _string(packet: bytes, at: int) -> tuple[bytes, int]:
    length = struct.unpack(">I", packet[at : at + 4])[0]
    return packet[at + 4 : at + 4 + length], at + 4 + length


def _entries(packet: bytes) -> list[SftpEntry]:
    count, at = struct.unpack(">I", packet[:4])[0], 4
    found = []
    for _ in range(count):
        name, at = _string(packet, at)
        _, at = _string(packet, at)
        size, mode, at = _attributes(packet, at)
        found.append(SftpEntry(name.decode("utf-8", "replace"), size, (mode & 0o170000) == 0o040000))
    return found


def _attributes(packet: bytes, at: int) -> tuple[int, int, int]:
    """Size, mode and the offset behind."""
    flags, at = struct.unpack(">I", packet[at : at + 4])[0], at + 4
    size = mode = 0
    if flags & _HAS_SIZE:
        size, at = struct.unpack(">Q", packet[at : at + 8])[0], at + 8
    if flags & _HAS_OWNER:
        at += 8
    if flags & _HAS_MODE:
        mode, at = struct.unpack(">I", packet[at : at + 4])[0], at + 4
    if flags & _HAS_TIMES:
        at += 8
    if flags & _HAS_MORE:
        count, at = struct.unpack(">I", packet[at : at + 4])[0], at + 4
        for _ in range(2 * count):
            _, at = _string(packet, at)
    return size, mode, at
