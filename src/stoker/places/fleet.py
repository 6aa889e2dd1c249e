"""Several boxes reached by ssh that train one run together: everything goes to each, the first one decides.

The laptop sends the run to all of them, tells all where to meet, has the others join, and starts the first one like any
box. From then on they need nobody here; what is asked about the run is asked of the first.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from shlex import quote
from typing import Any

from stoker.cluster import interfaces
from stoker.errors import StokerError
from stoker.facts.prices import Offer
from stoker.hosts.autodl import Tell
from stoker.hosts.box_facts import BoxFacts
from stoker.launch.plan_inputs import Elsewhere
from stoker.places.box import LOOK_SECONDS, START_SECONDS, Box
from stoker.places.package import Package
from stoker.places.place import Place
from stoker.rundir import files, nodes
from stoker.rundir.layout import RunDir
from stoker.rundir.nodes import Node, Nodes

_FREE_PORT = "import socket, sys; s = socket.socket(); s.bind((sys.argv[1], 0)); print(s.getsockname()[1])"


class Fleet(Place):
    """Machines of one's own or rented ones, each with sshd and a Python."""

    def __init__(self, boxes: Sequence[Box], interface: str | None) -> None:
        """Take machines.

        Args:
            boxes: The deciding one first.
            interface: The network interface by which they talk, where one is asked for.
        """
        for box in boxes:
            box.node = box.name
        self.boxes = boxes
        self.head, self.others = boxes[0], boxes[1:]
        self.name, self.machines = self.head.name, len(boxes)
        self._interface = interface

    @property
    def label(self) -> str:
        """The names of all."""
        return ", ".join(box.name for box in self.boxes)

    @property
    def left_on(self) -> list[str]:
        """The others: what is settled is the first one's meter."""
        return [box.name for box in self.others if box.host.platform]

    # ---- before it runs

    def facts(self) -> BoxFacts | None:
        """What the first machine is; that the others are alike is seen to before the start."""
        return self.head.facts()

    def surroundings(self) -> Elsewhere:
        """The first one's network and platform."""
        return self.head.surroundings()

    @contextlib.contextmanager
    def awake(self, tell: Tell) -> Iterator[None]:
        """All of them reachable."""
        with contextlib.ExitStack() as stack:
            for box in self.boxes:
                stack.enter_context(box.awake(tell))
            yield

    def price(self) -> Offer | None:
        """What the first one's provider bills for one of its cards."""
        return self.head.price()

    def balance(self) -> float | None:
        """What is left in the first one's account."""
        return self.head.balance()

    def put(self, package: Package) -> None:
        """Send the run and Stoker to each; while the run is under way, to those only that are away from it."""
        if self._is_under_way(package.name):
            for box in self._away(package.name):
                box.put(package)
            return
        for box in self.others:
            box.end_launch(package.name)  # waits for a start that does not come
        for box in self.boxes:
            box.put(package)

    def start(self, package: Package) -> None:
        """Tell all where to meet, have the others join, then start the first one, which says what is wrong.

        While the run is under way, those that are away from it join again.
        """
        if self._is_under_way(package.name):
            told = self.head.line.run(f"cat {quote(self._record(self.head, package.name))}")
            away = self._away(package.name)
            self._join(package, told, away)
            for box in away:
                box.keep()
            return
        told = files.json_text(self._meeting().model_dump())
        self.head.write(self._record(self.head, package.name), told)
        try:
            self._join(package, told, self.others)
            self.head.launch(package, package.words)
            self._await_start(package.name)
        except StokerError:
            for box in self.boxes:
                box.end_launch(package.name)
            raise
        for box in self.boxes:
            box.keep()

    def _join(self, package: Package, told: str, boxes: Sequence[Box]) -> None:
        for box in boxes:
            box.write(self._record(box, package.name), told)
            box.launch(package, package.joining)

    def _await_start(self, run: str) -> None:
        """Mistakes show in the first seconds, on whichever machine; what takes longer goes on without us."""
        until = time.monotonic() + START_SECONDS
        while not self.head.has_launched(run) and time.monotonic() < until:
            for box in self.others:
                box.has_launched(run)
            time.sleep(LOOK_SECONDS)

    @staticmethod
    def _record(box: Box, run: str) -> str:
        return f"{box.run_folder(run)}/nodes.json"

    def _is_under_way(self, run: str) -> bool:
        found = self.head.status(run)
        return found is not None and found["state"] == "running"

    def _away(self, run: str) -> list[Box]:
        """Machines on which nobody takes part."""
        return [box for box in self.others if not box.is_launched(run)]

    def _meeting(self) -> Nodes:
        """Where they meet: an interface of each in a network that all share, and a free port of the first."""
        seen = {
            box.name: interfaces.parse(box.line.run(f"PYTHON={quote(box.host.python)}\n{interfaces.SCRIPT}"))
            for box in self.boxes
        }
        chosen = interfaces.common(seen, self._interface)
        found = [Node(name=name, address=one.address, interface=one.name) for name, one in chosen.items()]
        ask = f"{quote(self.head.host.python)} -c {quote(_FREE_PORT)} {quote(found[0].address)}"
        return nodes.of(found, int(self.head.line.run(ask)))

    # ---- while it runs, and what it made: the first one knows

    def status(self, run: str) -> dict[str, Any] | None:
        """How the run stands; `short` where it is under way and a machine is away from it."""
        found = self.head.status(run)
        if found is not None and found["state"] == "running" and self._away(run):
            return {**found, "state": "short"}
        return found

    def follow(self, words: Sequence[str]) -> int:
        """`stoker WORDS` on the first one, with the user's terminal."""
        return self.head.follow(words)

    def stop(self, run: str) -> None:
        """Ask the run to commit and end."""
        self.head.stop(run)

    def get(self, run: str) -> RunDir:
        """Bring newest checkpoint, finished model and records."""
        return self.head.get(run)

    def settle(self, run: str) -> None:
        """Have the first one's meter seen to."""
        self.head.settle(run)

    def stop_meter(self) -> None:
        """End what costs money on all of them, by the verbs that can be undone."""
        for box in self.boxes:
            box.stop_meter()
