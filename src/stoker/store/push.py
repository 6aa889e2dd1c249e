"""Copies a run into its store: files first, each checked there, the record last; then old copies go.

A checkpoint that is being copied is held by links of its own, so that local rotation neither waits nor breaks the copy.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker import env
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.rundir import artifacts, checkpoints, events, files, lock
from stoker.rundir.checkpoints import COMMIT_NAME, Checkpoint, FileEntry
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir
from stoker.store import copies, fetch, lease, opening
from stoker.store.lease import Lease, Renewing
from stoker.store.store_protocol import Fault, Patient

_RECORDS = ("run.yaml", "plan.json", "events.jsonl", "manifest.json")
"""The manifest last: a run without one is not in the store."""
_LOOK_SECONDS = 0.5


def push(run_dir: RunDir) -> dict[str, Any]:
    """Copy the newest committed checkpoint and the records; waits for another copier of this run directory.

    Returns:
        The event it wrote: `copied` says whether all of it stands in the store, verified.
    """
    with _alone(run_dir), contextlib.closing(EventLog(run_dir.events_file)) as log:
        started = time.monotonic()
        outcome: dict[str, Any] = {"step": None, "copied": False}
        try:
            newest = _newest(run_dir)
            outcome["step"] = newest.step if newest else None
            outcome |= {"bytes": _push(run_dir, newest), "copied": True}
        except (Fault, OSError) as fault:
            outcome["reason"] = env.without_secrets(str(fault))
        except StokerError as error:
            outcome |= {"reason": env.without_secrets(str(error.what)), "code": error.code}
            raise
        finally:
            outcome["seconds"] = round(time.monotonic() - started, 3)
            log.write("store", **outcome)
    return outcome


def _push(run_dir: RunDir, newest: Checkpoint | None) -> int:
    """Size of the checkpoint that is now in the store."""
    run = run_dir.run()
    store = opening.of_run(run, run_dir.folder())
    token = lease.own_token(run_dir.store_folder / "token")
    own = Lease(store, run_dir.name, token)
    own.acquire()
    # A connection of its own: a renewal must not wait behind a large file.
    renewed = Lease(opening.of_run(run, run_dir.folder()), run_dir.name, token)
    with Renewing(renewed, gives_back=lambda: not lock.is_held(run_dir.store_folder / "keep.lock")):
        fetch.require_same_run(store, run_dir, run)
        copy_records(store, run_dir)
        for checkpoint in _wanted(run_dir, run, newest):
            copy_checkpoint(store, run_dir, checkpoint, own)
        if newest is not None:
            retain(store, run_dir, run, newest)
        copy_artifact(store, run_dir, "final", own)
    return newest.commit.total_bytes if newest else 0


def copy_records(store: Patient, run_dir: RunDir) -> None:
    """What was asked, decided and seen; the prepared data by its report: it can be made again from the run file."""
    pairs = [(run_dir.data / "report.json", "data.json"), *((run_dir.path / name, name) for name in _RECORDS)]
    for source, name in pairs:
        if source.is_file():
            # The events grow meanwhile: what is sent must be what was digested.
            still = run_dir.store_folder / "records" / name
            still.parent.mkdir(parents=True, exist_ok=True)
            (events.copy_recent if name == "events.jsonl" else shutil.copyfile)(source, still)
            store.upload(still, f"{run_dir.name}/{name}", files.sha256(still))


def copy_checkpoint(store: Patient, run_dir: RunDir, checkpoint: Checkpoint, own: Lease) -> None:
    """Copy a committed checkpoint, if the store has it not; note it for the local rotation."""
    commit = checkpoint.commit
    folder = copies.folder_of(run_dir.name, commit)
    with _held(run_dir, checkpoint) as path:
        record = (path / COMMIT_NAME).read_bytes()
        if not _stands(store, folder, commit.files, COMMIT_NAME, record):
            if wrong := checkpoints.verify(Checkpoint(path, commit)):
                raise StokerError("STK658", file=checkpoint.path, reason=wrong)
            _copy(store, path, folder, commit.files, COMMIT_NAME, record, own)
    checkpoints.mark_stored(run_dir.checkpoints, checkpoint.step, commit.digest)


def _wanted(run_dir: RunDir, run: Run, newest: Checkpoint | None) -> list[Checkpoint]:
    """The newest, and before it the best, where the run file asks for that."""
    if newest is None:
        return []
    return checkpoints.with_best(run_dir.checkpoints, newest) if run.save.best else [newest]


def retain(store: Patient, run_dir: RunDir, run: Run, newest: Checkpoint) -> list[str]:
    """Delete copies beyond the newest `save.keep` and the best; only once the newest is stored. Returns them."""
    run_name = run_dir.name
    names = store.names(run_name)
    there = copies.committed(store, run_name, names)
    current = copies.folder_of(run_name, newest.commit)
    if current not in {copy.folder for copy in there}:
        raise Fault(f"{current} is not in the store")
    here = [newest, *checkpoints.committed(run_dir.checkpoints)] if run.save.best else []
    best = {checkpoints.best_step(one) for one in here}
    # What is beyond the newest is of a state that was passed over: it does not count, and may be all there is.
    kept = {copy.folder for copy in there if copy.commit.step > newest.step} | {current}
    kept |= {copy.folder for copy in [one for one in there if one.commit.step <= newest.step][-run.save.keep :]}
    kept |= {copy.folder for copy in there if copy.commit.step in best}
    going = [folder for folder in copies.folders(names, run_name) if folder not in kept]
    for folder in going:
        inside = [name for name in names if name.startswith(f"{folder}/")]
        # Without its record it is no copy any more, whatever happens to the rest.
        store.remove(sorted(inside, key=lambda name: (not name.endswith(f"/{COMMIT_NAME}"), name)))
    store.sweep(f"{run_name}/checkpoints", current)
    return going


def copy_artifact(store: Patient, run_dir: RunDir, name: str, own: Lease) -> None:
    """Copy a finished model, if there is one and the store has another or none."""
    source, folder = run_dir.artifacts / name, f"{run_dir.name}/artifacts/{name}"
    if not source.is_dir():
        return
    entries = artifacts.entries_of(source)
    record = artifacts.files_record(entries)
    if not _stands(store, folder, entries, copies.FILES_NAME, record):
        _copy(store, source, folder, entries, copies.FILES_NAME, record, own)


def _stands(store: Patient, folder: str, entries: dict[str, FileEntry], last: str, record: bytes) -> bool:
    """Whether the store has this very record and, by its listing, every file: whoever wrote it had checked them."""
    there = store.names(folder)
    if any(there.get(f"{folder}/{name}") != entry.bytes for name, entry in entries.items()):
        return False
    return f"{folder}/{last}" in there and store.read(f"{folder}/{last}") == record


def _copy(
    store: Patient, source: Path, folder: str, entries: dict[str, FileEntry], last: str, record: bytes, own: Lease
) -> None:
    """Files first, the record last; until then there is none."""
    own.require()
    store.remove([f"{folder}/{last}"])
    for name, entry in entries.items():
        store.upload(source / name, f"{folder}/{name}", entry.sha256)
    own.require()
    _put_record(store, f"{folder}/{last}", record)


def _put_record(store: Patient, name: str, record: bytes) -> None:
    """The last file of a copy, read back. Its name holds its digest, so an existing one is identical."""
    store.create(name, record)
    try:
        same = store.read(name) == record
    except FileNotFoundError as error:  # refused: another commit reached the hub in between
        raise Fault(f"{name}: not accepted") from error
    if not same:
        raise Fault(f"{name}: what was sent reads back otherwise")


def _newest(run_dir: RunDir) -> Checkpoint | None:
    there = checkpoints.committed(run_dir.checkpoints)
    return there[-1] if there else None


@contextlib.contextmanager
def _alone(run_dir: RunDir) -> Iterator[None]:
    """One copier per run directory; the next waits its turn."""
    while True:
        with lock.held(run_dir.store_folder / "copy.lock", inside=run_dir.path) as free:
            if free:
                yield
                return
        time.sleep(_LOOK_SECONDS)


@contextlib.contextmanager
def _held(run_dir: RunDir, checkpoint: Checkpoint) -> Iterator[Path]:
    """The checkpoint under names of our own; where the disk has no links, under its own name."""
    held = run_dir.store_folder / "held" / checkpoint.path.name
    shutil.rmtree(held.parent, ignore_errors=True)
    try:
        for name in (*checkpoint.commit.files, COMMIT_NAME):
            (held / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(checkpoint.path / name, held / name)
    except FileNotFoundError as error:  # rotated this very moment; the newer one is next
        shutil.rmtree(held.parent, ignore_errors=True)
        raise Fault(error) from error
    except OSError:
        shutil.rmtree(held.parent, ignore_errors=True)
        held = checkpoint.path
    try:
        yield held
    except FileNotFoundError as error:
        raise Fault(error) from error
    finally:
        shutil.rmtree(run_dir.store_folder / "held", ignore_errors=True)
