"""The answers of a step on disk, committed before anything is trained on them.

    rollouts/step-00000012.<digest>.safetensors    written aside, synced, renamed; the name has 16 digits of its SHA-256

What is committed is trained on, whoever made it: a resume generates only what is not there. A file that is not what its
name or its event says is put aside and made again. Files of steps that no kept checkpoint can need are deleted.
"""

import json
import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from stoker.rundir import files
from stoker.rundir.layout import RunDir

FORMAT = 1
_DIGITS = 16
_ASIDE = ".refused"


@dataclass(frozen=True)
class Rollout:
    """The answers to the prompts of one step: `group` to each, one prompt after the other."""

    prompts: list[int]
    """The rows of the training split."""
    answers: list[np.ndarray]
    """int32 tokens of each, with the one that ended it."""
    sampled: list[np.ndarray]
    """float32 log-probabilities that the sampler gave these tokens."""
    ended: list[bool]
    """Whether an answer ended by itself: the others were cut at the longest length."""
    rewards: list[float]
    parts: dict[str, list[float]]
    """What each part of the reward gave, by its name; NaN where it does not apply."""
    failed: list[bool]
    """Whether a part of the reward could not be computed."""

    @property
    def tokens(self) -> int:
        """Of all answers."""
        return sum(map(len, self.answers))


def folder(run_dir: RunDir) -> Path:
    """Where the answers of a run are."""
    return run_dir.path / "rollouts"


def write(rollouts: Path, step: int, rollout: Rollout, about: dict[str, Any]) -> tuple[Path, str]:
    """Commit the answers of a step; the file, and its SHA-256."""
    rollouts.mkdir(exist_ok=True)
    content = safetensors.numpy.save(_tensors(rollout, about))
    digest = sha256(content).hexdigest()
    path = rollouts / f"{_name(step)}.{digest[:_DIGITS]}.safetensors"
    aside = rollouts / f".{path.name}.{os.getpid()}.tmp"
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    files.sync_folder(rollouts)
    return path, digest


def sweep(rollouts: Path) -> None:
    """Delete what a start left that was killed while it wrote."""
    for left in rollouts.glob(".step-*.tmp"):
        left.unlink(missing_ok=True)


def find(rollouts: Path, step: int) -> Path | None:
    """The newest committed file of a step, verified or not."""
    return max(rollouts.glob(f"{_name(step)}.*.safetensors"), key=lambda path: path.stat().st_mtime_ns, default=None)


def read(path: Path, about: dict[str, Any], wanted: str | None) -> Rollout | None:
    """What a file holds; None where it is not what was committed, or is of another training.

    Args:
        path: The file.
        about: What its answers follow from.
        wanted: Its SHA-256 by the events, where they have it.
    """
    content = path.read_bytes()
    digest = sha256(content).hexdigest()
    if digest[:_DIGITS] != path.name.split(".")[1] or digest != (wanted or digest):
        return None
    try:
        tensors = safetensors.numpy.load(content)
        said = json.loads(tensors["about"].tobytes())
    except (SafetensorError, ValueError, KeyError):
        return None
    return _rollout(tensors) if said == about else None


def put_aside(path: Path) -> None:
    """Keep a file that cannot be trained on, under a name that nobody reads."""
    path.rename(path.with_name(path.name + _ASIDE))


def put_aside_from(rollouts: Path, step: int) -> None:
    """The same with the files of a step and of all after it."""
    for path in _committed(rollouts):
        if path.name.partition(".")[0] >= _name(step):
            put_aside(path)


def thin_out(rollouts: Path, oldest: int) -> None:
    """Delete the answers of steps that are in every kept checkpoint, `oldest` being the step of the oldest one.

    What they were worth stays in the events.
    """
    done = _name(oldest)
    for path in rollouts.glob("step-*"):
        if path.name.partition(".")[0] <= done:
            path.unlink(missing_ok=True)


def _committed(rollouts: Path) -> list[Path]:
    return list(rollouts.glob("step-*.safetensors"))


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _tensors(rollout: Rollout, about: dict[str, Any]) -> dict[str, np.ndarray]:
    lengths = np.array([len(one) for one in rollout.answers], dtype=np.int64)
    return {
        "about": np.frombuffer(json.dumps(about, sort_keys=True).encode(), dtype=np.uint8),
        "prompts": np.array(rollout.prompts, dtype=np.int64),
        "lengths": lengths,
        "answers": np.concatenate(rollout.answers).astype(np.int32),
        "sampled": np.concatenate(rollout.sampled).astype(np.float32),
        "ended": np.array(rollout.ended, dtype=np.uint8),
        "failed": np.array(rollout.failed, dtype=np.uint8),
        "rewards": np.array(rollout.rewards, dtype=np.float64),
        **{f"part.{name}": np.array(values, dtype=np.float64) for name, values in rollout.parts.items()},
    }


def _rollout(tensors: dict[str, np.ndarray]) -> Rollout:
    cuts = np.cumsum(tensors["lengths"])[:-1]
    return Rollout(
        prompts=tensors["prompts"].tolist(),
        answers=np.split(tensors["answers"], cuts),
        sampled=np.split(tensors["sampled"], cuts),
        ended=[bool(one) for one in tensors["ended"]],
        failed=[bool(one) for one in tensors["failed"]],
        rewards=tensors["rewards"].tolist(),
        parts={name.removeprefix("part."): one.tolist() for name, one in tensors.items() if name.startswith("part.")},
    )
