"""`pulled.json`: what a laptop has brought home of a run on a box. Written into the box' run directory by the laptop.

The laptop makes the record with `standing` from its own copy, every file read back, and sends it with `text`; the box
makes the same of its own run directory, and may stop its meter where both are equal.
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from stoker.rundir import artifacts, checkpoints, files
from stoker.rundir.checkpoints import WRITING_NAME, Rejected
from stoker.rundir.layout import RunDir

NAME = "pulled.json"


class Pulled(BaseModel):
    """Contents of a run directory, by digest."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    step: int | None
    """Of the newest checkpoint; None where there is none."""
    commit: str
    """Digest of its record, which has the digest of every file; empty where there is none."""
    best: str = ""
    """Digest of the record of the best checkpoint that it names; empty where that is itself, or there is none."""
    final: str
    """Digest of the list of the finished model's files; empty where there is none."""


def standing(run_dir: RunDir) -> Pulled:
    """The newest checkpoint that verifies, the best that it names and the finished model, every file read."""
    return examined(run_dir)[0]


def examined(run_dir: RunDir) -> tuple[Pulled, list[Rejected]]:
    """Its contents, and newer committed checkpoints that no longer verify, newest first."""
    newest, rejected = checkpoints.newest_verified(run_dir.checkpoints)
    others = checkpoints.with_best(run_dir.checkpoints, newest, verified=True)[:-1] if newest else []
    record = Pulled(
        step=newest.step if newest else None,
        commit=newest.commit.digest if newest else "",
        best=others[0].commit.digest if others else "",
        final=artifacts.digest(run_dir.final) if run_dir.final.is_dir() else "",
    )
    return record, [one for one in rejected if not _is_none(one.path)]


def _is_none(path: Path) -> bool:
    """Whether a folder that is named like a checkpoint never was one, or only half of it."""
    return (path / WRITING_NAME).exists() or checkpoints.is_foreign(path)


def text(record: Pulled) -> str:
    """The record as it is written."""
    return files.json_text(record.model_dump())


def write(run_dir: RunDir, record: Pulled) -> None:
    """Write it into a run directory."""
    files.write_text(run_dir.path / NAME, text(record))


def read(run_dir: RunDir) -> Pulled | None:
    """The record that a laptop left; None where there is none, or something else."""
    try:
        return Pulled.model_validate(files.read_json(run_dir.path / NAME))
    except (OSError, ValueError):
        return None
