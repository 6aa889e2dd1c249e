"""Brings a run's copies back: to go on training on another machine, or to use what was trained.

Files arrive under temporary names and are gone on with after a cut; a checkpoint gets its name only when every file has
its digest. What comes from a store is data: names that lead out of the folder are refused.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from stoker.config import load
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.rundir import checkpoints, files, layout, prepared
from stoker.rundir.checkpoints import COMMIT_NAME, Checkpoint, FileEntry
from stoker.rundir.layout import Manifest, RunDir
from stoker.store import copies
from stoker.store.copies import Copy
from stoker.store.shelf import Fault, Patient

RECORDS = ("run.yaml", "plan.json", "events.jsonl")
_TRIES = 2
"""For a file that arrives whole and with another digest: once more from the beginning."""


@dataclass(frozen=True)
class Passed:
    """A copy that could not be used, and why."""

    folder: str
    reason: str


def require_same_run(store: Patient, run_dir: RunDir, run: Run) -> bool:
    """Whether the store has copies of this run; STK659 where they are of another one of the same name."""
    try:
        manifest = Manifest.model_validate_json(store.read(f"{run_dir.name}/manifest.json"))
        text = store.read(f"{run_dir.name}/run.yaml").decode("utf-8")
    except FileNotFoundError:
        return False
    except ValueError as error:
        raise StokerError("STK658", file=f"{run_dir.name}/manifest.json", reason=str(error).splitlines()[0]) from error
    if changes := layout.changed_words(load.parse(text, "run.yaml", manifest.overrides), run):
        raise StokerError("STK659", name=run_dir.name, store=run.save.store, changes=", ".join(changes))
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
    """Bring one copy; it stands among the checkpoints when this returns."""
    aside = run_dir.store_folder / "fetch" / PurePosixPath(copy.folder).name
    files.require_room(_existing(run_dir.path), copy.commit.total_bytes)
    fetch_files(store, copy.folder, aside, copy.commit.files)
    files.write_text(aside / COMMIT_NAME, copy.record.decode("utf-8"))
    checkpoint = checkpoints.adopt(run_dir.checkpoints, aside)
    checkpoints.mark_stored(run_dir.checkpoints, checkpoint.step, checkpoint.commit.digest)
    return checkpoint


def fetch_files(store: Patient, folder: str, aside: Path, entries: dict[str, FileEntry]) -> None:
    """Bring files; those that an earlier attempt brought whole are not brought again."""
    for name, entry in entries.items():
        if not checkpoints.is_inside(name):
            raise StokerError("STK658", file=f"{folder}/{name}", reason="a name that leads out of the folder")
        target = aside / name
        if not (target.is_file() and files.sha256(target) == entry.sha256):
            _fetch_file(store, f"{folder}/{name}", target, entry)


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
            raise StokerError("STK658", file=name, reason="missing") from error
        except Fault as fault:
            raise StokerError("STK652", store=name, reason=fault) from fault
        if files.sha256(part) == entry.sha256:
            files.sync_file(part)
            part.replace(target)
            return
        part.unlink()
    raise StokerError("STK658", file=name, reason="another digest")


def fetch_records(store: Patient, run_dir: RunDir, wanted: tuple[str, ...]) -> None:
    """Bring files that stand beside the checkpoints, where there are none here."""
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


def fetch_manifest(store: Patient, run_dir: RunDir, folder: Path) -> None:
    """Bring the manifest, where there is none here; the run file's relative paths then start at `folder`."""
    if run_dir.manifest_file.exists():
        return
    name = f"{run_dir.name}/manifest.json"
    try:
        manifest = Manifest.model_validate_json(store.read(name))
    except ValueError as error:
        raise StokerError("STK658", file=name, reason=str(error).splitlines()[0]) from error
    there = Path(manifest.folder)
    moved = manifest.model_copy(
        update={"name": run_dir.name, "folder": str(there if there.is_dir() else folder.resolve())}
    )
    fetch_records(store, run_dir, ("run.yaml",))
    files.write_json(run_dir.manifest_file, moved.model_dump())


def fetch_artifact(store: Patient, run_dir: RunDir, name: str, names: dict[str, int]) -> bool:
    """Bring a finished model, where the store has one and there is none here; says whether one is here now."""
    folder = f"{run_dir.name}/artifacts/{name}"
    if (run_dir.artifacts / name).is_dir():
        return True
    if f"{folder}/{copies.FILES_NAME}" not in names:
        return False
    aside = run_dir.store_folder / "fetch" / f"artifact-{name}"
    fetch_files(store, folder, aside, copies.parse_files(store.read(f"{folder}/{copies.FILES_NAME}"), folder))
    run_dir.artifacts.mkdir(parents=True, exist_ok=True)
    aside.rename(run_dir.artifacts / name)
    files.sync_folder(run_dir.artifacts)
    return True


def _require_same_data(run_dir: RunDir, copy: Copy) -> None:
    report = prepared.read_report(run_dir.data)
    if report is not None and copy.commit.data_digest != report.digest:
        raise StokerError("STK660", name=run_dir.name, there=copy.commit.data_digest[:12], here=report.digest[:12])


def forget_partial(run_dir: RunDir) -> None:
    """Delete what unfinished fetches left."""
    shutil.rmtree(run_dir.store_folder / "fetch", ignore_errors=True)


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)
