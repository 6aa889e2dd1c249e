"""Downloads a run's copies: to continue training on another machine, or to use the result.

Files arrive under temporary names and are gone on with after a cut; a checkpoint gets its name only when every file has
its digest. What comes from a store is data: names that lead out of the folder are refused.
"""

import errno
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from stoker import messages
from stoker.config.run import Run
from stoker.errors import StokerError, StokerErrors
from stoker.rundir import checkpoints, events, file_check, files, layout, prepared, training_words
from stoker.rundir.checkpoints import COMMIT_NAME, Checkpoint, FileEntry
from stoker.rundir.layout import Manifest, RunDir
from stoker.store import brought, copies
from stoker.store.copies import Copy
from stoker.store.store_protocol import Patient

RECORDS = ("run.yaml", "plan.json", "events.jsonl")
_IMPOSSIBLE = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.EINVAL)
"""What a disk says to names that cannot be."""
_TRIES = 2
"""For a file that arrives whole and with another digest: once more from the beginning."""


@dataclass(frozen=True)
class Passed:
    """A copy that could not be used, and why."""

    folder: str
    reason: str


def require_same_run(store: Patient, run_dir: RunDir, run: Run, address: str | None = None) -> bool:
    """Whether the store has copies of this run; STK659 where they are of another one of the same name.

    A run that was never trained here and is a fork in the store is that fork: its manifest says so from now on.

    Args:
        store: Where.
        run_dir: Whose.
        run: Its run file.
        address: The store's, where it is not that of the run file.
    """
    try:
        manifest = _manifest(store, run_dir)
        text = "" if manifest.text else store.read(f"{run_dir.name}/run.yaml").decode("utf-8")
        there = layout.words_of(manifest, text)
    except FileNotFoundError:
        return False
    except (UnicodeDecodeError, StokerErrors) as error:
        raise StokerError("STK658", file=f"{run_dir.name}/run.yaml", reason=files.reason(error)) from error
    if manifest.forked_from and not layout.was_trained(run_dir) and not run_dir.manifest().forked_from:
        layout.record(run_dir, forked_from=manifest.forked_from)
    if changes := training_words.differing(there, run_dir.words(run)):
        raise StokerError("STK659", name=run_dir.name, store=address or run.save.store, changes=changes)
    return True


def newer_checkpoint(
    store: Patient, run_dir: RunDir, found: Callable[[Copy], None]
) -> tuple[Checkpoint | None, list[Passed]]:
    """Bring the newest copy that is newer than what verifies here, and verifies itself.

    Args:
        store: Where.
        run_dir: Whose.
        found: Told of each copy before it is fetched.
    """
    here, _ = checkpoints.newest_verified(run_dir.checkpoints)
    passed: list[Passed] = []
    there = copies.committed(store, run_dir.name, store.names(run_dir.name))
    for copy in reversed(there):
        if here is not None and copy.commit.step <= here.step:
            break
        _require_same_data(run_dir, copy)
        layout.require_same_training(run_dir, copy.commit)  # before it is brought
        found(copy)
        checkpoint = _fetched(store, run_dir, copy, passed)
        if checkpoint is not None:
            _fetch_best(store, run_dir, checkpoint, there, passed)
            return checkpoint, passed
    return None, passed


def _fetched(store: Patient, run_dir: RunDir, copy: Copy, passed: list[Passed]) -> Checkpoint | None:
    try:
        return fetch_checkpoint(store, run_dir, copy)
    except StokerError as error:
        if error.code != "STK658":
            raise
        passed.append(Passed(copy.folder, str(error.what)))
        return None


def _fetch_best(
    store: Patient, run_dir: RunDir, checkpoint: Checkpoint, there: list[Copy], passed: list[Passed]
) -> None:
    """The best so far may be the finished model one day."""
    best = checkpoints.best_step(checkpoint)
    here = {one.step for one in checkpoints.committed(run_dir.checkpoints)}
    copy = next((one for one in reversed(there) if one.commit.step == best and best not in here), None)
    if copy is not None:
        _fetched(store, run_dir, copy, passed)


def fetch_checkpoint(store: Patient, run_dir: RunDir, copy: Copy) -> Checkpoint:
    """Download one copy; it is a committed checkpoint when this returns."""
    aside = run_dir.store_folder / "fetch" / PurePosixPath(copy.folder).name
    fetch_files(store, copy.folder, aside, copy.commit.files)
    files.write_text(aside / COMMIT_NAME, copy.record.decode("utf-8"))
    checkpoint = layout.adopt(run_dir, aside)
    checkpoints.mark_stored(run_dir.checkpoints, checkpoint.step, checkpoint.commit.digest)
    return checkpoint


def fetch_files(store: Patient, folder: str, aside: Path, entries: dict[str, FileEntry]) -> None:
    """Bring files; those that an earlier attempt brought whole are not brought again, and no others are left."""
    for name in entries:
        if not file_check.is_inside(name) or name == COMMIT_NAME:
            raise StokerError("STK658", file=f"{folder}/{name}", reason=messages.text("damage.name"))
    needed = sum(entry.bytes for entry in entries.values())
    files.require_room(_existing(aside), max(0, needed - files.folder_bytes(aside)))
    for name, entry in entries.items():
        fetch_named(store, f"{folder}/{name}", aside / name, entry)
    for path in files.below(aside):
        if path.relative_to(aside).as_posix() not in entries:
            path.unlink()


def fetch_named(store: Patient, name: str, target: Path, entry: FileEntry) -> None:
    """A name may be too long for the disk, hold a NUL, or be that of a folder."""
    try:
        if not (target.is_file() and files.sha256(target) == entry.sha256):
            _fetch_file(store, name, target, entry)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno not in _IMPOSSIBLE:
            raise
        raise StokerError("STK658", file=name, reason=files.reason(error)) from error


def _fetch_file(store: Patient, name: str, target: Path, entry: FileEntry) -> None:
    part = target.with_name(f".{target.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(_TRIES):
        if part.exists() and part.stat().st_size > entry.bytes:
            part.unlink()
        part.touch()
        try:
            store.download(name, part, entry.bytes)
        except FileNotFoundError as error:
            raise StokerError("STK658", file=name, reason=messages.text("damage.absent")) from error
        if files.sha256(part) == entry.sha256:
            files.sync_file(part)
            part.replace(target)
            return
        part.unlink()
    raise StokerError("STK658", file=name, reason=messages.text("damage.other"))


def fetch_records(store: Patient, run_dir: RunDir, wanted: tuple[str, ...]) -> None:
    """Download the files beside the checkpoints that are missing here."""
    there = store.names(run_dir.name)
    for name in wanted:
        target, size = run_dir.path / name, there.get(f"{run_dir.name}/{name}")
        if target.exists() or size is None:
            continue
        part = run_dir.store_folder / "fetch" / f"{name}.part"
        part.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)  # it may have grown since
        store.download(f"{run_dir.name}/{name}", part, size)
        files.sync_file(part)
        part.replace(target)


def newer_events(store: Patient, run_dir: RunDir) -> bool:
    """Take the store's events for those here, where they go further: for a run that is trained elsewhere."""
    size = store.names(run_dir.name).get(f"{run_dir.name}/events.jsonl")
    if size is None:
        return False
    part = run_dir.store_folder / "fetch" / "events.jsonl.part"
    part.parent.mkdir(parents=True, exist_ok=True)
    part.unlink(missing_ok=True)
    store.download(f"{run_dir.name}/events.jsonl", part, size)
    if _newest(part) <= _newest(run_dir.events_file):
        return False
    files.sync_file(part)
    part.replace(run_dir.events_file)
    shutil.rmtree(run_dir.events_file.with_suffix(""), ignore_errors=True)  # what was copied has its summary
    return True


def _newest(path: Path) -> str:
    """Time of the newest event; empty where there is none."""
    return max((event["at"] for event in events.skim(path) if events.is_whole(event)), default="")


def fetch_manifest(store: Patient, run_dir: RunDir, folder: Path) -> None:
    """Bring the manifest, where there is none here; the run file's relative paths then start at `folder`."""
    if run_dir.manifest_file.exists():
        return
    manifest = _manifest(store, run_dir)
    there = Path(manifest.folder)
    moved = manifest.model_copy(
        update={"name": run_dir.name, "folder": str(there if there.is_dir() else folder.resolve())}
    )
    fetch_records(store, run_dir, ("run.yaml",))
    files.write_json(run_dir.manifest_file, moved.model_dump())


def _manifest(store: Patient, run_dir: RunDir) -> Manifest:
    name = f"{run_dir.name}/manifest.json"
    try:
        return Manifest.model_validate_json(store.read(name))
    except ValueError as error:
        raise StokerError("STK658", file=name, reason=files.reason(error)) from error


def fetch_artifact(store: Patient, run_dir: RunDir, name: str, names: dict[str, int]) -> bool:
    """Bring a finished model, where the store has one that is not here; what was made here stays.

    Returns:
        Whether one is here now.
    """
    folder, final = f"{run_dir.name}/artifacts/{name}", run_dir.artifacts / name
    if f"{folder}/{copies.FILES_NAME}" not in names:
        return final.is_dir()
    record = store.read(f"{folder}/{copies.FILES_NAME}")
    note = brought.note_file(run_dir, name)
    outdated = note.exists() and note.read_bytes() != record and brought.is_unchanged(run_dir, name)
    if final.is_dir() and not outdated:
        return True
    aside, old = (run_dir.store_folder / "fetch" / f"artifact-{name}{end}" for end in ("", ".old"))
    fetch_files(store, folder, aside, copies.parse_files(record, folder))
    for below in (aside, *(path for path in aside.rglob("*") if path.is_dir())):
        files.sync_folder(below)
    run_dir.artifacts.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(old, ignore_errors=True)
    if final.is_dir():
        final.rename(old)
    files.write_text(note, record.decode("utf-8"))
    aside.rename(final)
    files.sync_folder(run_dir.artifacts)
    shutil.rmtree(old, ignore_errors=True)
    return True


def _require_same_data(run_dir: RunDir, copy: Copy) -> None:
    report = prepared.read_report(run_dir.data)
    if report is not None and copy.commit.data_digest != report.digest:
        raise StokerError("STK660", name=run_dir.name, there=copy.commit.data_digest[:12], here=report.digest[:12])


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)
