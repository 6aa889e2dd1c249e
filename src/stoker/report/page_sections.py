"""The parts of a run's page below its curves: plan, samples, data, checkpoints, what happened, origin, machine.

Each returns HTML; an empty text where there is nothing to show.
"""

import datetime
import html
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stoker import messages
from stoker.api import figures, html_tables
from stoker.api.html_tables import Cell
from stoker.api.run_progress import RunProgress, finite
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.plan.plan import Plan
from stoker.report import happening_words, next_commands, prepared_words, sample_words
from stoker.report.plan_check import PlannedFigure
from stoker.report.run_history import RunHistory
from stoker.rundir import checkpoints, files, prepared
from stoker.rundir.checkpoints import Checkpoint
from stoker.rundir.layout import Manifest, RunDir
from stoker.rundir.prepared import Report
from stoker.survey import survey_page

_LONGEST_TEXT = 4000
_FIGURES = {
    "memory_bytes": "report.figure_memory",
    "tokens_per_second": "report.figure_speed",
    "time_seconds": "report.figure_time",
    "money": "report.figure_money",
}
_HELD = {True: "report.held", False: "report.not_held", None: "report.not_measured"}
_MEASURES = {"exact_match": "report.exact_match", "multiple_choice": "report.multiple_choice"}
_SAMPLE = {
    "prompt": "report.prompt",
    "wanted": "report.wanted",
    "before": "report.before",
    "after": "report.after",
}
_RESUMABLE = ("stopped", "interrupted", "failed", "new")


def section(title: str, *parts: str) -> str:
    """A heading and what stands under it; nothing where nothing does."""
    inner = "".join(parts)
    return f"<section><h2>{html.escape(messages.text(title))}</h2>{inner}</section>" if inner else ""


def note(text: str) -> str:
    """A line in smaller letters."""
    return html_tables.paragraph(text, "note")


def _table(kind: str, rows: Sequence[Sequence[Cell]], headings: Sequence[str] = ()) -> str:
    """A table of a class of the page's style."""
    return f'<div class="{kind}">{html_tables.table(rows, headings)}</div>' if rows else ""


def moment(at: str) -> str:
    """A time as the reader's clock has it; what is none, as it is."""
    try:
        return f"{datetime.datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError):
        return at


# ---- the plan


def planned(compared: Sequence[PlannedFigure], made: Plan, progress: RunProgress) -> str:
    """Each figure of the plan with its interval, and what was measured."""
    rows: list[Sequence[Cell]] = [
        (
            messages.text(_label(one, made)),
            (_said(one, one.planned), f"{_said(one, one.low)} – {_said(one, one.high)}"),
            ("-" if one.measured is None else _said(one, one.measured), _verdict(one)),
        )
        for one in compared
    ]
    headings = ["", *map(messages.text, ("report.planned", "report.measured"))]
    split = made.batch
    fields = {"effective": split.effective, "micro": split.micro, "accumulation": split.accumulation}
    arithmetic = messages.text("report.batch", **fields, devices=split.devices, card=made.card)
    notes = [
        note(messages.text("report.plan_note")),
        *([note(_stay(progress))] if progress.spent and progress.spent.so_far else []),
    ]
    return section("report.plan", html_tables.paragraph(arithmetic), _table("plan", rows, headings), *notes)


def _label(one: PlannedFigure, made: Plan) -> str:
    is_main = one.name == "memory_bytes" and made.device == "cpu"
    return "report.figure_main_memory" if is_main else _FIGURES[one.name]


def _said(one: PlannedFigure, value: float) -> str:
    if one.name == "memory_bytes":
        return f"{value / 2**30:.2f} GiB"
    if one.name == "tokens_per_second":
        return messages.text("plan.pace", value=f"{value:,.0f}")
    return figures.duration(value) if one.name == "time_seconds" else f"{figures.exact_money(value)} {one.currency}"


def _verdict(one: PlannedFigure) -> str:
    sign = "" if one.held is None else "✓ " if one.held else "✗ "
    return f"{sign}{messages.text(_HELD[one.held])}"


def _stay(progress: RunProgress) -> str:
    spent = progress.spent
    assert spent is not None
    return messages.text("report.stay", money=figures.exact_money(spent.so_far), currency=spent.currency)


# ---- the model


def samples(history: RunHistory, run_dir: RunDir) -> str:
    """What the model answers, beside what it answered before training; and what was measured of it."""
    shown = [_sample(one) for one in history.samples.values()]
    if not shown and run_dir.final.is_dir():
        shown = [note(messages.text("report.no_samples", command=f"stoker eval {run_dir.name} --samples 3"))]
    measured = [*map(_evaluated, history.evaluated.items()), *map(_task, history.tasks.values())]
    measured += map(sample_words.win_rate, history.judged.values())
    return section("report.samples", html_tables.items(filter(None, measured)) if any(measured) else "", *shown)


def _sample(one: dict[str, Any]) -> str:
    shown = {**one, "prompt": sample_words.asked(one)}
    rows = [
        f"<dt>{html.escape(messages.text(label))}</dt><dd>{html.escape(_short(str(shown[key])))}</dd>"
        for key, label in _SAMPLE.items()
        if key in one
    ]
    return f'<dl class="sample">{"".join(rows)}</dl>'


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} …"


def _evaluated(found: tuple[str, dict[str, Any]]) -> str:
    artifact, event = found
    loss, perplexity = finite(event.get("eval_loss")), finite(event.get("perplexity"))
    if loss is None or perplexity is None:
        return ""
    said = {"loss": f"{loss:.4f}", "perplexity": f"{perplexity:.2f}", "tokens": event.get("trained_tokens", "?")}
    return f"{artifact or 'final'}: {messages.text('eval.line', **said)}"


def _task(event: dict[str, Any]) -> str:
    try:
        fields = {"task": Path(event["task"]).name, "right": event["right"], "rows": event["rows"]}
        key, share = _MEASURES[event["measure"]], f"{event['right'] / event['rows']:.1%}"
        return f"{event.get('artifact') or 'final'}: {messages.text(key, **fields, share=share)}"
    except files.FOREIGN:
        return ""


# ---- the data


def data(run_dir: RunDir) -> str:
    """What was prepared; each of `DATA_FRAGMENTS` adds its part."""
    try:
        report = prepared.read_report(run_dir.data)
    except StokerError as error:
        return section("report.data", note(f"{error.what}  [{error.code}]"))
    if report is None:
        return ""
    return section("report.data", *(fragment(report) for fragment in DATA_FRAGMENTS))


def _counts(report: Report) -> str:
    lines = [
        *(_source(entry) for entry in report.detected),
        *prepared_words.trained(report),
        *prepared_words.held_and_cut(report),
    ]
    if report.bad_rows:
        lines.append(messages.text("prepare.bad_rows", count=f"{report.bad_rows:,}", path="data/bad_rows.jsonl"))
    return html_tables.items(lines) + note(messages.text("report.digest", digest=report.digest))


def _source(entry: dict[str, Any]) -> str:
    """A source by the name of its file, not by where that is on this machine."""
    name = Path(str(entry.get("file", entry.get("path", "")))).name
    counts = {key: f"{finite(entry.get(key)) or 0:,.0f}" for key in ("rows", "bad_rows")}
    return messages.text("report.source", name=name, format=entry.get("format") or "-", **counts)


def _lengths(report: Report) -> str:
    """A bar for each power of two of tokens; a survey has a finer plot."""
    if (report.survey or {}).get("lengths"):
        return ""
    counts = {int(top): count for top, count in report.length_histogram.items() if top.isdecimal()}
    if not counts:
        return ""
    most = max(counts.values()) or 1
    bars = "".join(
        f"<tr><th>{html.escape(f'{top // 2 + 1:,}–{top:,}' if top > 2 else str(top))}</th>"
        f'<td><span class="bar" style="width:{100 * counts[top] / most:.1f}%"></span></td><td>{counts[top]:,}</td></tr>'
        for top in sorted(counts)
    )
    title = html.escape(messages.text("report.lengths"))
    return f'<table class="bars"><caption>{title}</caption><tbody>{bars}</tbody></table>'


def _surveyed(report: Report) -> str:
    return survey_page.fragment(report.model_dump())


DATA_FRAGMENTS: tuple[Callable[[Report], str], ...] = (_counts, _lengths, _surveyed)
"""What the page says of a prepared set: each makes HTML of `data/report.json`, empty where it finds nothing in it."""


# ---- the run


def saved(run_dir: RunDir, history: RunHistory) -> str:
    """Checkpoints that are there, with digests; how many were committed in all."""
    kept = checkpoints.committed(run_dir.checkpoints)
    rows = [[(_saved(one), one.commit.digest)] for one in reversed(kept)]
    fields = {"count": history.num_saves, "kept": len(kept), "failed": history.num_failed_saves}
    counted = messages.text("report.saves", **fields, stall=figures.duration(history.save_stall_seconds))
    return section(
        "report.checkpoints",
        html_tables.paragraph(counted) if history.num_saves else "",
        _table("saves", rows),
    )


def _saved(one: Checkpoint) -> str:
    size = figures.size(sum(entry.bytes for entry in one.commit.files.values()))
    return " · ".join([messages.text("report.at_step", step=f"{one.step:,}"), size, moment(one.commit.created)])


def happened(history: RunHistory) -> str:
    """Starts, restarts, interventions, errors and ends, oldest first."""
    told = [(moment(event["at"]), said) for event in history.happenings if (said := happening_words.sentence(event))]
    older = history.num_happenings - len(history.happenings)
    parts = [note(messages.text("report.earlier", count=older))] if older > 0 else []
    return section("report.happened", *parts, _table("log", told)) if told else ""


def origin(run_dir: RunDir, manifest: Manifest, run: Run | None, made: Plan | None, progress: RunProgress) -> str:
    """The run file, the base model, the run it was forked from, the data, the store."""
    model = run.model if run else "?"
    base = model if isinstance(model, str) else messages.text("report.from_scratch")
    weights = str(progress.attempt.get("base") or "")
    rows: list[Sequence[Cell]] = [
        (messages.text("report.base"), (Path(base).name if _is_path(base) else base, weights))
    ]
    if forked := manifest.forked_from:
        fields = {"run": forked.get("run"), "step": forked.get("step")}
        rows.append(
            (messages.text("report.fork"), (messages.text("report.fork_value", **fields), _text(forked, "commit")))
        )
    facts = {
        "report.data_digest": manifest.data_digest,
        "report.store": (made.store if made else None) or "",
        "report.git": manifest.git,
        "report.seed": str(run.train.seed) if run else "",
    }
    rows += [(messages.text(label), value) for label, value in facts.items() if value]
    text = manifest.text or (run_dir.run_file.read_text(encoding="utf-8") if run_dir.run_file.is_file() else "")
    shown = "\n".join([text.rstrip(), *(f"# --set {override}" for override in manifest.overrides)])
    title = html.escape(messages.text("report.run_file"))
    details = f"<details><summary>{title}</summary><pre>{html.escape(shown)}</pre></details>"
    return section("report.origin", _table("facts", rows), details)


def _is_path(name: str) -> bool:
    return Path(name).is_absolute() or name.startswith((".", "~"))


def _text(record: dict[str, Any], key: str) -> str:
    return str(record.get(key) or "")


def machine(manifest: Manifest) -> str:
    """The machine and the packages it was trained with."""
    found = manifest.machine
    devices = [one for one in found.get("devices") or [] if isinstance(one, dict)]
    cards = [f"{_text(one, 'name')} ({(finite(one.get('memory_bytes')) or 0) / 2**30:.0f} GiB)" for one in devices]
    memory = (finite(found.get("memory_bytes")) or 0) / 2**30
    facts = {
        "report.system": _text(found, "system"),
        "report.processor": f"{_text(found, 'processor')} x {_text(found, 'cpu_count')}" if found else "",
        "report.main_memory": f"{memory:.0f} GiB" if memory else "",
        "report.cards": ", ".join(cards),
        "report.driver": _text(found, "driver"),
    }
    rows = [(messages.text(label), value) for label, value in facts.items() if value]
    packages = {"stoker": manifest.stoker_version, "python": _text(found, "python"), **manifest.versions}
    rows += [(name, version) for name, version in packages.items() if version]
    return section("report.machine", _table("facts", rows))


def commands(run_dir: RunDir, manifest: Manifest, progress: RunProgress) -> str:
    """What to type next."""
    state, name = progress.state, run_dir.name
    rows: list[tuple[str, str]] = []
    if run_dir.final.is_dir():
        rows += next_commands.after_training(name, scores=next_commands.scores(run_dir))
    if state in _RESUMABLE and progress.elsewhere is None:
        key = "report.do_resume" if progress.attempt else "report.do_again"
        rows.append((key, next_commands.resume(run_dir, Path(manifest.folder))))
    if state == "failed" and progress.attempt:
        rows.append(("report.do_logs", f"stoker logs {name}"))
    if state == "running":
        rows += [("report.do_watch", f"stoker watch {name}"), ("report.do_stop", f"stoker stop {name}")]
    lines = "".join(
        f"<dt>{html.escape(messages.text(label))}</dt><dd><code>{html.escape(command)}</code></dd>"
        for label, command in rows
    )
    return section("report.go_on", f'<dl class="commands">{lines}</dl>' if lines else "")
