"""A place: where a run goes. One small protocol for all; the rest of the house sees no difference between them."""

from collections.abc import Sequence
from typing import Any, Protocol

from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.launch.found import BoxFacts
from stoker.launch.package import Package
from stoker.rundir import files
from stoker.rundir.layout import RunDir

KAGGLE = "kaggle"
SKY = "sky"


class Place(Protocol):
    """Somewhere else that trains."""

    name: str

    def facts(self) -> BoxFacts | None:
        """What is there; None where nobody can be asked before it runs."""

    def put(self, package: Package) -> None:
        """Bring what is missing there of a run and of Stoker; again after a cut, the rest."""

    def start(self, package: Package) -> None:
        """Start or continue the run there, so that it needs nobody here."""

    def status(self, run: str) -> dict[str, Any] | None:
        """How the run stands there; None where it is not known there."""

    def follow(self, words: Sequence[str]) -> int:
        """`stoker WORDS` there, with the user's terminal; its exit code."""

    def stop(self, run: str) -> None:
        """Ask the run to commit and end."""

    def get(self, run: str) -> RunDir:
        """Bring newest checkpoint, finished model and records here, verified by digest."""

    def stop_meter(self) -> None:
        """End what costs money, by the verb that can be undone."""


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
        from stoker.launch.kaggle import Kernel

        return Kernel(run)
    if word == SKY:
        from stoker.launch.sky import Task

        return Task(run)
    return _machine(run, word)


def _machine(run: Run, word: str | None) -> Place:
    """A machine reached by ssh, by itself or in front of a queue."""
    from stoker.launch import hosts
    from stoker.launch.line import Here, Ssh
    from stoker.launch.slurm import Queue
    from stoker.launch.ssh import Box

    if run.where.place == "slurm" and word in (None, Here.name):
        return Queue.here(run)
    if word is None:
        raise StokerError("STK710", place=run.where.place)
    host = hosts.find(word)
    # Who trains on a login node is asked to leave: only `where.place: ssh` means that very machine.
    has_queue = host.facts is not None and "sbatch" in host.facts.tools
    is_queue = run.where.place == "slurm" or (run.where.place != "ssh" and has_queue)
    return Queue(Ssh(host), host, run) if is_queue else Box(Ssh(host), host, run)
