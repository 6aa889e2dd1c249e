"""`Place`: the protocol of everywhere a run can be sent. Commands use it and see no difference between places.

A package adds a place by a subclass, named in its entry point group `stoker.places` and called with the run, or with
None for a command about a run that is not on this machine. `registry.py` finds places.
"""

import abc
import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from stoker.config.load import RunFile
from stoker.config.run import NativeBlock, Run
from stoker.facts.mirrors import Network
from stoker.facts.prices import Offer
from stoker.hosts.box_facts import BoxFacts
from stoker.hosts.known import Host
from stoker.launch.plan_inputs import Elsewhere
from stoker.messages import MessageCallback
from stoker.places.package import Package
from stoker.rundir.layout import RunDir


class ProgressLine(Protocol):
    """A line of progress."""

    def show(self, line: str) -> None:
        """Show the newest line."""


class Terminal(Protocol):
    """How a place speaks to the user. The module `terminal.console` is one."""

    def talk(self, key: str, /, **fields: Any) -> None:
        """Say a sentence of the catalogue."""

    def data(self, text: str) -> None:
        """Print a command's answer."""

    def data_json(self, value: Any) -> None:
        """Print a command's answer as JSON."""

    def status(self) -> AbstractContextManager[ProgressLine]:
        """Show a line of progress until the `with` block ends."""


class Place(abc.ABC):
    """Somewhere else that trains."""

    name: str
    """What `--on` and `where.place` call it; for a machine its host's name."""
    machines: int = 1
    """How many machines like the one of `facts` train together there."""
    started_by_user: bool = False
    """Whether the user starts the run there with another program: `hand_over` then takes the place of `put` and
    `start`."""
    first_state: str = "running"
    """State of a run that was just started."""
    takes_checkpoint: bool = False
    """Whether `put` leaves out a checkpoint and events that are there already: only then they are in the package. A run
    whose newest checkpoint is here, and neither there nor in its store, is refused elsewhere."""
    known_options: frozenset[str] | None = frozenset()
    """Names of options it reads from `native.<name>`; None for any."""
    package: str = ""
    """The package that provides it, with its version; empty for a built-in place."""

    def __init__(self, run: Run | None) -> None:
        """Take the run that goes there.

        Args:
            run: None for a command about a run that is not on this machine.
        """
        self._run = run

    @property
    def run(self) -> Run:
        """The run that goes there."""
        assert self._run is not None
        return self._run

    @property
    def options(self) -> NativeBlock:
        """The run file's `native.<name>`."""
        return self._run.native.of_place(self.name) if self._run else {}

    @abc.abstractmethod
    def facts(self) -> BoxFacts | None:
        """Facts of the machine that will train; None where they are not known before the run starts."""

    @abc.abstractmethod
    def put(self, package: Package) -> None:
        """Send what is missing there of a run and of Stoker; goes on after an interruption."""

    @abc.abstractmethod
    def start(self, package: Package) -> None:
        """Start or continue the run there, so that it does not need this machine."""

    @abc.abstractmethod
    def status(self, run: str) -> dict[str, Any] | None:
        """`state`, `step` and more of a run; None where the place does not know it.

        States that are not started again: queued, running, done.
        """

    @abc.abstractmethod
    def watch(self, run: str, terminal: Terminal, *, once: bool, as_json: bool) -> int:
        """Show the run's progress until the user leaves; `once`: now. The command's exit code."""

    @abc.abstractmethod
    def logs(self, run: str, *, follow: bool, lines: int | None) -> int:
        """Print the log of the run's newest attempt, of it the last `lines`. The command's exit code."""

    @abc.abstractmethod
    def runs(self, *, as_json: bool = False) -> int:
        """Print the list of runs there. The command's exit code."""

    @abc.abstractmethod
    def stop(self, run: str) -> int:
        """Ask the run to commit and end. The command's exit code."""

    @abc.abstractmethod
    def get(self, run: str) -> RunDir:
        """Copy the newest checkpoint, the best one, the finished model and the records here, verified by digest."""

    @abc.abstractmethod
    def stop_meter(self) -> None:
        """Stop what costs money, by the command that can be undone."""

    # ---- with defaults, for what not every place has

    @property
    def label(self) -> str:
        """The name in messages; of several machines that train together, all names."""
        return self.name

    @property
    def rented(self) -> Sequence[Host]:
        """Machines of it that are billed while they are on."""
        return ()

    @property
    def left_on(self) -> list[str]:
        """Rented machines of it that nobody switches off when the run has ended."""
        return []

    @property
    def kept_data(self) -> bool:
        """Whether `put` left the prepared data of a trained run as it was there, although the one here differs."""
        return False

    def words(self, run: str) -> dict[str, Any] | None:  # noqa: ARG002  # for places whose run directories can be read
        """The words of the training of this name there, see `training_words`; None where it cannot be asked."""
        return None

    def check(self, run_file: RunFile) -> None:  # noqa: B027  # most places take any run
        """Refuse a run that cannot go there, before anything is written."""

    @contextlib.contextmanager
    def powered_on(self, tell: MessageCallback) -> Iterator[None]:  # noqa: ARG002  # for machines that are switched on
        """Keep it reachable while a run is sent and started."""
        yield

    def surroundings(self) -> Elsewhere:
        """Network and platform, for the plan."""
        return Elsewhere(Network(), None)

    def price(self) -> Offer | None:
        """What its provider bills, where the provider can be asked."""
        return None

    def balance(self) -> float | None:
        """What is left in the account it is billed to, where the provider says so."""
        return None

    def hand_over(self, run_file: RunFile, package: Package, run_dir: RunDir, terminal: Terminal) -> None:
        """Write what the user needs to start the run, and print the command; only if `started_by_user`."""
        raise NotImplementedError

    def attend(self, run: str, terminal: Terminal) -> int | None:  # noqa: ARG002  # for runs that need this machine
        """Stay with a run that needs this machine now and then; its exit code. None where it never does."""
        return None

    def settle(self, run: str) -> None:  # noqa: B027  # most places have no meter
        """Have the meter of a finished run stopped, where the process that would do so is gone."""
