"""A run that moves from place to place: what its last place has of it comes along, or the command is refused.

Never step 0 in silence, never two trainings of one run. With `save.store` its lease and its copies see to both.
"""

from collections.abc import Callable

from stoker.api.sentences import Tell
from stoker.errors import StokerError
from stoker.hosts.shell import SILENT, LocalShell
from stoker.places import registry
from stoker.places.place import Place
from stoker.rundir import checkpoints, last_known
from stoker.rundir.layout import RunDir

_SILENT = {
    *(*SILENT, "STK705", "STK720", "STK728"),
    *("STK760", "STK761", "STK762", "STK763", "STK764", "STK765", "STK766"),
}
"""The line is cut, the login refused, the host no longer listed, or its provider does not switch it on."""


def bring(run_dir: RunDir, to: str, tell: Tell, agree: Callable[[], bool]) -> None:
    """Copy here what the run's last place has of it, before it trains at another one.

    Args:
        run_dir: The run, on the machine it is sent from.
        to: The name of the place it trains at next.
        tell: Says what is done.
        agree: Asked where the last place does not answer: go on from what is here?
    """
    last = registry.recorded(run_dir)
    if last is None or last in (to, LocalShell.name) or run_dir.run().save.store is not None:
        return
    try:
        place = registry.by_name(last, run_dir.run())
        with place.awake(tell):
            found = place.status(run_dir.name)
            if found is not None:
                last_known.seen(run_dir, last, found)
            if found is not None and found["state"] not in ("queued", "running"):
                _copy(place, run_dir, tell)
    except StokerError as error:
        if error.code not in _SILENT:
            raise
        last_known.unanswered(run_dir, last)
        _go_on_without(run_dir, last, error, tell, agree)
        return
    if found is None:
        tell("move.unknown", name=run_dir.name, host=place.label)
    elif found["state"] in ("queued", "running"):
        raise StokerError("STK777", name=run_dir.name, host=place.label, step=found["step"])


def _copy(place: Place, run_dir: RunDir, tell: Tell) -> None:
    tell("move.bringing", name=run_dir.name, host=place.label)
    place.get(run_dir.name)


def _go_on_without(run_dir: RunDir, last: str, error: StokerError, tell: Tell, agree: Callable[[], bool]) -> None:
    """The last place does not answer: it may be off, gone, or training behind a broken line."""
    newest = checkpoints.next_found(run_dir.checkpoints)
    if newest is None:
        raise StokerError("STK778", name=run_dir.name, host=last, reason=error.what) from error
    tell("move.silent", name=run_dir.name, host=last, reason=error.what, step=newest.step)
    if not agree():
        raise StokerError("STK779", name=run_dir.name, host=last) from error
