"""`settled.json`: how far the shutdown sequence of a run is, for which end of the run and which boot of the machine."""

from pathlib import Path
from typing import Any

from stoker.rundir import files
from stoker.rundir.layout import RunDir

ENDED = ("done", "stopped", "failed")
"""States of a supervisor that has ended."""
SETTLED = ("verified", "last_minute", "stopping", "stayed")
"""States in which a run no longer needs the machine."""


def path(run_dir: RunDir) -> Path:
    """The record."""
    return run_dir.path / "settled.json"


def lock_path(run_dir: RunDir) -> Path:
    """Held while the end of a run is being settled."""
    return run_dir.path / "settle.lock"


def read(run_dir: RunDir) -> dict[str, Any]:
    """The record; empty where there is none."""
    return files.read_if_any(path(run_dir))


def end_of(supervision: dict[str, Any]) -> str:
    """Which end of a run: another attempt, or another verdict, is another end."""
    return f"{supervision.get('attempt', 0)} {supervision.get('beat', '')}"
