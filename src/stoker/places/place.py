"""A place: where a run goes. One small protocol for all; the rest of the house sees no difference between them."""

import abc
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.facts.mirrors import Network
from stoker.facts.prices import Offer
from stoker.hosts.autodl import Tell
from stoker.hosts.box_facts import BoxFacts
from stoker.launch.plan_inputs import Elsewhere
from stoker.places.package import Package
from stoker.rundir import files
from stoker.rundir.layout import RunDir

KAGGLE = "kaggle"
SKY = "sky"


class Place(abc.ABC):
    """Somewhere else that trains."""

    name: str
    machines: int = 1
    """How many machines like the one of `facts` train together there."""

    @abc.abstractmethod
    def facts(self) -> BoxFacts | None:
        """What is there when it trains; None where nobody can be asked before."""

    @abc.abstractmethod
    def put(self, package: Package) -> None:
        """Bring what is missing there of a run and of Stoker; again after a cut, the rest."""

    @abc.abstractmethod
    def start(self, package: Package) -> None:
        """Start or continue the run there, so that it needs nobody here."""

    @abc.abstractmethod
    def status(self, run: str) -> dict[str, Any] | None:
        """How the run stands there; None where it is not known there."""

    @abc.abstractmethod
    def follow(self, words: Sequence[str]) -> int:
        """`stoker WORDS` there, with the user's terminal; its exit code."""

    @abc.abstractmethod
    def stop(self, run: str) -> None:
        """Ask the run to commit and end."""

    @abc.abstractmethod
    def get(self, run: str) -> RunDir:
        """Bring newest checkpoint, finished model and records here, verified by digest."""

    @abc.abstractmethod
    def stop_meter(self) -> None:
        """End what costs money, by the verb that can be undone."""

    # ---- what not every place has

    @property
    def label(self) -> str:
        """What people are told: its name, or the names of all machines that train together."""
        return self.name

    @property
    def left_on(self) -> list[str]:
        """Rented machines of it that nobody switches off when the run has ended."""
        return []

    @contextlib.contextmanager
    def awake(self, tell: Tell) -> Iterator[None]:  # noqa: ARG002  # for those that are to be switched on
        """Reachable for what comes before training."""
        yield

    def surroundings(self) -> Elsewhere:
        """What a plan for it needs to know beside the machine."""
        return Elsewhere(Network(), None)

    def price(self) -> Offer | None:
        """What its provider bills for it, where that can be asked."""
        return None

    def balance(self) -> float | None:
        """What is left in the account it is billed to, where its provider says so."""
        return None

    def settle(self, run: str) -> None:  # noqa: B027  # most places have no meter of ours
        """Have the meter of a finished run seen to, where nobody does so any more."""


def recorded(run_dir: RunDir) -> str | None:
    """The place a run was sent to from here; None where it was not."""
    try:
        return str(files.read_json(run_dir.place_file)["on"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def record(run_dir: RunDir, on: str, **more: Any) -> None:
    """Note where a run was sent to."""
    files.write_json(run_dir.place_file, {"on": on, **more})


def find(run: Run, on: str | None) -> Place:
    """The place that was named, or that the run file names."""
    word = on or (run.where.place if run.where.place in (KAGGLE, SKY) else run.where.host)
    if word == KAGGLE:
        from stoker.places.kernels import Kernel

        return Kernel(run)
    if word == SKY:
        from stoker.places.sky import Task

        return Task(run)
    if run.where.hosts and on is None:
        return _machines(run, run.where.hosts)
    return _machine(run, word)


def _machines(run: Run, names: Sequence[str]) -> Place:
    """Several machines reached by ssh that train together."""
    from stoker.hosts import known
    from stoker.hosts.shell import Ssh
    from stoker.places.box import Box
    from stoker.places.fleet import Fleet

    if run.where.place != "ssh":
        raise StokerError("STK772", place=run.where.place)
    found = [known.find(name) for name in names]
    return Fleet([Box(Ssh(host), host, run) for host in found], run.where.interface)


def _machine(run: Run, word: str | None) -> Place:
    """A machine reached by ssh, by itself or in front of a queue."""
    from stoker.hosts import known
    from stoker.hosts.shell import Here, Ssh
    from stoker.places.box import Box
    from stoker.places.queue import Queue

    if run.where.place == "slurm" and word in (None, Here.name):
        return Queue.here(run)
    if word is None:
        raise StokerError("STK710", place=run.where.place)
    host = known.find(word)
    # Who trains on a login node is asked to leave: only `where.place: ssh` means that very machine.
    has_queue = host.facts is not None and "sbatch" in host.facts.tools
    is_queue = run.where.place == "slurm" or (run.where.place != "ssh" and has_queue)
    return Queue(Ssh(host), host, run) if is_queue else Box(Ssh(host), host, run)
