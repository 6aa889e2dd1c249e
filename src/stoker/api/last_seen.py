"""A run at another place, as this machine knows it: what was last seen of it, what its store adds, what is billed."""

from typing import Literal

from stoker.api.run_progress import RunProgress
from stoker.errors import StokerError
from stoker.facts import platforms
from stoker.facts.platforms import Meter
from stoker.hosts.shell import UNREACHABLE
from stoker.places.place import Place
from stoker.rundir import last_known
from stoker.rundir.last_known import LastKnown
from stoker.rundir.layout import RunDir
from stoker.store import fetch, opening
from stoker.store.store_protocol import Fault, Patience

Billed = Literal["no", "yes", "until_copied", "until_off", "off", "disk", "probably_off", "probably_disk"]
_ENDED = ("done", "stopped", "failed", "interrupted")
_LEAVING = ("waiting", "verified", "last_minute")
"""States of settling in which the machine goes off by itself later."""
_QUICK = Patience(stall_seconds=20, tries=2)
"""Nobody waits minutes for a page."""


def note(place: Place, run_dir: RunDir) -> None:
    """Ask a place about a run, and note its answer; only that it cannot be reached is an error."""
    try:
        found = place.status(run_dir.name)
    except StokerError as error:
        if error.code in UNREACHABLE:
            raise
        return
    if found is not None:
        last_known.seen(run_dir, place.name, found)


def ask_store(run_dir: RunDir, on: str) -> bool:
    """Note what the run's store knows of it, where its place does not respond; whether that was newer."""
    run = run_dir.run()
    if run.save.store is None:
        return False
    try:
        if not fetch.newer_events(opening.of_run(run, run_dir.folder(), _QUICK), run_dir):
            return False
    except (Fault, FileNotFoundError, StokerError):
        return False
    note_events(run_dir, on)
    return True


def note_events(run_dir: RunDir, on: str) -> None:
    """Note what the events that were copied here say; a run under way then is not said to have failed."""
    progress = RunProgress(run_dir)
    progress.skim()
    state = progress.own_state
    if progress.newest:
        ended = {"state": state} if state in ("done", "stopped") or progress.error else {}
        figures = {"step": progress.done_steps, "total_steps": progress.total_steps, "loss": progress.step.get("loss")}
        said = {**figures, "eval_loss": progress.evaluation.get("eval_loss"), **ended}
        last_known.heard(run_dir, on, said, progress.newest)


def billed(last: LastKnown) -> Billed:
    """Whether its machine is billed, as far as that is known here."""
    if not last.rented:
        return "no"
    bills_disk = any(one.stopped_bills for one in _meters(last))
    if last.is_off or last.settled == "stopping":
        return "disk" if bills_disk else "off"
    if last.silent:
        return "probably_disk" if bills_disk else "probably_off"
    if last.state not in _ENDED:
        return "yes"
    return "until_copied" if last.settled in _LEAVING and not stays_on(last) else "until_off"


def stays_on(last: LastKnown) -> bool:
    """Whether a machine of a run that has ended stays on until somebody switches it off, copied or not."""
    if last.silent or last.state not in _ENDED:
        return False
    return last.settled == "stayed" or any(one.reversible is None for one in _meters(last))


def _meters(last: LastKnown) -> list[Meter]:
    return [found.meter for name in last.rented.values() if (found := platforms.find(name))]
