"""Finds the place of a run: built in, a host, or of an installed package. A new built-in place is listed here."""

from collections.abc import Callable, Sequence

from stoker import messages, plugins
from stoker.config import place_names
from stoker.config.run import Run
from stoker.errors import StokerError, closest
from stoker.hosts import known
from stoker.hosts.shell import LocalShell, Ssh
from stoker.places.box import Box
from stoker.places.fleet import Fleet
from stoker.places.kaggle import KernelChain
from stoker.places.place import Place
from stoker.places.queue import Queue
from stoker.places.sky import Task
from stoker.plugins import Plugin
from stoker.rundir import files
from stoker.rundir.layout import RunDir

_NAMED: dict[str, Callable[[Run | None], Place]] = {KernelChain.name: KernelChain, Task.name: Task}
"""Places that `--on` names directly: `place_names.NAMED_BY_ON`."""


def find(run: Run, on: str | None = None) -> Place:
    """The place that `--on` names, else the one of the run file."""
    if on is not None:
        return by_name(on, run)
    name = run.where.place
    if name in _NAMED:
        return _NAMED[name](run)
    if name not in place_names.BUILT_IN:
        return _load(plugins.offered(plugins.PLACES)[name], run)
    if run.where.hosts:
        return _machines(run, run.where.hosts)
    return _machine(run, run.where.host)


def by_name(on: str, run: Run | None = None) -> Place:
    """The place or host that `--on` names; `run` is None for a command about a run that is not on this machine."""
    if on in _NAMED:
        return _NAMED[on](run)
    is_host = on == LocalShell.name or any(host.name == on for host in known.every())
    if is_host:
        return _machine(run, on)
    offered = plugins.offered(plugins.PLACES)
    if on in offered:
        return _load(offered[on], run)
    names = [*(host.name for host in known.every()), *(one.title for one in offered.values())]
    raise StokerError("STK720", name=on, known=names or messages.text("hosts.nobody"))


def recorded(run_dir: RunDir) -> str | None:
    """The place a run was sent to from here; None where it was not."""
    try:
        return str(files.read_json(run_dir.place_file)["on"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _load(plugin: Plugin, run: Run | None) -> Place:
    """The place of an installed package, with its options checked."""
    kind = plugin.load()
    if not (isinstance(kind, type) and issubclass(kind, Place)):
        raise plugin.broken(f"{plugin.entry_point.value} is not a subclass of {Place.__module__}.Place")
    kind.name, kind.package = plugin.name, plugin.source
    try:
        place = kind(run)
    except StokerError:
        raise
    except Exception as error:  # methods that are missing, another constructor, or a mistake of theirs
        raise plugin.broken(f"{type(error).__name__}: {error}") from error
    if place.known_options is not None:
        for option in place.options:
            if option not in place.known_options:
                nearest = closest(option, sorted(place.known_options))
                where = f"native.{plugin.name}.{option} ({place.package})"
                raise StokerError("STK111", where, option=option, block=plugin.name, nearest=nearest)
    return place


def _machines(run: Run, names: Sequence[str]) -> Place:
    """Several machines reached by ssh that train together."""
    if run.where.place != "ssh":
        raise StokerError("STK772", place=run.where.place)
    hosts = [known.find(name) for name in names]
    return Fleet([Box(Ssh(host), host, run) for host in hosts], run.where.interface)


def _machine(run: Run | None, name: str | None) -> Place:
    """A machine reached by ssh, by itself or as the login node of a queue."""
    place = run.where.place if run else "local"
    if place == "slurm" and name in (None, LocalShell.name):
        return Queue.here(run)
    if name is None:
        raise StokerError("STK710", place=place)
    host = known.find(name)
    # Training on a login node is not allowed: only `where.place: ssh` means that very machine.
    has_queue = host.facts is not None and "sbatch" in host.facts.tools
    is_queue = place == "slurm" or (place != "ssh" and has_queue)
    return Queue(Ssh(host), host, run) if is_queue else Box(Ssh(host), host, run)
