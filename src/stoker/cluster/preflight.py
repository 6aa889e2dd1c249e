"""Preflight of a run of several nodes: compares all of them and tests the network between each two.

The head sends requests (`check`), nodes answer them (`answer`), over connections of `supervise.wire`. Whatever would
make ranks hang or compute different results is an error that names the node, its value and the head's.
"""

import contextlib
import hmac
import itertools
import json
import platform
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from stoker import messages
from stoker.cluster import interfaces
from stoker.cluster.interfaces import Interface
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.facts import machine, model_configs
from stoker.facts.machine import Machine
from stoker.launch.nodes import Node, Nodes
from stoker.messages import MessageCallback
from stoker.plan import choices
from stoker.plan.plan import Plan
from stoker.rundir import files, inputs, prepared, safetensors_headers
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir

MAX_SKEW_SECONDS = 5.0
"""Budgets, deadlines and events use each machine's own clock."""
_FACTS_SECONDS = 300.0
_ANSWER_SECONDS = 20.0
_REACH_SECONDS = 5.0
_GREETING_SECONDS = 1.0
"""For the token of a sender: a stranger must not block others."""
_PROBE_SECONDS = 0.5
_PROBE_BYTES = 64 << 20
_CHUNK = bytes(1 << 18)
_LOOK_SECONDS = 0.2
_CLOCK_QUESTIONS = 5
_VERIFIED_BYTES = 2 << 30
"""A prepared set up to this size is verified."""
_NUMERIC = tuple(name for name in machine.PACKAGES if name not in ("datasets", *machine.TENSORBOARD))
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
"""CPU features that select torch's kernels."""
_EQUAL = {
    "stoker": "STK785",
    "architecture": "STK794",
    "run": "STK790",
    "packages": "STK786",
    "data": "STK787",
    "model": "STK788",
    "devices": "STK791",
}
"""Facts that must be equal on all nodes, and the error where they are not."""
_WARNED = {"python": "meeting.python", "instructions": "meeting.instructions", "driver": "meeting.driver"}
"""Facts that may differ, with an effect on rounding at most."""

Answer = dict[str, Any]
T = TypeVar("T")


class Requests(Protocol):
    """Sends a request to a node: `supervise.wire.Head`."""

    def ask(self, name: str, question: Answer, seconds: float) -> Answer:
        """A node's answer; OSError where there is none."""


@dataclass(frozen=True)
class NodeLink:
    """The network from one node to another, measured."""

    source: str
    target: str
    bytes_per_second: float
    skew_seconds: float
    """How far the target's clock is ahead of the source's."""


# ---- on the head


def check(head: Requests, run_dir: RunDir, record: Nodes, tell: MessageCallback) -> list[NodeLink]:
    """Compare the nodes that are present and measure the network between each two; each pair is an event `link`.

    Args:
        head: Connected to all of them but the first.
        run_dir: The head's own, with its data prepared.
        record: The nodes.
        tell: Shows a sentence of the catalogue, for what is no error.
    """
    nodes = [node for node in record.nodes if node.name in record.present]
    members = _Members(head, run_dir, nodes)
    found = members.ask_all({"ask": "facts"}, _FACTS_SECONDS)
    first, *others = nodes
    for node in others:
        _compare(node.name, found[node.name], first.name, found[first.name], tell)
    _distinct(nodes, found)
    skews = members.skews()
    links = [
        NodeLink(source, target, speed, round(skews[target] - skews[source], 3))
        for (source, target), speed in members.speeds().items()
    ]
    _note(run_dir, links)
    if links:
        _say_slowest(links, run_dir, tell)
    return links


class _Members:
    """Sends requests to all nodes at once, the head included."""

    def __init__(self, head: Requests, run_dir: RunDir, nodes: list[Node]) -> None:
        self._head, self._run_dir, self._nodes = head, run_dir, nodes

    def ask(self, name: str, question: Answer, seconds: float) -> Answer:
        """The answer of one node; an error is raised with the node's name."""
        if name == self._nodes[0].name:
            return answer({**question, "node": name}, self._run_dir)
        try:
            said = self._head.ask(name, {**question, "node": name}, seconds)
        except OSError as error:
            raise StokerError("STK783", node=name, question=question["ask"], reason=_reason(error)) from error
        if "error" in said:
            own = StokerError.from_json(said["error"])
            raise StokerError(own.code, f"{name}: {own.where}".rstrip(": "), **own.fields)
        return said

    def ask_all(self, question: Answer, seconds: float = _ANSWER_SECONDS) -> dict[str, Answer]:
        """The answer of each."""
        names = [node.name for node in self._nodes]
        return dict(zip(names, _at_once(lambda name: self.ask(name, question, seconds), names), strict=True))

    def skews(self) -> dict[str, float]:
        """How far the clock of each node is ahead of this one."""
        first, *others = (node.name for node in self._nodes)
        found = {first: 0.0, **{name: self._skew(name) for name in others}}
        for name, skew in found.items():
            if abs(skew) > MAX_SKEW_SECONDS:
                raise StokerError(
                    "STK789", node=name, head=first, seconds=f"{skew:+.1f}", allowed=f"{MAX_SKEW_SECONDS:g}"
                )
        return found

    def _skew(self, name: str) -> float:
        """Clock offset by the quickest of several answers, taken as sent halfway through the round trip, as in NTP."""
        samples = []
        for _ in range(_CLOCK_QUESTIONS):
            asked, at = time.monotonic(), time.time()
            now = float(self.ask(name, {"ask": "clock"}, _ANSWER_SECONDS)["now"])
            took = time.monotonic() - asked
            samples.append((took, now - (at + took / 2)))
        return min(samples)[1]

    def speeds(self) -> dict[tuple[str, str], float]:
        """Bytes per second between each two nodes."""
        token, rounds = secrets.token_hex(16), _rounds(self._nodes)
        lasts = _ANSWER_SECONDS + len(rounds) * (_REACH_SECONDS + _PROBE_SECONDS)
        question = {"ask": "listen", "token": token, "times": len(self._nodes) - 1, "lasts_seconds": lasts}
        ports = {name: said["port"] for name, said in self.ask_all(question).items()}

        def reach(way: tuple[Node, Node]) -> Answer:
            source, target = way
            question = {"ask": "reach", "address": target.address, "port": ports[target.name], "token": token}
            return self.ask(source.name, question, _ANSWER_SECONDS)

        found = {
            (source.name, target.name): said
            for ways in rounds
            for (source, target), said in zip(ways, _at_once(reach, ways), strict=True)
        }
        closed = [f"{' -> '.join(way)} ({one['failed']})" for way, one in found.items() if "failed" in one]
        if closed:
            raise StokerError("STK784", ways=closed)
        return {way: float(one["bytes_per_second"]) for way, one in found.items()}


def _rounds(nodes: list[Node]) -> list[list[tuple[Node, Node]]]:
    """Every pair once; no node takes part twice in a round, as transfers would slow each other."""
    rounds, left = [], list(itertools.permutations(nodes, 2))
    while left:
        ways: list[tuple[Node, Node]] = []
        for way in left:
            if not {node for one in ways for node in one} & set(way):
                ways.append(way)
        left = [way for way in left if way not in ways]
        rounds.append(ways)
    return rounds


def _compare(name: str, there: Answer, first: str, here: Answer, tell: MessageCallback) -> None:
    names = {"node": name, "head": first}
    for what, code in _EQUAL.items():
        if there.get(what) == here[what] or (what == "model" and _is_to_fetch(there, here)):
            continue
        raise StokerError(code, **names, **_both(there.get(what), here[what]))
    for what, key in _WARNED.items():
        if there[what] != here[what]:
            tell(key, **names, **_both(there[what], here[what]))


def _is_to_fetch(there: Answer, here: Answer) -> bool:
    """Whether one of them still has to download the model from a hub."""
    missing, found = sorted((str(there["model"]), str(here["model"])))
    return not missing and found.startswith("hub ")


def _both(there: Any, here: Any) -> dict[str, Any]:
    """Both values; of mappings only the differing entries."""
    if isinstance(there, dict) and isinstance(here, dict):
        names = sorted(name for name in there.keys() | here.keys() if there.get(name) != here.get(name))
        return {
            "there": [f"{name} {there.get(name, '-')}" for name in names],
            "here": [f"{name} {here.get(name, '-')}" for name in names],
        }
    return {"there": str(there or "-"), "here": str(here or "-")}


def _distinct(nodes: list[Node], found: dict[str, Answer]) -> None:
    """Refuse one machine under two names; on the loopback several nodes may share a machine."""
    for place, node in enumerate(nodes):
        for other in nodes[:place]:
            mine, theirs = found[node.name], found[other.name]
            if mine["boot"] == theirs["boot"] and node.address in theirs["addresses"]:
                raise StokerError("STK793", node=node.name, other=other.name, addresses=list(mine["addresses"]))


def _note(run_dir: RunDir, links: list[NodeLink]) -> None:
    log = EventLog(run_dir.events_file)
    for link in links:
        figures = {"bytes_per_second": round(link.bytes_per_second), "skew_seconds": link.skew_seconds}
        log.write("link", **{"from": link.source, "to": link.target, **figures})
    log.close()


def _say_slowest(links: list[NodeLink], run_dir: RunDir, tell: MessageCallback) -> None:
    """Report the slowest link, and the time it adds to a step where there is a plan."""
    slowest = min(links, key=lambda link: link.bytes_per_second)
    names = {"source": slowest.source, "target": slowest.target, "speed": _speed(slowest.bytes_per_second)}
    seconds = exchange_seconds(links, run_dir)
    if seconds is None:
        tell("meeting.link", **names)
    else:
        tell("meeting.link.step", **names, seconds=f"{seconds:.2g}")


def exchange_seconds(links: list[NodeLink], run_dir: RunDir) -> float | None:
    """Shortest time to exchange the gradients of a step; None without a plan.

    Each node sends and receives its fp32 gradients twice, without its own share, as in a ring all-reduce.
    """
    if not run_dir.plan_file.is_file():
        return None
    plan = files.read_record(run_dir.plan_file, Plan)
    nodes = len({link.source for link in links})
    sent = 2 * (nodes - 1) / nodes * 4 * plan.model.trainable_parameters
    return sent / min(link.bytes_per_second for link in links)


def _speed(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e6:.3g} MB/s"


# ---- on every node


def own(record: Nodes, name: str) -> Interface:
    """This machine's interface in the record of nodes; an error where it has no such interface."""
    node = next(node for node in record.nodes if node.name == name)
    found = interfaces.here()
    for one in found:
        if one.has(node.address) and node.interface in ("", one.name):
            return replace(one, address=node.address)
    wanted = f"`{node.interface}` {node.address}" if node.interface else node.address
    raise StokerError("STK780", node=name, wanted=wanted, found=[str(one) for one in found] or "-")


def unreachable(record: Nodes, name: str, error: OSError) -> StokerError:
    """The error of a node that cannot reach the head."""
    head = record.head
    return StokerError(
        "STK782", node=name, head=head.name, address=head.address, port=record.port, reason=_reason(error)
    )


_REFUSED = {"twice": "meeting.refused.twice", "name": "meeting.refused.name"}


def stranger(record: Nodes, name: str, why: str = "key") -> StokerError:
    """The error of a node that the head refuses, or that reaches another program at the head's address."""
    reason = messages.text(_REFUSED.get(why, "meeting.refused.key"))
    head = record.head
    return StokerError("STK792", node=name, head=head.name, address=head.address, port=record.port, reason=reason)


def answer(question: Answer, run_dir: RunDir) -> Answer:
    """This node's answer to a request of the head."""
    match question["ask"]:
        case "facts":
            return facts(run_dir)
        case "clock":
            return {"now": time.time()}
        case "listen":
            return {"port": _listen(_address(run_dir, question["node"]), question)}
        case "reach":
            return _reach(_address(run_dir, question["node"]), question)
    raise StokerError("STK900", reason=question)


def facts(run_dir: RunDir) -> Answer:
    """Facts of this node that are compared, and its identity."""
    run = run_dir.run()
    found = machine.examine()
    trains = choices.machine(run, found).value
    return {
        "stoker": machine.own_build(),
        "architecture": platform.machine(),
        "run": dict(_flat(run.model_dump(mode="json", exclude={"where"}))),
        "packages": machine.installed(_NUMERIC),
        "data": _data(run_dir)[:12],
        "model": _model(run, run_dir.folder()),
        "devices": _devices(trains),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "instructions": _instructions() if trains.kind == "cpu" else "",
        "driver": found.driver,
        "boot": _boot(),
        "addresses": [one.address for one in interfaces.here() if not one.is_loopback],
    }


def _flat(value: Any, path: str = "") -> Iterable[tuple[str, str]]:
    """Every key of a run file with its value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else key)
    else:
        yield path, json.dumps(value, ensure_ascii=False)


def _data(run_dir: RunDir) -> str:
    """Digest of the prepared set, verified; empty where there is none."""
    report = prepared.read_report(run_dir.data)
    if report is None:
        return ""
    if files.folder_bytes(run_dir.data) <= _VERIFIED_BYTES:
        prepared.check_digests(run_dir.data, report)
    return report.digest


def _model(run: Run, folder: Path) -> str:
    """Initial weights: digest of a local model, commit of a hub's; empty for a shape or a model that is not here."""
    if not isinstance(run.model, str):
        return ""
    path = Path(inputs.model_path(run.model, folder))
    if path.is_dir():
        return f"local {safetensors_headers.content_digest(path)[:12]}"
    revision = str(run.native.model.get("revision", "main"))
    reference = model_configs.hub_home() / "hub" / f"models--{run.model.replace('/', '--')}" / "refs" / revision
    return f"hub {reference.read_text(encoding='utf-8').strip()[:12]}" if reference.is_file() else ""


def _devices(trains: Machine) -> str:
    names = [f"{device.name} {device.memory_bytes / 2**30:.0f} GiB" for device in trains.devices]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or trains.kind


def _instructions() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return " ".join(name for name in _INSTRUCTIONS if name in line.split())
    return ""


def _boot() -> str:
    """Id of this boot; containers of one machine share it."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return platform.node()


def _address(run_dir: RunDir, name: str) -> str:
    record = files.read_record(run_dir.nodes_file, Nodes)
    return own(record, name).address


# ---- measuring a link


def _listen(address: str, question: Answer) -> int:
    """Listen on a free port for the expected number of senders; the port."""
    listener = socket.create_server((address, 0))
    listener.settimeout(_LOOK_SECONDS)
    port = int(listener.getsockname()[1])
    until = time.monotonic() + float(question["lasts_seconds"])
    arguments = (listener, str(question["token"]).encode(), int(question["times"]), until)
    threading.Thread(target=_receive_all, args=arguments, daemon=True).start()
    return port


def _receive_all(listener: socket.socket, token: bytes, times: int, until: float) -> None:
    with listener:
        while times and time.monotonic() < until:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    times -= _receive(connection, token)


def _receive(connection: socket.socket, token: bytes) -> bool:
    """Receive for a moment and report the rate; whether the sender had the token."""
    connection.settimeout(_GREETING_SECONDS)
    if not hmac.compare_digest(connection.recv(len(token)), token):
        return False
    connection.settimeout(_REACH_SECONDS)
    buffer = bytearray(len(_CHUNK))
    began, count, took = time.monotonic(), 0, 0.0
    while count < _PROBE_BYTES and took < _PROBE_SECONDS:
        more = connection.recv_into(buffer)
        count, took = count + more, time.monotonic() - began
        if not more:
            break
    connection.sendall(f"{count / max(took, 1e-6):.0f}\n".encode())
    with contextlib.suppress(OSError):
        while connection.recv_into(buffer):
            pass  # until the sender has read it: closing before would discard it
    return True


def _reach(address: str, question: Answer) -> Answer:
    """Send to another node from this one's own address: the rate at which it arrived, or why it failed."""
    target = (str(question["address"]), int(question["port"]))
    try:
        with socket.create_connection(target, _REACH_SECONDS, source_address=(address, 0)) as line:
            # Unsent data is discarded at the end.
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            line.sendall(str(question["token"]).encode())
            return {"bytes_per_second": _pushed(line)}
    except (OSError, ValueError) as error:
        return {"failed": _reason(error)}


def _pushed(line: socket.socket) -> float:
    until = time.monotonic() + _REACH_SECONDS + _PROBE_SECONDS
    while time.monotonic() < until:
        answered, free, _ = select.select([line], [line], [], _REACH_SECONDS)
        if answered:
            return float(line.recv(64))
        if free:
            line.send(_CHUNK)
    raise TimeoutError("timed out")


# ---- concurrency and errors


def _at_once(work: Callable[[Any], T], each: list[Any]) -> list[T]:
    """All in parallel; the first error by their order is raised."""
    with ThreadPoolExecutor(len(each)) as pool:
        return list(pool.map(work, each))


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
