"""Before training: does the store hold this very run, does nobody else write to it, is there more of it than here?

A store that cannot be reached stops a run that has nothing here: it might start over what is far along elsewhere. A
run with checkpoints of its own goes on, and the copies follow later.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TypeVar

from stoker.api.figures import size
from stoker.config.load import RunFile
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.messages import MessageCallback
from stoker.rundir import checkpoints
from stoker.rundir.layout import RunDir
from stoker.store import address, copies, fetch, lease, opening
from stoker.store.copies import Copy
from stoker.store.lease import Lease, Renewing
from stoker.store.store_protocol import Fault, Patience

Answer = TypeVar("Answer")


@contextmanager
def leased(run_dir: RunDir, run: Run, tell: MessageCallback) -> Iterator[None]:
    """Hold the store's lease for the length of a block: data may take long to prepare, and the keeper starts later."""
    own = check(run_dir, run, tell)
    with Renewing(own) if own else nullcontext():
        yield


def check(run_dir: RunDir, run: Run, tell: MessageCallback) -> Lease | None:
    """The store holds this very run or none of this name, and no other machine writes to it; the lease is taken.

    None where there is no store, or where it cannot be reached.
    """
    if run.save.store is None:
        return None
    return _unless_down(run_dir, run, tell, lambda: _check(run_dir, run, tell))


def bring(run_dir: RunDir, run: Run, tell: MessageCallback) -> None:
    """Fetch the newest checkpoint from the store, where it is newer than what verifies here."""
    if run.save.store is not None:
        _unless_down(run_dir, run, tell, lambda: _bring(run_dir, run, tell))


def holds(run_dir: RunDir, run_file: RunFile, step: int, tell: MessageCallback) -> bool:
    """Whether a store that other machines reach has a copy of this step or a later one."""
    run, folder = run_file.run, run_file.folder
    if run.save.store is None or address.parse(run.save.store, folder).kind == address.DIRECTORY:
        return False
    try:
        store = opening.of_run(run, folder, patience(tell))
        there = copies.committed(store, run_dir.name, store.names(run_dir.name))
    except Fault as fault:
        raise StokerError("STK652", store=run.save.store, reason=fault) from fault
    return any(copy.commit.step >= step for copy in there)


def patience(tell: MessageCallback) -> Patience:
    """Says each time that the store is asked again, perhaps for minutes."""
    return Patience(on_fault=lambda fault: tell("store.again", reason=fault))


def _check(run_dir: RunDir, run: Run, tell: MessageCallback) -> Lease:
    store = opening.of_run(run, run_dir.folder(), patience(tell))
    if (folder := opening.unmounted(run, run_dir)) and not checkpoints.committed(run_dir.checkpoints):
        raise StokerError("STK665", store=run.save.store, folder=folder)
    if opening.same_disk(run, run_dir):
        tell("store.same_disk")
    if fetch.require_same_run(store, run_dir, run):
        fetch.fetch_records(store, run_dir, ("events.jsonl",))
    own = Lease(store, run_dir.name, lease.own_token(run_dir.store_folder / "token"))
    own.acquire(lambda seconds: tell("store.waiting", seconds=round(seconds)))
    return own


def _bring(run_dir: RunDir, run: Run, tell: MessageCallback) -> None:
    def found(copy: Copy) -> None:
        tell("store.fetching", step=copy.commit.step, size=size(copy.commit.total_bytes))

    _, passed = fetch.newer_checkpoint(opening.of_run(run, run_dir.folder(), patience(tell)), run_dir, found)
    for one in passed:
        tell("store.passed", folder=one.folder, reason=one.reason)


def _unless_down(run_dir: RunDir, run: Run, tell: MessageCallback, ask: Callable[[], Answer]) -> Answer | None:
    try:
        return ask()
    except Fault as fault:
        error = StokerError("STK652", store=run.save.store, reason=fault)
        if not checkpoints.committed(run_dir.checkpoints):
            raise error from fault
        tell("store.down", reason=error.what)
        return None
