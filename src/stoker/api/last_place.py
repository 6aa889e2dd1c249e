"""A run that moves from place to place: what its last place has of it comes along, or the command is refused.

Never step 0 in silence, never two trainings of one run. A store with a lease that the run had and keeps sees to both; a
directory belongs to one machine, and the Hub has no lease.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stoker import messages
from stoker.api import store_return
from stoker.config.load import RunFile
from stoker.errors import StokerError
from stoker.hosts.shell import SILENT
from stoker.messages import MessageCallback
from stoker.places import registry
from stoker.places.place import Place
from stoker.rundir import checkpoints, files, last_known, lock
from stoker.rundir.layout import RunDir
from stoker.store import address

_SILENT = {
    *(*SILENT, "STK705", "STK720", "STK728"),
    *("STK760", "STK761", "STK762", "STK763", "STK764", "STK765", "STK766"),
}
"""The line is cut, the login refused, the host no longer listed, or its provider does not switch it on."""
_LEASED = ("s3", "ssh")
"""Stores that every machine reaches at one address, and to which one machine at a time writes."""


@dataclass(frozen=True)
class Records:
    """What this machine has on file of a run: its words, and where it is."""

    kept: Mapping[Path, str]

    def restore(self) -> None:
        """Put them back: what was tried with others did not begin. Those that were not there before stay."""
        for path, text in self.kept.items():
            files.write_text(path, text)


@contextlib.contextmanager
def unless_refused(run_dir: RunDir) -> Iterator[Records]:
    """What ends before the run begins leaves its records as they were, unless a supervisor took them up here."""
    paths = (run_dir.manifest_file, run_dir.run_file, run_dir.place_file)
    before = Records({path: path.read_text(encoding="utf-8") for path in paths if path.exists()})
    try:
        yield before
    except BaseException:
        if not lock.is_held(run_dir.supervisor_lock):
            before.restore()
        raise


@dataclass(frozen=True)
class Move:
    """A run on its way to its next start, on the machine it is started from."""

    run_dir: RunDir
    run_file: RunFile
    """As it trains next."""
    tell: MessageCallback
    """Says what is done."""
    agree: Callable[[], bool]
    """Asked where its last place does not answer, or no longer has it: go on from what is here?"""


def bring(move: Move, to: str) -> None:
    """Copy here what the run's last place has of it, before it trains at another one, `to`."""
    run_dir, last = move.run_dir, registry.recorded(move.run_dir)
    if last is None or last == to or _keeps_lease(move):
        return
    known = _known_step(run_dir)
    try:
        place = registry.by_name(last, run_dir.run())
        with place.powered_on(move.tell):
            found = place.status(run_dir.name)
            if found is not None:
                last_known.seen(run_dir, last, found)
            if found is not None and found["state"] not in last_known.UNDER_WAY:
                _copy(place, move)
    except StokerError as error:
        if error.code not in _SILENT:
            raise
        last_known.unanswered(run_dir, last)
        _go_on_without(move, last, error)
        return
    if found is not None and found["state"] in last_known.UNDER_WAY:
        raise StokerError("STK777", name=run_dir.name, host=place.label, step=found["step"])
    _go_on_with(move, place, found, known)


def require_there(move: Move, place: Place, found: Mapping[str, Any] | None) -> None:
    """A run that goes on where it was last is still there, by what its place answers: `Place.status`."""
    is_there = found is not None and (found["state"] in last_known.UNDER_WAY or found["step"])
    if registry.recorded(move.run_dir) == place.name and not is_there and not _keeps_lease(move):
        _go_on_with(move, place, found, _known_step(move.run_dir))


def require_carried(move: Move, place: Place, found: Mapping[str, Any] | None) -> None:
    """The newest checkpoint here goes along, unless the place or a store that it reaches has as much."""
    newest = checkpoints.next_found(move.run_dir.checkpoints)
    if place.takes_checkpoint or newest is None or (found is not None and found["step"] >= newest.step):
        return
    if not store_return.holds(move.run_dir, move.run_file, newest.step, move.tell):
        raise StokerError("STK719", name=move.run_dir.name, place=place.label, step=newest.step)


def _keeps_lease(move: Move) -> bool:
    """Whether it was sent with a store that only one machine at a time writes to, and goes on with the same."""
    last, store = last_known.read(move.run_dir), move.run_file.run.save.store
    if last is None or not last.store or store is None:
        return False
    before, now = (address.parse(text, move.run_file.folder) for text in (last.store, store))
    return now.kind in _LEASED and replace(before, text="") == replace(now, text="")


def _known_step(run_dir: RunDir) -> int:
    last = last_known.read(run_dir)
    return last.step if last else 0


def _copy(place: Place, move: Move) -> None:
    move.tell("move.bringing", name=move.run_dir.name, host=place.label)
    place.get(move.run_dir.name)


def _go_on_with(move: Move, place: Place, found: Mapping[str, Any] | None, known: int) -> None:
    """Say what is left of a run whose place has answered; refuse where steps are lost of which nobody was told."""
    newest = checkpoints.next_found(move.run_dir.checkpoints)
    fields = {"name": move.run_dir.name, "host": place.label}
    has_begun = found is not None and found["step"] > 0
    if newest is None and known and not has_begun:
        raise StokerError("STK718", **fields, step=known, here=messages.text("pull.none_here"))
    if newest is None:
        move.tell("move.from_start", **fields)
    elif not has_begun and newest.step < known:
        move.tell("move.lost", **fields, step=known, here=newest.step)
        if not move.agree():
            here = messages.text("pull.checkpoint", step=newest.step)
            raise StokerError("STK718", **fields, step=known, here=here)
    elif not has_begun:
        move.tell("move.unknown", **fields)


def _go_on_without(move: Move, last: str, error: StokerError) -> None:
    """The last place does not answer: it may be off, gone, or training behind a broken line."""
    fields = {"name": move.run_dir.name, "host": last}
    newest = checkpoints.next_found(move.run_dir.checkpoints)
    if newest is None:
        raise StokerError("STK778", **fields, reason=error.what) from error
    move.tell("move.silent", **fields, reason=error.what, step=newest.step)
    if not move.agree():
        raise StokerError("STK779", **fields) from error
