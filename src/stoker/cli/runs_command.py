"""`stoker runs`: every run with its state, newest first."""

import contextlib
import datetime
import os
from pathlib import Path
from typing import Any

from rich.table import Table

from stoker import messages
from stoker.launch import training
from stoker.rundir import layout
from stoker.rundir.layout import RunDir
from stoker.terminal import console
from stoker.terminal.figures import loss, size
from stoker.terminal.progress import STATES, Progress


def runs(*, as_json: bool) -> None:
    """List the runs of the runs folder."""
    found = sorted((_facts(run_dir) for run_dir in layout.all_runs()), key=lambda run: run["started"], reverse=True)
    if as_json:
        console.data_json(found)
    elif found:
        console.table(_table(found))
    else:
        console.talk("runs.none", folder=layout.runs_folder())


def _facts(run_dir: RunDir) -> dict[str, Any]:
    progress = Progress(run_dir)
    progress.skim()
    return {
        "name": run_dir.name,
        "state": progress.state,
        "step": progress.done_steps,
        "total_steps": progress.total_steps,
        "restarts": training.supervision(run_dir).get("restarts", 0),
        "loss": progress.step.get("loss"),
        "eval_loss": progress.evaluation.get("eval_loss"),
        "started": run_dir.manifest().created,
        "size_bytes": _size_bytes(run_dir.path),
    }


def _size_bytes(folder: Path) -> int:
    """Size of all files; those that a running training deletes meanwhile do not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(parent) / name).lstat().st_size
    return total


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(messages.text("runs.name"), overflow="fold")
    table.add_column(messages.text("runs.state"), no_wrap=True)
    for heading in ("runs.step", "runs.loss", "runs.eval_loss"):
        table.add_column(messages.text(heading), justify="right", no_wrap=True)
    table.add_column(messages.text("runs.started"), no_wrap=True)
    table.add_column(messages.text("runs.size"), justify="right", no_wrap=True)
    for run in found:
        table.add_row(
            run["name"],
            messages.text(STATES[run["state"]]),
            f"{run['step']}/{run['total_steps']}" if run["total_steps"] else "-",
            loss(run["loss"]),
            loss(run["eval_loss"]),
            f"{datetime.datetime.fromisoformat(run['started']).astimezone():%m-%d %H:%M}",
            size(run["size_bytes"]),
        )
    return table
