"""Connections between the head of a run of several nodes and the others: mutual authentication, signed messages.

Both ends prove that they have the run's key, each for a nonce of the other's; afterwards every message is signed with
its direction and its number: nobody else can join, pose as the head, or change, drop, reorder or replay a message.
Nothing is encrypted: no secret is sent here. This file knows connections, nothing of what the messages mean.
"""

import contextlib
import hmac
import itertools
import json
import queue
import secrets
import select
import socket
import threading
import time
from typing import Any

LOST_SECONDS = 15.0
"""A connection without a message for so long is lost; both ends send one every `BEAT_SECONDS`."""
BEAT_SECONDS = 1.0
_GREETING_SECONDS = 10.0
"""To prove to have the key."""
_LIVING_SECONDS = 3.0
"""A node that sent something within this time is connected: a second agent of its name is turned away."""
_LARGEST_BYTES = 1 << 22
_GREETING_BYTES = 1 << 12
_STRANGERS = 64
"""How many may authenticate at a time."""
_ACCEPT_SECONDS = 1.0

Said = dict[str, Any]


class WireRefused(ConnectionError):
    """The other end does not have the key, does not know the name, or has a connection of this name already."""


class WireLine:
    """One end of a connection: JSON objects, one a text line, each after its signature."""

    def __init__(self, connection: socket.socket, ours: str, theirs: str) -> None:
        self._connection = connection
        self._ours, self._theirs = ours, theirs
        self._key = b""  # until both have authenticated
        self._sent = self._received = 0
        self._largest_bytes = _GREETING_BYTES
        self._rest = bytearray()
        self._sending = threading.Lock()
        self.heard_at = time.monotonic()
        connection.settimeout(LOST_SECONDS)
        _keep_alive(connection)

    def trust(self, key: bytes) -> None:
        """From now on sign messages, and accept signed ones, with the key of this connection."""
        self._key, self._largest_bytes = key, _LARGEST_BYTES

    def send(self, said: Said) -> None:
        """Send a message; an error means that the connection is lost."""
        text = json.dumps(said)
        with self._sending:
            line = f"{_proof(self._key, self._ours, self._sent, text)} {text}\n".encode()
            if len(line) > self._largest_bytes:
                raise ValueError(f"{len(line)} bytes")
            self._sent += 1
            try:
                self._connection.sendall(line)
            except OSError:
                self.close()  # half of it may have been sent
                raise

    def receive(self, seconds: float) -> Said:
        """The next message; TimeoutError where none comes, another OSError or ValueError where it is lost."""
        until = time.monotonic() + seconds
        while (end := self._rest.find(b"\n")) < 0:
            if len(self._rest) > self._largest_bytes:
                raise ValueError(f"more than {self._largest_bytes} bytes")
            if not select.select([self._connection], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError
            if not (more := self._connection.recv(1 << 16)):
                raise ConnectionError
            self._rest += more
        proof, _, text = bytes(self._rest[:end]).decode().partition(" ")
        del self._rest[: end + 1]
        wanted = _proof(self._key, self._theirs, self._received, text)
        if not hmac.compare_digest(proof.encode(), wanted.encode()):
            raise WireRefused(self._theirs)
        self._received += 1
        self.heard_at = time.monotonic()
        try:
            said = json.loads(text)
        except RecursionError as error:
            raise ValueError(text[:80]) from error
        if not isinstance(said, dict):
            raise ValueError(text)
        return said

    def close(self) -> None:
        """Close it; readers at both ends get an error."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def connect(record: Said, name: str) -> WireLine:
    """A node's connection to the head that has the run's key."""
    address = record["nodes"][0]["address"]
    connection = socket.create_connection((address, record["port"]), timeout=_GREETING_SECONDS)
    line = WireLine(connection, "node", "head")
    try:
        nonces = [str(line.receive(_GREETING_SECONDS)["nonce"]), secrets.token_hex(32)]
        key, bound = bytes.fromhex(record["key"]), [record["meeting"], name, *nonces]
        line.send({"name": name, "nonce": nonces[1], "proof": _proof(key, "node", *bound)})
        answer = line.receive(_GREETING_SECONDS)
        if not hmac.compare_digest(str(answer.get("proof", "")).encode(), _proof(key, "head", *bound).encode()):
            raise WireRefused(str(answer.get("refused", "key")))
        line.trust(bytes.fromhex(_proof(key, "line", *bound)))
    except BaseException:
        line.close()
        raise
    return line


class Head:
    """Where the nodes of a run report: listens on the head's own address, and accepts the nodes of the record."""

    def __init__(self, record: Said) -> None:
        """Take `nodes.json`: meeting, port, key, and nodes, of which the first is the head itself."""
        first, *others = record["nodes"]
        self.address = str(first["address"])
        self.port = int(record["port"])
        self._meeting = str(record["meeting"])
        self._key = bytes.fromhex(record["key"])
        self._names = {str(node["name"]) for node in others}
        self._lines: dict[str, WireLine] = {}
        self._lock = threading.RLock()
        self._said: queue.SimpleQueue[Said] = queue.SimpleQueue()
        self._answers: dict[int, tuple[WireLine, queue.SimpleQueue[Said]]] = {}
        self._numbers = itertools.count(1)
        self._greeting = threading.Semaphore(_STRANGERS)
        self._strangers: set[str] = set()
        self._open = False

    # ---- opening and closing

    def open(self) -> "Head":
        """Listen; OSError where the address is not this machine's, or the port is taken."""
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        self._listener = socket.create_server((self.address, self.port), family=family)
        self._listener.settimeout(_ACCEPT_SECONDS)
        self.port = int(self._listener.getsockname()[1])
        self._open = True
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()
        return self

    def close(self) -> None:
        """Stop listening, and close every connection."""
        if not self._open:
            return
        with self._lock:
            self._open = False  # nobody who is authenticating is accepted any more
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`, where the system supports this
        self._accepting.join()
        self._listener.close()
        with self._lock:
            lines = list(self._lines.values())
        for line in lines:
            line.close()

    def __enter__(self) -> "Head":
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- for the supervisor

    def joined(self) -> set[str]:
        """The nodes that are connected."""
        with self._lock:
            return set(self._lines)

    def strangers(self) -> set[str]:
        """Addresses from which somebody tried to connect without the key."""
        with self._lock:
            return set(self._strangers)

    def look(self) -> list[Said]:
        """Messages since the last look, each with its `node`; `joined` when it connected, `lost` when it was lost."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._said.get_nowait())
        return found

    def tell(self, name: str, order: Said) -> None:
        """Send an order; ConnectionError where the node is not connected."""
        self._line(name).send(order)

    def ask(self, name: str, question: Said, seconds: float) -> Said:
        """A node's answer; ConnectionError where its connection is lost, TimeoutError where it takes longer."""
        line, number, answer = self._line(name), next(self._numbers), queue.SimpleQueue[Said]()
        with self._lock:
            self._answers[number] = line, answer
        try:
            line.send({"ask": number, "question": question})
            said = answer.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(name) from None
        finally:
            with self._lock:
                del self._answers[number]
        if "answer" not in said:
            raise ConnectionError(name)
        return dict(said["answer"])

    def _line(self, name: str) -> WireLine:
        with self._lock:
            if name not in self._lines:
                raise ConnectionError(name)
            return self._lines[name]

    # ---- threads

    def _accept(self) -> None:
        while self._open:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # timed out, aborted, or no file descriptor left: try again in a moment
                time.sleep(0.01)
                continue
            if self._greeting.acquire(blocking=False):
                threading.Thread(target=self._attend, args=[connection], daemon=True).start()
            else:
                connection.close()

    def _attend(self, connection: socket.socket) -> None:
        """Serve a connection from its authentication to its end."""
        line = WireLine(connection, "head", "node")
        try:
            name = self._greet(line, str(connection.getpeername()[0]))
        except (OSError, ValueError, LookupError, TypeError):  # a stranger, whatever it sent
            line.close()
            return
        finally:
            self._greeting.release()
        reason = "closed"
        try:
            while True:
                self._hear(name, line, line.receive(LOST_SECONDS))
        except TimeoutError:
            reason = "silent"
        except (OSError, ValueError, LookupError, TypeError):
            pass
        self._lose(name, line, reason)

    def _greet(self, line: WireLine, address: str) -> str:
        """Authenticate both ends; the node's name, if it has the key, is listed, and has no live connection."""
        nonce = secrets.token_hex(32)
        line.send({"nonce": nonce})
        said = line.receive(_GREETING_SECONDS)
        name = str(said["name"])
        bound = [self._meeting, name, nonce, str(said["nonce"])]
        if not hmac.compare_digest(str(said["proof"]).encode(), _proof(self._key, "node", *bound).encode()):
            with self._lock:
                if len(self._strangers) < _STRANGERS:
                    self._strangers.add(address)
            line.send({"refused": "key"})
            raise WireRefused(name)
        with self._lock:
            if not self._open:
                raise WireRefused(name)
            before = self._lines.get(name)
            is_living = before is not None and time.monotonic() - before.heard_at < _LIVING_SECONDS
            if name not in self._names or is_living:
                line.send({"refused": "twice" if is_living else "name"})
                raise WireRefused(name)
            line.send({"proof": _proof(self._key, "head", *bound)})
            line.trust(bytes.fromhex(_proof(self._key, "line", *bound)))
            if before:
                self._lose(name, before, "replaced")
            self._lines[name] = line
            self._said.put({"joined": True, "node": name})
        return name

    def _hear(self, name: str, line: WireLine, said: Said) -> None:
        if "answered" in said:
            with self._lock:
                _, answer = self._answers.get(int(said["answered"]), (None, None))
            if answer:
                answer.put(said)
            return
        if "beat" in said:
            line.send({"beat": said["beat"]})
        self._said.put({**said, "node": name})

    def _lose(self, name: str, line: WireLine, reason: str) -> None:
        """Once for each connection: whoever waits for an answer on it is woken."""
        line.close()
        with self._lock:
            if self._lines.get(name) is not line:
                return
            del self._lines[name]
            waiting = [answer for asked, answer in self._answers.values() if asked is line]
            self._said.put({"lost": reason, "node": name})
        for answer in waiting:
            answer.put({})


def _proof(key: bytes, *words: str | int) -> str:
    return hmac.new(key, json.dumps(words).encode(), "sha256").hexdigest()


def _keep_alive(connection: socket.socket) -> None:
    """A machine that vanishes silently ends the connection, even while it is idle."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wanted = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": int(1000 * LOST_SECONDS)}
    for option, value in wanted.items():
        if hasattr(socket, option):  # some systems know fewer
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
