"""`stoker runs`, `stoker logs`, `stoker stop`: the runs of this machine."""

import codecs
import contextlib
import datetime
import os
from collections import deque
from io import BufferedReader
from pathlib import Path
from typing import Any

from rich.table import Table

from stoker import messages
from stoker.api import last_seen, stopping
from stoker.api.figures import loss, size
from stoker.api.handle import open_run
from stoker.api.run_progress import RunProgress, wait_a_little
from stoker.cli import report_command
from stoker.errors import StokerError
from stoker.launch import training
from stoker.report.state_words import state_word
from stoker.rundir import last_known, layout
from stoker.rundir.last_known import LastKnown
from stoker.rundir.layout import RunDir
from stoker.terminal import console
from stoker.terminal.billing_words import billed_words, clock
from stoker.terminal.plain_text import last_state
from stoker.terminal.progress import say_stopped

_LONGEST_LINE_BYTES = 1 << 20
"""A longer line of a log is printed in parts."""
_EARLIER_LINES = 20


def runs(*, as_json: bool) -> None:
    """List the runs of the runs folder."""
    refused: list[StokerError] = []
    listed = (_listed(run_dir, refused) for run_dir in layout.all_runs())
    found = sorted((one for one in listed if one), key=lambda run: run["started"], reverse=True)
    if as_json:
        console.data_json(found)
    elif found:
        console.table(_table(found))
        _show_elsewhere([run["name"] for run in found if run["elsewhere"]])
    elif not refused:
        console.talk("runs.none", folder=layout.runs_folder())
    for one in refused:
        console.talk("runs.refused", what=one.what, code=one.code)


def _listed(run_dir: RunDir, refused: list[StokerError]) -> dict[str, Any]:
    """Facts about one run; empty for one that cannot be read, whose error goes to `refused`."""
    try:
        return _facts(layout.checked(run_dir))
    except StokerError as error:
        refused.append(error)
        return {}


def _facts(run_dir: RunDir) -> dict[str, Any]:
    progress = RunProgress(run_dir)
    progress.skim()
    far = progress.elsewhere
    return {
        "name": run_dir.name,
        "state": progress.state,
        "failed_in": progress.failed_in,
        "step": progress.done_steps,
        "total_steps": progress.total_steps,
        "restarts": training.supervision(run_dir).get("restarts", 0),
        "loss": progress.step.get("loss") if far is None or far.loss is None else far.loss,
        "eval_loss": progress.evaluation.get("eval_loss") if far is None or far.eval_loss is None else far.eval_loss,
        "started": run_dir.manifest().created,
        "size_bytes": _size_bytes(run_dir.path),
        "elsewhere": _far(far) if far else None,
    }


def _far(last: LastKnown) -> dict[str, Any]:
    known = last.model_dump(mode="json", include={"on", "at", "silent", "price"})
    return {**known, "state": last.state, "billed": last_seen.billed(last)}


def _size_bytes(folder: Path) -> int:
    """Size of all files, without those that a running training deletes meanwhile; one with two names counts once."""
    total, shared = 0, dict[tuple[int, int], int]()
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                stat = (Path(parent) / name).lstat()
                if stat.st_nlink > 1:
                    shared[stat.st_dev, stat.st_ino] = stat.st_size
                else:
                    total += stat.st_size
    return total + sum(shared.values())


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
            state_word(run["state"], run["failed_in"]),
            f"{run['step']}/{run['total_steps']}" if run["total_steps"] else "-",
            loss(run["loss"]),
            loss(run["eval_loss"]),
            f"{datetime.datetime.fromisoformat(run['started']).astimezone():%m-%d %H:%M}",
            size(run["size_bytes"]),
        )
    return table


def _show_elsewhere(names: list[str]) -> None:
    """Where runs are that are not here, when that was known, and what is billed."""
    known = [(name, last) for name in names if (last := last_known.read(layout.named(name)))]
    if not known:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(messages.text("runs.elsewhere"), overflow="fold")
    table.add_column(messages.text("runs.where"), overflow="fold")
    table.add_column(messages.text("runs.seen"), no_wrap=True)
    table.add_column(messages.text("runs.billed"), overflow="fold")
    for name, last in known:
        table.add_row(name, last.on, clock(last.at), billed_words(name, last))
    console.page("")
    console.table(table)


def logs(name: str, lines: int | None, *, follow: bool) -> None:
    """Print a log.

    Args:
        name: A run's name or folder.
        lines: How many lines from its end; None for all.
        follow: Go on until the training process ends; Ctrl-C leaves, the run goes on.
    """
    run_dir = layout.find(name)
    newest = training.newest_log(run_dir)
    _print_earlier(newest, lines)
    path: Path | None = newest
    while path is not None:
        with path.open("rb") as log:
            read = iter(lambda: log.readline(_LONGEST_LINE_BYTES), b"")
            for line in read if lines is None else deque(read, maxlen=lines):
                console.piece(last_state(line.decode("utf-8", errors="replace")))
            lines = None
            path = _follow(run_dir, path, log) if follow else None


def _print_earlier(path: Path, lines: int | None) -> None:
    """Where an attempt has written nothing yet, say so and print the last lines of the one before."""
    _, attempt, rest = path.name.split("-", 2)
    before = path.with_name(f"train-{int(attempt) - 1}-{rest}")
    if path.stat().st_size or not before.is_file():
        return
    console.talk("logs.nothing_yet", attempt=attempt, before=int(attempt) - 1)
    with before.open("rb") as log:
        read = iter(lambda: log.readline(_LONGEST_LINE_BYTES), b"")
        for line in deque(read, maxlen=_EARLIER_LINES if lines is None else lines):
            console.piece(last_state(line.decode("utf-8", errors="replace")))


def _follow(run_dir: RunDir, path: Path, log: BufferedReader) -> Path | None:
    """Print whole lines until the run ends; returns the next attempt's log if the supervisor has started one."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    running, begun, newest = True, "", path
    try:
        while running and newest == path:
            # Checked before reading, so that the last lines of a process are printed.
            running = training.is_running(run_dir)
            while chunk := log.read(_LONGEST_LINE_BYTES):
                *lines, begun = (begun + decoder.decode(chunk)).split("\n")
                for line in lines:
                    console.piece(last_state(line + "\n"))
                begun = begun[-_LONGEST_LINE_BYTES:]
            if running:
                wait_a_little()
                newest = path if log.peek() else training.newest_log(run_dir)
    except KeyboardInterrupt:
        return None
    console.piece(last_state(begun))
    return newest if newest != path else None


def log_lines(name: str, lines: int | None) -> None:
    """Print a log as JSON: the last lines, or all of it.

    Args:
        name: A run's name or folder.
        lines: How many lines from its end; None for all.
    """
    path = training.newest_log(layout.find(name))
    with path.open(encoding="utf-8", errors="replace", newline="\n") as log:
        read = [last_state(line).rstrip("\n") for line in deque(log, maxlen=lines)]
    console.data_json({"name": layout.find(name).name, "log": str(path), "lines": read})


def stop(name: str, *, as_json: bool) -> None:
    """Ask the run to stop at the next step boundary, or before its first one, and wait until it has."""
    run, run_dir = open_run(name), layout.find(name)
    was_running = stopping.stop(run_dir, console.talk)
    if not was_running:
        console.talk("stop.idle", name=run.name)
    else:
        say_stopped(run_dir, run.figures["step"])
        report_command.keep(run_dir)
    if as_json:
        console.data_json({**run.figures, "was_running": was_running})
