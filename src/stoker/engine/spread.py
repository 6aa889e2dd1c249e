"""The checkpoint a run goes on from, on every machine: those that lack it get its files from the first rank.

Only the head's folder counts. Where machines share one folder nobody lacks anything and nothing is sent. One chunk is
in memory at a time; a copy is adopted after its digests were compared, as one from a store is.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stoker import env
from stoker.engine import parallel
from stoker.engine.parallel import Ranks
from stoker.errors import StokerError
from stoker.rundir import checkpoints, files
from stoker.rundir.checkpoints import Checkpoint, Commit

_CHUNK_BYTES = 16 << 20


def from_first(folder: Path, found: Checkpoint | None, ranks: Ranks) -> Checkpoint | None:
    """The checkpoint that the first rank found, as this rank's machine has it afterwards; all ranks must ask.

    Args:
        folder: This machine's checkpoints.
        found: On the first rank, the one to go on from.
        ranks: This process among all that train.
    """
    if ranks.world == 1:
        return found
    said = json.loads(ranks.hear(json.dumps(_told(folder, found))))
    if said is None:
        return None
    commit = checkpoints.parse_commit(said["commit"])
    assert isinstance(commit, Commit), commit
    lacks = ranks.first_here and not ranks.first and not _has(folder, commit)
    lacking = [rank for rank, one in enumerate(ranks.everyone(lacks)) if one]
    if lacking:
        _hand_out(folder, commit, said, lacking, ranks)
    own = next((one for one in checkpoints.committed(folder) if one.commit == commit), None)
    if own is None:
        raise StokerError("STK403", folder=folder)
    return own


def newer(folder: Path, found: Checkpoint | None, ranks: Ranks) -> list[str]:
    """What other machines have that is newer than what all go on from, as `node:name`; all ranks must ask.

    It stays there until what the run has done itself is as new: nobody's work is deleted for less.
    """
    other, step = ranks.first_here and not ranks.first, found.step if found else 0
    names = [one.path.name for one in checkpoints.committed(folder) if other and one.step > step]
    own = json.dumps([f"{env.read(env.NODE)}:{name}" for name in names])
    return [one for leader in range(ranks.world) for one in json.loads(ranks.hear(own, leader))]


def _told(folder: Path, found: Checkpoint | None) -> dict[str, Any] | None:
    """What the others need to know: the record as it is written, and what else the first rank's folder has."""
    if found is None:
        return None
    text = (found.path / checkpoints.COMMIT_NAME).read_text(encoding="utf-8")
    return {"commit": text, "kept": [one.commit.digest for one in checkpoints.committed(folder)]}


def _has(folder: Path, commit: Commit) -> bool:
    one = checkpoints.examined(folder / checkpoints.folder_name(commit.step))
    return one.commit == commit and not one.reason


def _hand_out(folder: Path, commit: Commit, said: dict[str, Any], lacking: list[int], ranks: Ranks) -> None:
    """From the first rank to one rank of each machine that lacks it; the others wait."""
    group = dist.new_group([0, *lacking], backend="gloo", timeout=parallel.PATIENCE)
    if ranks.first:
        _send(folder / checkpoints.folder_name(commit.step), commit, group)
    elif ranks.rank in lacking:
        folder.mkdir(parents=True, exist_ok=True)
        aside = folder / f".step-from-head.{env.read(env.NODE)}.tmp"
        _make_room(folder, aside, commit, said["kept"])
        _receive(aside, commit, group)
        files.write_text(aside / checkpoints.COMMIT_NAME, said["commit"])
        checkpoints.adopt(folder, aside)
    ranks.meet()


def _make_room(folder: Path, aside: Path, commit: Commit, kept: list[str]) -> None:
    """Remove what is older and the head no longer has; of a folder that is the head's, that is nothing."""
    shutil.rmtree(aside, ignore_errors=True)
    for one in checkpoints.committed(folder):
        if one.step <= commit.step and one.commit.digest not in kept:
            one.path.rename(aside)
            shutil.rmtree(aside)
    files.require_room(folder, commit.total_bytes)


def _send(source: Path, commit: Commit, group: Any) -> None:
    for name, entry in sorted(commit.files.items()):
        with (source / name).open("rb") as file:
            for part in _parts(entry.bytes):
                file.readinto(part.numpy().data)
                dist.broadcast(part, src=0, group=group)


def _receive(aside: Path, commit: Commit, group: Any) -> None:
    for name, entry in sorted(commit.files.items()):
        (aside / name).parent.mkdir(parents=True, exist_ok=True)
        with (aside / name).open("wb") as file:
            for part in _parts(entry.bytes):
                dist.broadcast(part, src=0, group=group)
                file.write(part.numpy().data)


def _parts(size: int) -> Iterator[torch.Tensor]:
    """Room for so many bytes, piece by piece: always the same one."""
    chunk = torch.empty(min(size, _CHUNK_BYTES), dtype=torch.uint8)
    for start in range(0, size, _CHUNK_BYTES):
        yield chunk[: size - start]
