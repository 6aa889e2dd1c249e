"""`stoker prepare`: tokenise and pack the run's data, and say what was found in it."""

import json
import time
from typing import Any

from rich.text import Text

from stoker import messages
from stoker.api import preparation
from stoker.api.sentences import listed
from stoker.config import objectives
from stoker.hosts import mirror_probe
from stoker.launch import programs
from stoker.rundir import prepared
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report
from stoker.terminal import console, data_report, recipe_table, set_words


def prepare(name: str, overrides: list[str], show: int, push: str | None = None, *, as_json: bool) -> None:
    """Prepare a run file's or recipe's data; with `show`, print that many rows; with `push`, put it into a store."""
    run_file = recipe_table.named(name, overrides)
    with run_file.located(), preparation.created(run_file) as run_dir:
        report = ensure_prepared(run_dir)
        say_changes(run_dir, report)
        sent = set_words.pushed(run_dir, push) if push else None
    shown = json.loads(programs.ask_engine("show", run_dir, str(show))) if show > 0 else {}
    if as_json:
        console.data_json({**report.model_dump(), **shown, **({} if sent is None else {"pushed_bytes": sent})})
        return
    for line in data_report.lines(run_dir, report):
        console.data(line)
    if shown:
        _show_rows(shown["rows"], "prepare.pairs.row" if objectives.has_pairs(report.objective) else "prepare.row")


def ensure_prepared(run_dir: RunDir) -> Report:
    """The report of the run's prepared data, with a progress line while it is prepared."""
    if not prepared.report_file(run_dir.data).exists():
        preparation.require_models(run_dir)
    if mirror := mirror_probe.for_this_machine(run_dir.run(), run_dir.folder()):
        console.talk("prepare.mirror", **mirror.fields)
    with console.status() as status:
        preparation.read_inputs(run_dir, lambda *read: set_words.moved(status, "prepare.digesting", *read))
    report = preparation.current(run_dir)
    if report is not None:
        return report
    with console.status() as status:
        status.show(messages.text("prepare.starting"))
        return preparation.make(run_dir, _ProgressLine(status).take)


def say_changes(run_dir: RunDir, report: Report) -> None:
    """Say which sources are not what the data was prepared from, which only a trained run goes on with."""
    if changed := preparation.changed_sources(run_dir, report):
        console.talk("prepare.sources_changed", files=listed(changed))


class _ProgressLine:
    """Rows, tokens and the pace of a preparation, in the line of progress."""

    def __init__(self, status: console.StatusLine) -> None:
        self._status = status
        self._first: dict[str, tuple[float, int]] = {}
        """By event: when it was heard of first, and how many rows were done then, as of a pass that goes on."""

    def take(self, event: dict[str, Any]) -> None:
        """Show what an event says."""
        if event["event"] == "pipeline":
            text = messages.text("prepare.pipeline_progress", stage=event["stage"], done=event["done"])
            self._status.show(text)
        elif event["event"] == "bringing":
            set_words.moved(self._status, "prepare.bringing", event["done_bytes"], event["total_bytes"])
        elif event["event"] == "surveying":
            done = event["done_rows"]
            self._status.show(messages.text("prepare.surveying", rows=f"{done:,}", pace=self._pace("surveying", done)))
        elif event["event"] == "prepare":
            key = "prepare.progress" if event["rows"] else "prepare.progress_open"
            counts = {name: f"{event[name]:,}" for name in ("done_rows", "rows", "tokens")}
            self._status.show(messages.text(key, **counts, pace=self._pace("prepare", event["done_rows"])))

    def _pace(self, event: str, done: int) -> str:
        now = time.monotonic()
        began, before = self._first.setdefault(event, (now, done))
        seconds, rows = now - began, done - before
        return messages.text("prepare.pace", rows=f"{rows / seconds:,.0f}") if rows and seconds else ""


# ---- rows


def _show_rows(rows: list[dict[str, Any]], title: str) -> None:
    for row in rows:
        console.data("")
        console.data(messages.text(title, number=row["row"], count=len(row["segments"])))
        for segment in row["segments"]:
            console.stdout.print(_coloured(segment))
    console.data("")
    console.data(messages.text("prepare.marks"))


def _coloured(segment: list[tuple[str, bool]]) -> Text:
    """A document with its trained tokens coloured, and marked for terminals without colour."""
    out = Text("  ")
    for text, trained in segment:
        shown = text.replace("\n", "\n  ")
        out.append(f"{{+{shown}+}}" if trained else shown, style="bold green" if trained else "dim")
    return out
