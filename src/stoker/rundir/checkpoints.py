"""Committed checkpoints: written elsewhere, synced, listed with digests, renamed. Committed or absent (law 3).

    checkpoints/step-00000500/{files..., COMMIT.json}     committed
    checkpoints/.step-00000500.<pid>.{tmp,gone}/          being written or deleted; left by a crash: swept
    checkpoints/.quarantine/step-00000500.<n>/            named like one and none: REASON.json says why
    checkpoints/.store.json                               steps whose copy in the store was verified
What the disk refuses to hand out right now is neither: `Unreadable`. Knows files, not tensors.
"""

import contextlib
import datetime
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from stoker import messages
from stoker.rundir import file_check, files, in_place
from stoker.rundir.files import Unreadable

FORMAT = 2
COMMIT_NAME = "COMMIT.json"
WRITING_NAME = ".writing"
"""Where a rename is not one step the folder has its name from the start: with this file and no COMMIT.json it is half
written, by us, and does not exist."""
QUARANTINE_NAME = ".quarantine"
REASON_NAME = "REASON.json"
STORED_NAME = ".store.json"
TRAINING_FILES = ("state.json", "state.safetensors", "trainer_state.json")
"""What only training needs of a checkpoint."""
_NAME = re.compile(r"step-(\d{8,})")
_QUARANTINED = 2
"""Folders kept in quarantine: enough to look at, not enough to fill the disk."""
_AT_ONCE = 4
"""Files synced and digested at one time."""


class FileEntry(BaseModel):
    """One file of a checkpoint."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    bytes: int
    sha256: str


class Commit(BaseModel):
    """`COMMIT.json`: what a committed checkpoint is and holds."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: int = FORMAT
    step: int
    created: str
    data_digest: str
    order_version: int
    world: int
    fingerprint: dict[str, str]
    """Everything that decides the bits of a step; equal fingerprint, equal bits."""
    words: dict[str, Any] | None = None
    """What the run file says about the training, by dotted key; None in a checkpoint of an older Stoker."""
    forked_from: dict[str, Any] | None = None
    """In the checkpoint a fork starts from: run, step, commit, weights_only."""
    tokens: int = 0
    """Tokens seen up to this step, by every rank."""
    source_tokens: dict[str, int] = {}
    """The same by source of a mixture."""
    set_digests: dict[str, str] = {}
    """Of prepared sets that were mixed, by their names."""
    events_bytes: int = 0
    """Where the events stood at this step."""
    due: list[str] = []
    """What was to happen at this step and was put off by a stop: `eval`."""
    files: dict[str, FileEntry] = Field(min_length=1)
    digest: str = ""
    """Of all the rest: a record that was changed is none."""

    @property
    def total_bytes(self) -> int:
        """Size of the checkpoint."""
        return sum(entry.bytes for entry in self.files.values())


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint."""

    path: Path
    commit: Commit

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self.commit.step


@dataclass(frozen=True)
class Rejected:
    """A folder that looks like a checkpoint and is not one, and why."""

    path: Path
    reason: str


def folder_name(step: int) -> str:
    """`step-00000500`."""
    return f"step-{step:08d}"


@contextlib.contextmanager
def writing(checkpoints: Path, step: int, *, renames: bool = True, **facts: Any) -> Iterator[Path]:
    """A folder to write a checkpoint into; leaving the block without an error commits it.

    Args:
        checkpoints: The run's checkpoint folder.
        step: Optimizer steps done.
        renames: Whether a rename is one step on this disk; else COMMIT.json alone is the commit.
        facts: The remaining fields of `Commit`.
    """
    _make(checkpoints)
    final = checkpoints / folder_name(step)
    if renames:
        folder = checkpoints / f".{final.name}.{os.getpid()}.tmp"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    else:
        folder = _begin_in_place(final)
    try:
        yield folder
        commit = _record(folder, step, facts)
        if renames:
            files.write_text(folder / COMMIT_NAME, files.json_text(commit))
            _put(folder, final)
        else:
            _commit_in_place(folder, commit)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def adopt(checkpoints: Path, aside: Path) -> Checkpoint:
    """Commit a complete folder in `aside` on the same disk, whatever training it is of: see `layout.adopt`."""
    commit = read_commit(aside)
    wrong = commit if isinstance(commit, str) else verify(Checkpoint(aside, commit))
    if isinstance(commit, str) or wrong:
        raise OSError(errno.EIO, wrong, str(aside))
    _make(checkpoints)
    _sync(aside)
    files.sync_file(aside / COMMIT_NAME)
    files.sync_folder(aside)
    final = checkpoints / folder_name(commit.step)
    _put(aside, final)
    return Checkpoint(final, commit)


def _make(checkpoints: Path) -> None:
    """The folder of checkpoints, its own name synced too."""
    if not checkpoints.is_dir():
        checkpoints.mkdir()
        files.sync_folder(checkpoints.parent)


def _record(folder: Path, step: int, facts: dict[str, Any]) -> dict[str, Any]:
    """Everything written is on the disk when this returns what it is."""
    entries = _sync(folder)
    created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    commit = Commit(step=step, created=created, files=entries, **facts).model_dump()
    return sealed(commit)


def _sync(folder: Path) -> dict[str, FileEntry]:
    """Sync every file and folder below; size and digest of each file. Digests are made while the disk is waited for."""
    ours = (COMMIT_NAME, WRITING_NAME)
    inner = [path for path in files.below(folder) if path.name not in ours]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        synced = [pool.submit(files.sync_file, path) for path in inner]
        digests = [pool.submit(files.sha256, path) for path in inner]
        for one in synced:
            one.result()
        entries = {
            path.relative_to(folder).as_posix(): FileEntry(bytes=path.stat().st_size, sha256=digest.result())
            for path, digest in zip(inner, digests, strict=True)
        }
    for below in {folder / one for path in inner for one in path.relative_to(folder).parents} - {folder}:
        files.sync_folder(below)
    return entries


def _put(folder: Path, final: Path) -> None:
    """The rename is the commit. A committed name is not reused: an existing folder is moved away whole, or kept."""
    files.sync_folder(folder)
    if final.exists():
        if _holds_the_same(final, folder):
            shutil.rmtree(folder, ignore_errors=True)
            return
        replaced = quarantine(final, f"replaced by another state of {final.name}")
        try:
            folder.rename(final)
        except OSError:
            replaced.rename(final)
            raise
    else:
        folder.rename(final)
    files.sync_folder(final.parent)


def _holds_the_same(final: Path, folder: Path) -> bool:
    there, new = read_commit(final), read_commit(folder)
    same = isinstance(there, Commit) and isinstance(new, Commit) and there.files == new.files
    return same and _is_whole(final)


def _begin_in_place(final: Path) -> Path:
    if final.exists():
        if _is_whole(final):
            raise FileExistsError(errno.EEXIST, "committed already", str(final))
        quarantine(final, f"half of a {final.name}")
    final.mkdir()
    in_place.touch(final / WRITING_NAME)
    files.sync_folder(final)
    return final


def _commit_in_place(folder: Path, commit: dict[str, Any]) -> None:
    """The record is written last and under its own name: half of it is none, by its digest."""
    files.sync_folder(folder)
    files.write_through(folder / COMMIT_NAME, files.json_text(commit))
    files.sync_folder(folder)
    files.sync_folder(folder.parent)
    (folder / WRITING_NAME).unlink()


def sealed(commit: dict[str, Any]) -> dict[str, Any]:
    """A record with the digest of all its other fields."""
    return {**commit, "digest": _digest(commit)}


def _digest(commit: dict[str, Any]) -> str:
    rest = {key: value for key, value in commit.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def committed(checkpoints: Path) -> list[Checkpoint]:
    """Checkpoints with a sound COMMIT.json, oldest first. Their files are not yet checked: see `verify`."""
    read = ((path, read_commit(path)) for path in _folders(checkpoints))
    return [Checkpoint(path, commit) for path, commit in read if isinstance(commit, Commit)]


def next_found(checkpoints: Path) -> Checkpoint | None:
    """The checkpoint the next start continues from, if it verifies: the newest, also one that `sweep` will rename."""
    unnamed = (
        path
        for path in file_check.inside(checkpoints)
        if path.suffix == ".tmp" and _NAME.fullmatch(path.name.split(".")[1])
    )
    whole = ((path, read_commit(path)) for path in unnamed)
    lacking = [Checkpoint(path, commit) for path, commit in whole if isinstance(commit, Commit)]
    return max([*committed(checkpoints), *lacking], key=lambda one: one.step, default=None)


def _folders(checkpoints: Path) -> list[Path]:
    """Folders that are named like checkpoints, oldest first."""
    named = (path for path in file_check.inside(checkpoints) if _NAME.fullmatch(path.name))
    return sorted(named, key=lambda path: int(path.name[5:]))


def verify(checkpoint: Checkpoint, *, from_disk: bool = False) -> str:
    """Check every file against its size and digest; returns what is wrong, or an empty string.

    Args:
        checkpoint: Which one.
        from_disk: Read what the disk has, not what memory remembers of it, where the system can be asked to.

    Raises:
        Unreadable: Where the disk does not say.
    """
    for name, entry in checkpoint.commit.files.items():
        path = checkpoint.path / name
        if wrong := file_check.wrong(path, name, entry.bytes, entry.sha256, from_disk=from_disk):
            return wrong
    return ""


def newest_verified(checkpoints: Path) -> tuple[Checkpoint | None, list[Rejected]]:
    """The newest checkpoint whose files all match, and the folders passed over on the way to it."""
    rejected: list[Rejected] = []
    for path in reversed(_folders(checkpoints)):
        one = examined(path)
        if one.commit is not None and not one.reason:
            return Checkpoint(path, one.commit), rejected
        rejected.append(Rejected(path, one.reason))
    return None, rejected


def is_foreign(path: Path) -> bool:
    """Whether a folder that is named like a checkpoint has nothing of one in it."""
    return not any((path / name).exists() for name in (COMMIT_NAME, WRITING_NAME, *TRAINING_FILES))


def best_step(checkpoint: Checkpoint) -> int | None:
    """The step that was the best so far when this one was saved; None where none was tracked."""
    path = checkpoint.path / "trainer_state.json"
    return file_check.patiently(path, lambda: _best_step(path))


def _best_step(path: Path) -> int | None:
    try:
        step = files.read_json(path)["best_global_step"]
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None
    return int(step) if step is not None else None


def with_best(checkpoints: Path, newest: Checkpoint, *, verified: bool = False) -> list[Checkpoint]:
    """The newest, and before it the best that it names, if that is another one here (and, if asked, verifies)."""
    best = best_step(newest)
    found = [one for one in committed(checkpoints) if one.step == best != newest.step]
    return [*(one for one in found if not (verified and verify(one))), newest]


@dataclass(frozen=True)
class Examined:
    """A folder named like a checkpoint, its record if it has one, and what is wrong with it."""

    path: Path
    commit: Commit | None
    reason: str


def examine(checkpoints: Path) -> list[Examined]:
    """Every folder named like a checkpoint, read through, oldest first; also those that cannot be read now."""
    return [_reported(path) for path in _folders(checkpoints)]


def _reported(path: Path) -> Examined:
    try:
        return examined(path)
    except Unreadable as error:
        name = Path(error.filename).name
        return Examined(path, None, messages.text("damage.unreadable", name=name, reason=error.strerror))


def examined(path: Path) -> Examined:
    """One folder, read through."""
    commit = read_commit(path)
    if isinstance(commit, str):
        return Examined(path, None, commit)
    return Examined(path, commit, verify(Checkpoint(path, commit)))


def rotate(checkpoints: Path, keep: int, protected: set[int], *, renames: bool = True) -> list[int]:
    """Delete all but the `keep` newest, the protected steps and the newest in the store. Returns what went.

    The newest must be read back whole first; else nothing goes, and that is an error of the disk.
    """
    present = committed(checkpoints)
    protected = protected | newest_stored(checkpoints, present)
    excess = [c for c in present[:-keep] if c.step not in protected]
    if not excess:
        return []
    if wrong := verify(present[-1], from_disk=True):
        raise OSError(errno.EIO, wrong, str(present[-1].path))
    going = [_uncommit(one.path, renames=renames) for one in excess]
    files.sync_folder(checkpoints)
    for path in going:
        shutil.rmtree(path, ignore_errors=True)
    return [checkpoint.step for checkpoint in excess]


def _uncommit(path: Path, *, renames: bool) -> Path:
    """From here on it does not exist; what is left is to be deleted."""
    if renames:
        return path.rename(path.with_name(f".{path.name}.{os.getpid()}.gone"))
    in_place.touch(path / WRITING_NAME)
    files.sync_folder(path)
    (path / COMMIT_NAME).unlink()
    files.sync_folder(path)
    return path


def quarantine(path: Path, reason: str) -> Path:
    """Move invalid checkpoint folders into quarantine, with the reason; the newest few are kept."""
    room = path.parent / QUARANTINE_NAME
    room.mkdir(exist_ok=True)
    numbers = [int(one.suffix[1:]) for one in room.iterdir() if one.suffix[1:].isdigit()]
    number = 1 + max(numbers, default=0)
    put = room / f"{path.name}.{number}"
    path.rename(put)
    with contextlib.suppress(OSError):  # on a full disk the events have the reason
        files.write_json(put / REASON_NAME, {"name": path.name, "reason": reason})
    files.sync_folder(path.parent)
    older = sorted((one for one in room.iterdir() if one.suffix[1:].isdigit()), key=lambda one: int(one.suffix[1:]))
    for one in older[:-_QUARANTINED]:
        shutil.rmtree(one, ignore_errors=True) if one.is_dir() else one.unlink()
    return put


def sweep(checkpoints: Path) -> list[Path]:
    """Remove what crashed writers left behind.

    A complete one that was not renamed yet is renamed.
    """
    inner = file_check.inside(checkpoints)
    stale = [p for p in inner if p.name.startswith((".step-", ".probe.")) and p.suffix in (".tmp", ".gone")]
    for path in stale:
        final = path.with_name(path.name.split(".")[1])
        if path.suffix != ".gone" and _NAME.fullmatch(final.name) and not final.exists() and _is_whole(path):
            path.rename(final)
            files.sync_folder(checkpoints)
        else:
            shutil.rmtree(path, ignore_errors=True)
    halves = [p for p in inner if _NAME.fullmatch(p.name) and _is_half(p)]
    for path in halves:
        if _is_whole(path):
            (path / WRITING_NAME).unlink()
        else:
            shutil.rmtree(path, ignore_errors=True)
    return stale + halves


def _is_half(folder: Path) -> bool:
    """A writer that commits by record leaves its mark; killed at once, it leaves its folder with nothing in it."""
    names = [path.name for path in file_check.inside(folder)]
    return WRITING_NAME in names or (not names and folder.is_dir())


# ---- copies in the store


def stored(checkpoints: Path) -> dict[int, str]:
    """Steps whose copy in the store was verified, with the digest of their record."""
    try:
        marks = files.read_json(checkpoints / STORED_NAME)
        return {int(step): str(digest) for step, digest in marks.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def mark_stored(checkpoints: Path, step: int, digest: str) -> None:
    """Note that the store has a verified copy."""
    marks = {**stored(checkpoints), step: digest}
    files.write_json(checkpoints / STORED_NAME, {str(key): marks[key] for key in sorted(marks)})


def newest_stored(checkpoints: Path, present: list[Checkpoint]) -> set[int]:
    """The newest of these whose copy in the store is the same."""
    marks = stored(checkpoints)
    return {one.step for one in [c for c in present if marks.get(c.step) == c.commit.digest][-1:]}


def _is_whole(path: Path) -> bool:
    commit = read_commit(path)
    return isinstance(commit, Commit) and not verify(Checkpoint(path, commit))


def read_commit(path: Path) -> Commit | str:
    """The commit record, or why there is none.

    Raises:
        Unreadable: Where the disk does not say.
    """
    file = path / COMMIT_NAME
    commit = file_check.patiently(file, lambda: _parsed(file))
    if isinstance(commit, Commit) and _NAME.fullmatch(path.name) and commit.step != int(path.name[5:]):
        return messages.text("damage.step", step=commit.step)
    return commit


def _parsed(file: Path) -> Commit | str:
    try:
        return parse_commit(file.read_text(encoding="utf-8"))
    except ValueError as error:
        return messages.text("damage.unreadable", name=COMMIT_NAME, reason=str(error).splitlines()[0])
    except OSError as error:
        return file_check.damage(COMMIT_NAME, error)


def parse_commit(text: str) -> Commit | str:
    """A record from its text, or what is wrong with it."""
    try:
        said = files.parse_json(text)
        commit = Commit.model_validate(said)
    except ValueError as error:
        return messages.text("damage.unreadable", name=COMMIT_NAME, reason=str(error).splitlines()[0])
    if commit.format != FORMAT:
        return messages.text("damage.format", found=commit.format, expected=FORMAT)
    if text != files.json_text(said) or commit.digest != _digest(said):
        return messages.text("damage.changed", name=COMMIT_NAME)
    if any(not file_check.is_inside(name) for name in commit.files):
        return messages.text("damage.outside")
    return commit
