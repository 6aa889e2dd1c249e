"""Several boxes that train one run together: all of them get the run, the first one is the head.

This machine sends the run to every box, writes the addresses of all to each, has the others join, and starts the head
like any box. From then on they do not need this machine; questions about the run go to the head.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from shlex import quote
from typing import Any

from stoker.cluster import interfaces
from stoker.config.load import RunFile
from stoker.errors import StokerError
from stoker.facts.prices import Offer
from stoker.hosts.box_facts import BoxFacts
from stoker.hosts.known import Host
from stoker.launch import nodes
from stoker.launch.nodes import Node, Nodes
from stoker.launch.plan_inputs import Elsewhere
from stoker.messages import MessageCallback
from stoker.places.box import LOOK_SECONDS, START_SECONDS, Box
from stoker.places.package import Package
from stoker.places.place import Place, Terminal
from stoker.rundir import files
from stoker.rundir.layout import RunDir

_FREE_PORT = "import socket, sys; s = socket.socket(); s.bind((sys.argv[1], 0)); print(s.getsockname()[1])"


class Fleet(Place):
    """Machines with sshd and a Python, owned or rented."""

    takes_checkpoint = True

    def __init__(self, boxes: Sequence[Box], interface: str | None) -> None:
        """Take machines.

        Args:
            boxes: The head first.
            interface: The network interface they use, where the run file names one.
        """
        super().__init__(boxes[0].run)
        for box in boxes:
            box.node = box.name
        self.boxes = boxes
        self.head, self.others = boxes[0], boxes[1:]
        self.name, self.machines = self.head.name, len(boxes)
        self._interface = interface
        self._rejoining: list[Box] | None = None

    @property
    def label(self) -> str:
        """The names of all."""
        return ", ".join(box.name for box in self.boxes)

    @property
    def rented(self) -> Sequence[Host]:
        """Those of them that belong to a platform."""
        return [host for box in self.boxes for host in box.rented]

    @property
    def left_on(self) -> list[str]:
        """The others: only the head stops its own meter."""
        return [box.name for box in self.others if box.host.platform]

    # ---- before it runs

    def facts(self) -> BoxFacts | None:
        """Facts of the head; the preflight compares the others with it."""
        return self.head.facts()

    def surroundings(self) -> Elsewhere:
        """Network and platform of the head."""
        return self.head.surroundings()

    def check(self, run_file: RunFile) -> None:
        """Refuse machines of which one cannot train."""
        for box in self.boxes:
            box.check(run_file)

    @contextlib.contextmanager
    def powered_on(self, tell: MessageCallback) -> Iterator[None]:
        """Switch all of them on."""
        with contextlib.ExitStack() as stack:
            for box in self.boxes:
                stack.enter_context(box.powered_on(tell))
            yield

    def price(self) -> Offer | None:
        """What the head's provider bills for one of its cards."""
        return self.head.price()

    def balance(self) -> float | None:
        """What is left in the head's account."""
        return self.head.balance()

    @property
    def kept_data(self) -> bool:
        """Whether one of them goes on with other data."""
        return any(box.kept_data for box in self.boxes)

    def put(self, package: Package) -> None:
        """Send the run and Stoker to each; while the run is running, only to those that left it."""
        self._rejoining = self._missing(package.name) if self._is_running(package.name) else None
        if self._rejoining is not None:
            for box in self._rejoining:
                box.put(package.without_past)
            return
        for box in self.others:
            box.end_launch(package.name)  # it waits for a head that did not start
        self.head.put(package)
        for box in self.others:
            box.put(package.without_past)  # the trainer of the head gives them its checkpoint

    def start(self, package: Package) -> None:
        """Write the addresses of all to each, have the others join, then start the head, which reports errors.

        While the run is running, those that left it join again. Call `put` before: it finds out which.
        """
        if self._rejoining is not None:
            record = self.head.shell.run(f"cat {quote(self._record(self.head, package.name))}")
            self._join(package, record, self._rejoining)
            for box in self._rejoining:
                box.leave_on()
            return
        record = files.json_text(self._nodes().model_dump())
        self.head.write(self._record(self.head, package.name), record)
        try:
            self._join(package, record, self.others)
            self.head.launch(package, package.words)
            self._await_start(package.name)
        except StokerError:
            for box in self.boxes:
                box.end_launch(package.name)
            raise
        for box in self.boxes:
            box.leave_on()

    def _join(self, package: Package, record: str, boxes: Sequence[Box]) -> None:
        for box in boxes:
            box.write(self._record(box, package.name), record)
            box.launch(package, package.joining)

    def _await_start(self, run: str) -> None:
        """Wait for errors of the first seconds on any of them; what takes longer goes on by itself."""
        until = time.monotonic() + START_SECONDS
        while not self.head.has_launched(run) and time.monotonic() < until:
            for box in self.others:
                box.has_launched(run)
            time.sleep(LOOK_SECONDS)

    @staticmethod
    def _record(box: Box, run: str) -> str:
        return f"{box.run_folder(run)}/nodes.json"

    def _is_running(self, run: str) -> bool:
        found = self.head.status(run)
        return found is not None and found["state"] == "running"

    def _missing(self, run: str) -> list[Box]:
        """Boxes that do not take part in the running run."""
        return [box for box in self.others if not box.is_launched(run)]

    def _nodes(self) -> Nodes:
        """An address of each in a network that all share, and a free port of the head."""
        found = {
            box.name: interfaces.parse(box.shell.run(f"PYTHON={quote(box.base)}/env/bin/python\n{interfaces.SCRIPT}"))
            for box in self.boxes
        }
        chosen = interfaces.common(found, self._interface)
        members = [Node(name=name, address=one.address, interface=one.name) for name, one in chosen.items()]
        ask = f"{quote(self.head.base)}/env/bin/python -c {quote(_FREE_PORT)} {quote(members[0].address)}"
        return nodes.of(members, int(self.head.shell.run(ask)))

    # ---- while it runs, and its results: the head knows

    def status(self, run: str) -> dict[str, Any] | None:
        """State of the run; `short` where it is running and a machine has left it."""
        found = self.head.status(run)
        if found is not None and found["state"] == "running" and self._missing(run):
            return {**found, "state": "short"}
        return found

    def words(self, run: str) -> dict[str, Any] | None:
        """The words of the training of this name on the head."""
        return self.head.words(run)

    def watch(self, run: str, terminal: Terminal, *, once: bool, as_json: bool) -> int:
        """`stoker watch` on the head."""
        return self.head.watch(run, terminal, once=once, as_json=as_json)

    def logs(self, run: str, *, follow: bool, lines: int | None) -> int:
        """`stoker logs` on the head."""
        return self.head.logs(run, follow=follow, lines=lines)

    def runs(self, *, as_json: bool = False) -> int:
        """`stoker runs` on the head."""
        return self.head.runs(as_json=as_json)

    def stop(self, run: str) -> int:
        """`stoker stop` on the head."""
        return self.head.stop(run)

    def get(self, run: str) -> RunDir:
        """Copy newest checkpoint, finished model and records from the head."""
        return self.head.get(run)

    def settle(self, run: str) -> None:
        """Stop the head's meter."""
        self.head.settle(run)

    def stop_meter(self) -> None:
        """Stop what costs money on all of them, by commands that can be undone."""
        for box in self.boxes:
            box.stop_meter()
