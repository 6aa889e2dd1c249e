"""The other nodes of a run, as the head sees them: connections, orders to them, and which ranks they have."""

import contextlib
from collections.abc import Iterator
from typing import Any

from stoker.rundir import files
from stoker.rundir.events import Event
from stoker.supervise import processes
from stoker.supervise.status import SupervisedRun
from stoker.supervise.wire import Head

_LOOK_SECONDS = 0.1


class OtherNodes:
    """Of one run; without any where it is on one machine."""

    def __init__(self, run: SupervisedRun) -> None:
        self._run = run
        self._head: Head | None = None

    @property
    def names(self) -> list[str]:
        """The nodes that take part, in the order of their ranks; this one first."""
        return list(self._run.plan.get("nodes") or ())

    @property
    def is_head(self) -> bool:
        """Whether this machine is the head of several nodes."""
        return self._head is not None

    @property
    def scope(self) -> str:
        """This node's name, by which its processes are told from another node's on the same machine."""
        return self.names[0] if self._head else ""

    @property
    def here(self) -> str:
        """This machine's name."""
        return self.scope or self._run.status.host

    def first_rank(self, name: str) -> int:
        """Of a node."""
        return self.names.index(name) * int(self._run.plan["batch"]["devices"]) // len(self.names)

    @contextlib.contextmanager
    def listening(self) -> Iterator[str]:
        """Accept connections of the nodes that take part or may come back; yields why that is impossible."""
        if not self.names:
            yield ""
            return
        run, clock = self._run, self._run.clock
        record = self._record()
        run.status.nodes = {node["name"]: "away" for node in record["nodes"]} | {self.names[0]: "joined"}
        head, until = Head(record), clock.own() + run.settings.listen_seconds
        while True:
            try:
                head.open()
                break
            except OSError as error:  # the port was chosen earlier, and may be in use for a moment
                if clock.own() > until:
                    fields = {"head": self.names[0], "address": head.address, "port": head.port}
                    run.note_error("STK776", **fields, reason=error.strerror)
                    yield "machine"
                    return
            run.beat()
            run.wait_a_look()
        with contextlib.closing(head) as self._head:
            yield ""

    def _record(self) -> dict[str, Any]:
        return files.read_if_any(self._run.run_dir / "nodes.json")

    def joined(self) -> set[str]:
        """This node, and those that are connected."""
        return {self.names[0], *self._head.joined()} if self._head else set()

    def messages(self) -> list[Event]:
        """What other nodes said since the last look."""
        return self._head.look() if self._head else []

    def place(self) -> dict[str, str]:
        """The variables of this node's ranks; all ranks meet at a fresh port for each attempt."""
        if self._head is None:
            return {}
        node = self._record()["nodes"][0]
        store = f"{node['address']}:{processes.free_port(node['address'])}" if len(self.names) > 1 else ""
        return processes.place(node, 0, self._run.plan["batch"]["devices"], store)

    def order(self, order: Event, *names: str) -> list[str]:
        """Send an order to the named nodes, or to all; returns those it did not reach."""
        missed = []
        for name in names or self.names:
            if self._head and name != self.names[0]:
                try:
                    self._head.tell(name, order)
                except OSError:
                    missed.append(name)
        return missed

    def dismiss(self, state: str) -> None:
        """The run is over: the others disconnect, and need not wait for the last copy."""
        if self._head:
            self.order({"over": state}, *self._head.joined())
            until = self._run.clock.own() + self._run.settings.part_seconds
            while self._head.joined() and self._run.clock.own() < until:
                self._run.wait_a_look(_LOOK_SECONDS)
