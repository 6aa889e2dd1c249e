"""Before training: does the store hold this very run, is nobody else at it, is there more of it there than here?

A store that cannot be reached stops a run that has nothing here: it might start over what is far along elsewhere. A
run with checkpoints of its own goes on, and the copies follow later.
"""

from collections.abc import Callable

from stoker.cli.stored import ALOUD
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.rundir import checkpoints
from stoker.rundir.layout import RunDir
from stoker.store import fetch, lease, opening
from stoker.store.copies import Copy
from stoker.store.lease import Lease, Renewing
from stoker.store.shelf import Fault
from stoker.terminal import console
from stoker.terminal.figures import size


def check(run_dir: RunDir, run: Run) -> None:
    """The store holds this very run or none of this name, and no other machine writes to it."""
    if run.save.store is not None:
        _unless_down(run_dir, run, lambda: _check(run_dir, run))


def bring(run_dir: RunDir, run: Run) -> None:
    """Fetch the newest checkpoint from the store, where it is newer than what verifies here."""
    if run.save.store is not None:
        _unless_down(run_dir, run, lambda: _bring(run_dir, run))


def _check(run_dir: RunDir, run: Run) -> None:
    store = opening.of_run(run, run_dir.folder(), ALOUD)
    if opening.same_disk(run, run_dir):
        console.talk("store.same_disk")
    if fetch.require_same_run(store, run_dir, run):
        fetch.fetch_records(store, run_dir, ("events.jsonl",))
    token = lease.own_token(run_dir.store_folder / "token")
    waiting: Callable[[float], None] = lambda seconds: console.talk("store.waiting", seconds=round(seconds))  # noqa: E731
    own = Lease(store, run_dir.name, token)
    own.acquire(waiting)
    # For as long as this command lives: the data may take long to prepare, and the keeper comes with the training.
    Renewing(own).start()


def _bring(run_dir: RunDir, run: Run) -> None:
    def found(copy: Copy) -> None:
        console.talk("store.fetching", step=copy.commit.step, size=size(copy.commit.total_bytes))

    _, passed = fetch.newer_checkpoint(opening.of_run(run, run_dir.folder(), ALOUD), run_dir, found)
    for one in passed:
        console.talk("store.passed", folder=one.folder, reason=one.reason)


def _unless_down(run_dir: RunDir, run: Run, ask: Callable[[], None]) -> None:
    try:
        ask()
    except Fault as fault:
        error = StokerError("STK652", store=run.save.store, reason=fault)
        if not checkpoints.committed(run_dir.checkpoints):
            raise error from fault
        console.talk("store.down", reason=error.what)
