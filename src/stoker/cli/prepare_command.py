"""`stoker prepare`: tokenise and pack the run's data, and say what was found in it."""

import json
from typing import Any

from rich.text import Text

from stoker import messages
from stoker.api import preparation
from stoker.api.sentences import listed
from stoker.launch import programs
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report
from stoker.terminal import console, recipe_table, set_words

_BAR_WIDTH = 40
_PLAIN = {"alpaca": "prepare.plain.alpaca", "prompt_completion": "prepare.plain.prompt_completion"}
"""How rows of a format are laid out where the tokenizer has no chat template."""


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
    _summary(run_dir, report)
    if shown:
        _show_rows(shown["rows"])


def ensure_prepared(run_dir: RunDir) -> Report:
    """The report of the run's prepared data, with a progress line while it is prepared."""
    with console.status() as status:
        preparation.read_inputs(run_dir, lambda *read: set_words.moved(status, "prepare.digesting", *read))
    report = preparation.current(run_dir)
    if report is not None:
        return report
    with console.status() as status:
        status.show(messages.text("prepare.starting"))
        return preparation.make(run_dir, lambda event: _progress(event, status))


def say_changes(run_dir: RunDir, report: Report) -> None:
    """Say which sources are not what the data was prepared from, which only a trained run goes on with."""
    if changed := preparation.changed_sources(run_dir, report):
        console.talk("prepare.sources_changed", files=listed(changed))


def _progress(event: dict[str, Any], status: console.StatusLine) -> None:
    if event["event"] == "bringing":
        set_words.moved(status, "prepare.bringing", event["done_bytes"], event["total_bytes"])
    if event["event"] != "prepare":
        return
    key = "prepare.progress" if event["rows"] else "prepare.progress_open"
    counts = {name: f"{event[name]:,}" for name in ("done_rows", "rows", "tokens")}
    status.show(messages.text(key, **counts))


# ---- the report in words


def _summary(run_dir: RunDir, report: Report) -> None:
    for entry in report.detected:
        console.data(_detected(entry))
        if entry.get("plain"):
            console.data(messages.text(_PLAIN[entry["format"]], path=entry["path"]))
    console.data("")
    for line in _figures(report):
        console.data(line)
    console.data("")
    console.data(messages.text("prepare.lengths"))
    for line in _histogram(report.length_histogram):
        console.data(line)
    if report.bad_rows:
        console.data("")
        path = run_dir.data / "bad_rows.jsonl"
        console.data(messages.text("prepare.bad_rows", count=f"{report.bad_rows:,}", path=path))


def _detected(entry: dict[str, Any]) -> str:
    keys = [f"`{key}`" for key in entry["keys"]]
    reason = messages.text(entry["reason"], keys=keys)
    counts = {name: f"{entry[name]:,}" for name in ("files", "rows", "bad_rows")}
    known = f"{entry['format']} ({entry['package']})" if "package" in entry else entry["format"] or "-"
    return messages.text("prepare.detected", path=entry["path"], format=known, reason=reason, **counts)


def _figures(report: Report) -> list[str]:
    train = report.train
    lines = [
        messages.text(
            "prepare.packed" if report.packed else "prepare.unpacked",
            segments=f"{train.segments:,}",
            sequences=f"{train.sequences:,}",
            length=f"{report.length:,}",
            efficiency=f"{report.pack_efficiency:.1%}",
        ),
        messages.text(
            "prepare.tokens",
            tokens=f"{train.tokens:,}",
            trained=f"{train.trained_tokens:,}",
            share=f"{train.trained_tokens / train.tokens:.1%}",
        ),
    ]
    if report.eval:
        counts = {"segments": f"{report.eval.segments:,}", "tokens": f"{report.eval.tokens:,}"}
        lines.append(messages.text("prepare.eval", **counts))
    if report.truncated_rows:
        count, length = f"{report.truncated_rows:,}", f"{report.length:,}"
        lines.append(messages.text("prepare.truncated", count=count, length=length))
    if report.context_answers:
        lines.append(messages.text("prepare.context_answers", count=f"{report.context_answers:,}"))
    return lines


def _histogram(counts: dict[str, int]) -> list[str]:
    """A bar per power of two, in order."""
    if not counts:
        return []
    tops = sorted(int(top) for top in counts)
    largest = max(counts.values())
    names = {top: f"{top // 2 + 1}-{top}" if top > 2 else str(top) for top in tops}
    width = max(len(name) for name in names.values())
    return [
        f"  {names[top]:>{width}}  {'#' * max(1, round(_BAR_WIDTH * counts[str(top)] / largest))} {counts[str(top)]:,}"
        for top in tops
    ]


# ---- rows


def _show_rows(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        console.data("")
        console.data(messages.text("prepare.row", number=row["row"], count=len(row["segments"])))
        for segment in row["segments"]:
            console.stdout.print(_coloured(segment))
    console.data("")
    console.data(messages.text("prepare.marks"))


def _coloured(segment: list[tuple[str, bool]]) -> Text:
    """A document with its trained tokens coloured, and marked for terminals without colour."""
    out = Text("  ")
    for text, trained in segment:
        out.append(f"{{+{text}+}}" if trained else text, style="bold green" if trained else "dim")
    return out
