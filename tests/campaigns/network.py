"""A TCP proxy on 127.0.0.1 that breaks one connection on command, in the ways lines break.

reset      both ends get a reset
stall      nothing is passed on any more, in either direction; the connection stays open
half-open  the far end is gone and nobody says so: what the near end sends disappears
trickle    one byte a second
flip       one bit arrives otherwise than it was sent, and nobody says so
A line may also be slow as a whole: `bytes_per_second` is what all its connections may bring together.
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

KINDS = ("reset", "stall", "half-open", "trickle")
UP, DOWN = "up", "down"
_BLOCK = 16 << 10


@dataclass
class Cut:
    """One break: of this kind, once so many bytes went this way since it was armed."""

    kind: str
    way: str
    after_bytes: int


@dataclass
class Proxy:
    """Passes connections on to a port, counts bytes, and breaks the line where armed."""

    reach: Callable[[int], int]
    """The port that a connection from this port is passed on to."""
    port: int = 0
    bytes_per_second: float = 0
    """What comes down the line in all; 0 for no limit."""
    _free_at: float = 0.0
    moved: dict[str, int] = field(default_factory=lambda: {UP: 0, DOWN: 0})
    fired: list[Cut] = field(default_factory=list)
    _armed: list[Cut] = field(default_factory=list)
    _base: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open: list[socket.socket] = field(default_factory=list)

    def arm(self, cuts: list[Cut]) -> None:
        """These breaks come one after the other, each counted from the one before."""
        with self._lock:
            self._armed = list(cuts)
            self.fired = []
            self._base = self.moved[cuts[0].way] if cuts else 0

    def heal(self) -> None:
        """No more breaks; whatever hangs is let go."""
        self.arm([])
        with self._lock:
            left, self._open = self._open, []
        for one in left:
            _end(one)

    def serve(self, listening: socket.socket) -> None:
        while True:
            try:
                near, (_, origin) = listening.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.reach(origin)))
            except OSError:
                _end(near)
                continue
            line = Line(self, near, far)
            with self._lock:
                self._open += [near, far]
            for way in (UP, DOWN):
                threading.Thread(target=line.pump, args=(way,), daemon=True).start()

    def pace(self, way: str, count: int) -> None:
        """Wait until so many bytes may pass."""
        if way != DOWN or not self.bytes_per_second:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(now, self._free_at) + count / self.bytes_per_second
            until = self._free_at
        time.sleep(until - now)

    def allowance(self, way: str, wanted: int) -> tuple[int, Cut | None]:
        """How much of a block may pass before a break is due, and the break."""
        with self._lock:
            cut = self._armed[0] if self._armed else None
            if cut is None or cut.way != way:
                self.moved[way] += wanted
                return wanted, None
            left = cut.after_bytes - (self.moved[way] - self._base)
            if wanted <= left:
                self.moved[way] += wanted
                return wanted, None
            self._armed.pop(0)
            self.moved[way] += max(0, left)
            self.fired.append(cut)
            self._base = self.moved[self._armed[0].way] if self._armed else 0
            return max(0, left), cut


class Line:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, near: socket.socket, far: socket.socket) -> None:
        self._proxy = proxy
        self._ends = {UP: (near, far), DOWN: (far, near)}
        self._broken = threading.Event()

    def pump(self, way: str) -> None:
        source, target = self._ends[way]
        try:
            while block := source.recv(_BLOCK):
                if self._broken.is_set():
                    return
                self._proxy.pace(way, len(block))
                passed, cut = self._proxy.allowance(way, len(block))
                target.sendall(block[:passed])
                if cut is not None and cut.kind == "flip":
                    target.sendall(bytes([block[passed] ^ 1]) + block[passed + 1 :])
                    continue
                if cut is not None:
                    self._break(cut, way, block[passed:])
                    return
        except OSError:
            pass
        finally:
            if not self._broken.is_set():
                for end in self._ends[way]:
                    _end(end)

    def _break(self, cut: Cut, way: str, rest: bytes) -> None:
        near, far = self._ends[UP]
        if cut.kind == "reset":
            for end in (near, far):
                with contextlib.suppress(OSError):
                    # Closed with a zero linger it is reset; whoever waits on it in the other thread wakes up first.
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                _end(end, reading_only=True)
        elif cut.kind == "trickle":
            self._trickle(way, rest)
        else:
            self._broken.set()
            if cut.kind == "half-open":
                _end(far)
                self._swallow(near)

    def _trickle(self, way: str, rest: bytes) -> None:
        source, target = self._ends[way]
        while True:
            for index in range(len(rest)):
                target.sendall(rest[index : index + 1])
                time.sleep(1)
            rest = source.recv(_BLOCK)
            if not rest:
                return

    @staticmethod
    def _swallow(near: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while near.recv(_BLOCK):
                pass


def _end(one: socket.socket, *, reading_only: bool = False) -> None:
    """Shut down, then close: a close alone does nothing while another thread waits on the socket."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RD if reading_only else socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        one.close()


@contextlib.contextmanager
def proxied(reach: Callable[[int], int]) -> Iterator[Proxy]:
    listening = socket.create_server(("127.0.0.1", 0))
    proxy = Proxy(reach, int(listening.getsockname()[1]))
    serving = threading.Thread(target=proxy.serve, args=(listening,), daemon=True)
    serving.start()
    try:
        yield proxy
    finally:
        _end(listening)
        serving.join()
        proxy.heal()
