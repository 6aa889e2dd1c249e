"""Distributes the checkpoint to resume from: nodes without it receive its files from the first rank.

Only the head's folder counts. With a shared folder nothing is sent. One chunk is in memory at a time; a copy is adopted
after its digests were verified, like one from a store.
"""

import json
import secrets
import shutil
import time
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
_LOOKS_SECONDS = (0.1, 0.4, 1.0)
"""Pauses between looks at a name that is not there."""


def from_first(folder: Path, found: Checkpoint | None, ranks: Ranks) -> Checkpoint | None:
    """The checkpoint that the first rank found, as present on this node afterwards; a collective call.

    Args:
        folder: This node's checkpoints.
        found: On the first rank, the one to resume from.
        ranks: This process among all that train.
    """
    if ranks.world == 1:
        return found
    said = json.loads(ranks.hear(json.dumps(_described(folder, found))))
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


def is_shared(folder: Path, ranks: Ranks) -> bool:
    """Whether every rank sees what the first one makes in its folder; a collective call."""
    probe = folder / ranks.hear(f".probe.{secrets.token_hex(8)}.tmp")
    if ranks.first:
        probe.mkdir()
    ranks.wait()
    seen = all(ranks.everyone(_is_seen(probe)))
    if ranks.first:
        probe.rmdir()
    return seen


def _is_seen(probe: Path) -> bool:
    """A network disk may show a new name a moment later."""
    for pause in _LOOKS_SECONDS:
        if probe.is_dir():
            return True
        time.sleep(pause)
    return probe.is_dir()


def newer(folder: Path, found: Checkpoint | None, ranks: Ranks) -> list[str]:
    """Checkpoints of other nodes that are newer than the resumed one, as `node:name`; a collective call.

    They are kept until the run itself has one as new.
    """
    other, step = ranks.first_here and not ranks.first, found.step if found else 0
    names = [one.path.name for one in checkpoints.committed(folder) if other and one.step > step]
    own = json.dumps([f"{env.read(env.NODE)}:{name}" for name in names])
    return [one for leader in range(ranks.world) for one in json.loads(ranks.hear(own, leader))]


def _described(folder: Path, found: Checkpoint | None) -> dict[str, Any] | None:
    """What the other ranks need: the commit record, and the digests of the first rank's checkpoints."""
    if found is None:
        return None
    text = (found.path / checkpoints.COMMIT_NAME).read_text(encoding="utf-8")
    return {"commit": text, "kept": [one.commit.digest for one in checkpoints.committed(folder)]}


def _has(folder: Path, commit: Commit) -> bool:
    one = checkpoints.examined(folder / checkpoints.folder_name(commit.step))
    return one.commit == commit and not one.reason


def _hand_out(folder: Path, commit: Commit, said: dict[str, Any], lacking: list[int], ranks: Ranks) -> None:
    """Send it from the first rank to one rank of each node without it; the others wait."""
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
    """Delete older checkpoints that the head no longer has; none if the folder is the head's."""
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
    """One reused buffer, for so many bytes chunk by chunk."""
    chunk = torch.empty(min(size, _CHUNK_BYTES), dtype=torch.uint8)
    for start in range(0, size, _CHUNK_BYTES):
        yield chunk[: size - start]
