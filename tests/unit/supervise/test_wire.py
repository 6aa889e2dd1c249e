"""The lines between nodes and their head: real sockets on the loopback address."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from stoker.supervise import wire as lines
from stoker.supervise.wire import Head, WireLine, WireRefused, connect

KEY = "00112233445566778899aabbccddeeff" * 2
NODES = [{"name": name, "address": "127.0.0.1", "interface": "lo"} for name in ("a", "b", "c")]
Record = dict[str, Any]


def record(port: int = 0, **fields: Any) -> Record:
    return {"meeting": "m", "port": port, "key": KEY, "nodes": NODES, "present": ["a", "b", "c"], **fields}


@pytest.fixture
def head() -> Iterator[Head]:
    with Head(record()) as opened:
        yield opened


def heard(head: Head, wanted: Callable[[dict[str, Any]], object], seconds: float = 5) -> dict[str, Any]:
    """The first thing nodes said that is wanted."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for said in head.look():
            if wanted(said):
                return said
        time.sleep(0.01)
    raise AssertionError("nobody said so")


def test_a_node_joins_speaks_and_is_told(head: Head) -> None:
    with closing(connect(record(head.port), "b")) as line:
        assert heard(head, lambda said: said.get("joined"))["node"] == "b"
        assert head.joined() == {"b"}
        line.send({"beat": 1, "ranks": [], "node": "c"})
        assert heard(head, lambda said: "beat" in said) == {"beat": 1, "ranks": [], "node": "b"}
        assert line.receive(5) == {"beat": 1}  # so the node knows that the head lives
        head.tell("b", {"end": 3})
        assert line.receive(5) == {"end": 3}
    assert heard(head, lambda said: "lost" in said) == {"node": "b", "lost": "closed"}
    assert head.joined() == set()
    with pytest.raises(ConnectionError):
        head.tell("b", {"end": 3})


def test_questions_are_answered_by_who_was_asked_also_several_at_a_time(head: Head) -> None:
    def answer(name: str) -> None:
        with closing(connect(record(head.port), name)) as line:
            asked = [line.receive(5) for _ in range(2)]
            for one in reversed(asked):
                line.send({"answered": one["ask"], "answer": {"said": [name, one["question"]["n"]]}})
            line.receive(5)

    agents = [threading.Thread(target=answer, args=name) for name in "bc"]
    for agent in agents:
        agent.start()
    while head.joined() != {"b", "c"}:
        time.sleep(0.01)
    found: list[Any] = []
    asking = [
        threading.Thread(target=lambda name=name, n=n: found.append(head.ask(name, {"n": n}, 5)["said"]))
        for name in "bc"
        for n in (1, 2)
    ]
    for one in asking:
        one.start()
    for one in asking:
        one.join()
    assert sorted(found) == [["b", 1], ["b", 2], ["c", 1], ["c", 2]]
    for name in "bc":
        head.tell(name, {})
    for agent in agents:
        agent.join()


def test_who_waits_for_an_answer_learns_that_the_node_is_gone_or_slow(head: Head) -> None:
    line = connect(record(head.port), "b")
    heard(head, lambda said: said.get("joined"))
    with pytest.raises(TimeoutError):
        head.ask("b", {}, 0.1)
    threading.Timer(0.1, line.close).start()
    began = time.monotonic()
    with pytest.raises(ConnectionError):
        head.ask("b", {}, 30)
    assert time.monotonic() - began < 5
    with pytest.raises(ConnectionError):
        head.ask("b", {}, 30)


def test_another_key_is_refused_and_its_address_is_remembered(head: Head) -> None:
    with pytest.raises(WireRefused, match="key"):
        connect(record(head.port, key="ff" * 32), "b")
    with pytest.raises(WireRefused, match="key"):
        connect(record(head.port, meeting="an earlier one"), "b")
    assert (head.joined(), head.strangers()) == (set(), {"127.0.0.1"})


@pytest.mark.parametrize("name", ["d", "a", ""])
def test_a_name_that_is_not_listed_is_refused(head: Head, name: str) -> None:
    with pytest.raises(WireRefused, match="name"):
        connect(record(head.port), name)
    assert (head.joined(), head.strangers()) == (set(), set())


def test_who_poses_as_the_head_is_found_out() -> None:
    """Without the key it can only repeat what it heard, also the proof of the node itself."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def pose() -> None:
            for reflect in (False, True):
                with closing(WireLine(server.accept()[0], "head", "node")) as line:
                    line.send({"nonce": "00" * 32})
                    said = line.receive(5)
                    line.send({"proof": said["proof"] if reflect else "00" * 32})

        posing = threading.Thread(target=pose)
        posing.start()
        for _ in range(2):
            with pytest.raises(WireRefused):
                connect(record(server.getsockname()[1]), "b")
        posing.join()


def passing(port: int, change: Callable[[list[bytes]], list[bytes]]) -> tuple[int, threading.Thread]:
    """A relay in front of the head that may change what a node says after its greeting; returns its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def relay() -> None:
        with server, server.accept()[0] as near, socket.create_connection(("127.0.0.1", port)) as far:
            read, answers = near.makefile("rb"), far.makefile("rb")
            near.sendall(answers.readline())
            far.sendall(read.readline())
            near.sendall(answers.readline())
            for line in change([read.readline(), read.readline()]):
                far.sendall(line)
            answers.readline()
            answers.close()
            read.close()

    thread = threading.Thread(target=relay)
    thread.start()
    return int(server.getsockname()[1]), thread


CHANGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "as it was": lambda said: said,
    "repeated": lambda said: [said[0], said[0]],
    "left out": lambda said: [said[1]],
    "exchanged": lambda said: said[::-1],
    "changed": lambda said: [said[0].replace(b"SIGKILL", b"SIGTERM"), said[1]],
    "forged": lambda said: [said[0].split(b" ")[0] + b' {"ended": 9}\n', said[1]],
}


@pytest.mark.parametrize("how", CHANGES)
def test_what_was_changed_repeated_or_left_out_on_the_way_ends_the_line(head: Head, how: str) -> None:
    port, relay = passing(head.port, CHANGES[how])
    with closing(connect(record(port), "b")) as line:
        line.send({"ended": 1, "signal": "SIGKILL"})
        line.send({"beat": 2})
        if how == "as it was":
            assert heard(head, lambda said: "ended" in said) == {"ended": 1, "signal": "SIGKILL", "node": "b"}
            heard(head, lambda said: "beat" in said)
        else:
            found: list[dict[str, Any]] = []
            assert heard(head, lambda said: found.append(said) or "lost" in said)["lost"] == "closed"
            assert [said for said in found if "ended" in said] in ([], [{"ended": 1, "signal": "SIGKILL", "node": "b"}])
    relay.join()


def test_a_greeting_that_was_overheard_opens_no_second_line(head: Head) -> None:
    """The head draws another number each time."""
    taken: list[bytes] = []
    with socket.create_connection(("127.0.0.1", head.port)) as far, far.makefile("rb") as answers:
        nonce = json.loads(answers.readline().split(b" ", 1)[1])["nonce"]
        bound = ["m", "b", nonce, "11" * 32]
        text = json.dumps({"name": "b", "nonce": "11" * 32, "proof": lines._proof(bytes.fromhex(KEY), "node", *bound)})
        taken.append(f"{lines._proof(b'', 'node', 0, text)} {text}\n".encode())
        far.sendall(taken[0])
        assert b'"proof"' in answers.readline()
    heard(head, lambda said: "lost" in said)
    with socket.create_connection(("127.0.0.1", head.port)) as far, far.makefile("rb") as answers:
        answers.readline()
        far.sendall(taken[0])
        assert b'"refused": "key"' in answers.readline()
    assert head.joined() == set()


def test_a_silent_line_is_lost_in_time(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LOST_SECONDS", 0.4)
    with closing(connect(record(head.port), "b")) as line:
        for number in range(6):
            line.send({"beat": number})
            time.sleep(0.1)
        assert not [said for said in head.look() if "lost" in said]
        began = time.monotonic()
        assert heard(head, lambda said: "lost" in said)["lost"] == "silent"
        assert 0.2 < time.monotonic() - began < 1.5


def test_a_second_line_replaces_a_dead_one_and_not_a_living_one(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(connect(record(head.port), "b")) as first:
        first.send({"beat": 0})
        assert first.receive(5) == {"beat": 0}
        with pytest.raises(WireRefused, match="twice"):
            connect(record(head.port), "b")
        monkeypatch.setattr(lines, "_LIVING_SECONDS", 0.1)
        time.sleep(0.2)
        with closing(connect(record(head.port), "b")) as second:
            found: list[dict[str, Any]] = []
            heard(head, lambda said: "beat" not in said and (found.append(said) or len(found) == 3))
            joined, replaced = {"node": "b", "joined": True}, {"node": "b", "lost": "replaced"}
            assert found == [joined, replaced, joined]
            head.tell("b", {"end": 1})
            assert second.receive(5) == {"end": 1}
            with pytest.raises(ConnectionError):
                first.receive(5)


DEEP = "[" * 3000
SIGNED = {whose: f"{lines._proof(b'', whose, 0, DEEP)} {DEEP}\n".encode() for whose in ("node", "head")}
WORDS = [b"x" * 10_000, b"\n", b"0 {}\n", b"\xff\n", "é {}\n".encode(), b"GET / HTTP/1.1\r\n\r\n", b"null null\n"]


@pytest.mark.parametrize("sent", [*WORDS, SIGNED["node"]])
def test_what_strangers_send_ends_their_line_only(head: Head, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", head.port), timeout=5) as stranger:
        stranger.sendall(sent)
        with stranger.makefile("rb") as answers:
            assert b'"nonce"' in answers.readline()
            with contextlib.suppress(ConnectionResetError):  # where words are left unread
                assert answers.readline() == b""
    with closing(connect(record(head.port), "b")):
        assert heard(head, lambda said: said.get("joined"))["node"] == "b"


@pytest.mark.parametrize("said", [*WORDS, SIGNED["head"]])
def test_something_else_at_the_heads_address_is_no_surprise(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as near:
                near.sendall(said)

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises((OSError, ValueError)):
            connect(record(server.getsockname()[1]), "b")
        answering.join()


def test_who_is_being_greeted_when_the_head_closes_gets_no_line() -> None:
    with Head(record()) as head:
        far = socket.create_connection(("127.0.0.1", head.port), timeout=5)
        answers = far.makefile("rb")
        nonce = json.loads(answers.readline().split(b" ", 1)[1])["nonce"]
    bound = ["m", "b", nonce, "11" * 32]
    text = json.dumps({"name": "b", "nonce": "11" * 32, "proof": lines._proof(bytes.fromhex(KEY), "node", *bound)})
    with far, answers:
        far.sendall(f"{lines._proof(b'', 'node', 0, text)} {text}\n".encode())
        assert answers.readline() == b""
    assert head.joined() == set()


def test_a_message_beyond_the_bound_is_not_even_sent(head: Head) -> None:
    with closing(connect(record(head.port), "b")) as line:
        with pytest.raises(ValueError, match="bytes"):
            line.send({"tail": "x" * (1 << 22)})
        line.send({"beat": 1})
        heard(head, lambda said: "beat" in said)


def test_a_head_that_is_closed_frees_its_port_and_its_lines() -> None:
    with Head(record()) as first:
        line = connect(record(first.port), "b")
        heard(first, lambda said: said.get("joined"))
    with pytest.raises(ConnectionError):
        line.receive(5)
    line.close()
    with Head(record(first.port)) as second, closing(connect(record(second.port), "b")):
        heard(second, lambda said: said.get("joined"))


def test_a_port_that_is_taken_is_said_at_once(head: Head) -> None:
    with pytest.raises(OSError, match=r"[Aa]ddress"):
        Head(record(head.port)).open()
