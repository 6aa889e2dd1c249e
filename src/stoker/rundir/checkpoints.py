"""Committed checkpoints: written aside, synced, listed with digests, renamed. Committed or it does not exist (law 3).

    checkpoints/step-00000500/{files..., COMMIT.json}     committed
    checkpoints/.step-00000500.<pid>.{tmp,old,gone}/      being written, replaced or deleted; left by a crash: swept
Knows files, not tensors: the engine fills the folder it is given.
"""

import datetime
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from stoker.rundir import files

FORMAT = 1
COMMIT_NAME = "COMMIT.json"
_NAME = re.compile(r"step-(\d{8,})")


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
    files: dict[str, FileEntry]

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


@contextmanager
def writing(checkpoints: Path, step: int, **facts: Any) -> Iterator[Path]:
    """A folder to write a checkpoint into; leaving the block without an error commits it.

    Args:
        checkpoints: The run's checkpoint folder.
        step: Optimizer steps done.
        facts: The remaining fields of `Commit`.
    """
    checkpoints.mkdir(parents=True, exist_ok=True)
    aside = checkpoints / f".{folder_name(step)}.{os.getpid()}.tmp"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        yield aside
        _commit(aside, checkpoints / folder_name(step), step, facts)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _commit(aside: Path, final: Path, step: int, facts: dict[str, Any]) -> None:
    entries = {}
    for path in sorted(p for p in aside.rglob("*") if p.is_file()):
        files.sync_file(path)
        name = path.relative_to(aside).as_posix()
        entries[name] = FileEntry(bytes=path.stat().st_size, sha256=files.sha256(path))
    created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    commit = Commit(step=step, created=created, files=entries, **facts)
    files.write_json(aside / COMMIT_NAME, commit.model_dump())
    for folder in sorted(p for p in aside.rglob("*") if p.is_dir()):
        files.sync_folder(folder)
    if final.exists():
        # The same step again after a resume: the old one gives way only now that the new one is whole.
        replaced = final.with_name(f".{final.name}.{os.getpid()}.old")
        final.rename(replaced)
        aside.rename(final)
        shutil.rmtree(replaced, ignore_errors=True)
    else:
        aside.rename(final)
    files.sync_folder(final.parent)


def committed(checkpoints: Path) -> list[Checkpoint]:
    """Checkpoints with a readable COMMIT.json, oldest first. Their files are not yet checked: see `verify`."""
    read = ((path, _read_commit(path)) for path in _folders(checkpoints))
    return [Checkpoint(path, commit) for path, commit in read if isinstance(commit, Commit)]


def _folders(checkpoints: Path) -> list[Path]:
    """Folders that are named like checkpoints, oldest first."""
    inner = checkpoints.iterdir() if checkpoints.is_dir() else ()
    return sorted((path for path in inner if _NAME.fullmatch(path.name)), key=lambda path: int(path.name[5:]))


def verify(checkpoint: Checkpoint) -> str:
    """Check every file against its size and digest; returns what is wrong, or an empty string."""
    for name, entry in checkpoint.commit.files.items():
        path = checkpoint.path / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry.bytes:
            return f"{name} has {path.stat().st_size} bytes instead of {entry.bytes}"
        if files.sha256(path) != entry.sha256:
            return f"{name} has another digest"
    return ""


def newest_verified(checkpoints: Path) -> tuple[Checkpoint | None, list[Rejected]]:
    """The newest checkpoint whose files all match, and the folders passed over on the way to it."""
    rejected: list[Rejected] = []
    for path in reversed(_folders(checkpoints)):
        commit = _read_commit(path)
        if isinstance(commit, str):
            rejected.append(Rejected(path, commit))
            continue
        checkpoint = Checkpoint(path, commit)
        wrong = verify(checkpoint)
        if not wrong:
            return checkpoint, rejected
        rejected.append(Rejected(path, wrong))
    return None, rejected


def rotate(checkpoints: Path, keep: int, protected: set[int]) -> list[int]:
    """Delete all but the `keep` newest and the protected steps; the newest must verify first. Returns what went."""
    present = committed(checkpoints)
    excess = [c for c in present[:-keep] if c.step not in protected]
    if not excess or verify(present[-1]):
        return []
    for checkpoint in excess:
        going = checkpoint.path.with_name(f".{checkpoint.path.name}.{os.getpid()}.gone")
        checkpoint.path.rename(going)
        shutil.rmtree(going, ignore_errors=True)
    return [checkpoint.step for checkpoint in excess]


def sweep(checkpoints: Path) -> list[Path]:
    """Remove what crashed writers left behind.

    A crash between the two renames that replace a step leaves none in its place and two whole ones beside it: the
    newer one is put there first.
    """
    inner = checkpoints.iterdir() if checkpoints.is_dir() else ()
    stale = [p for p in inner if p.name.startswith(".step-") and p.suffix in (".tmp", ".old", ".gone")]
    stale.sort(key=lambda path: path.suffix, reverse=True)
    for path in stale:
        final = path.with_name(path.name.split(".")[1])
        if path.suffix != ".gone" and not final.exists() and _is_whole(path):
            path.rename(final)
            files.sync_folder(checkpoints)
        else:
            shutil.rmtree(path, ignore_errors=True)
    return stale


def _is_whole(path: Path) -> bool:
    commit = _read_commit(path)
    return isinstance(commit, Commit) and not verify(Checkpoint(path, commit))


def _read_commit(path: Path) -> Commit | str:
    """The commit record, or why there is none."""
    try:
        return Commit.model_validate(files.read_json(path / COMMIT_NAME))
    except FileNotFoundError:
        return f"{COMMIT_NAME} is missing"
    except (ValueError, OSError) as error:
        return f"{COMMIT_NAME} cannot be read: {error}"
