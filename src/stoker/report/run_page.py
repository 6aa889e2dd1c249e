"""`report.html`: a run on one page, in one file that asks for nothing else; of any run, at any time.

What is shown passes `_private`: no secret, and no path of the user's home.
"""

import datetime
import html
import re
from pathlib import Path
from typing import Any

from stoker import __version__, env, messages
from stoker.api import figures, html_tables
from stoker.api.run_progress import RunProgress
from stoker.artifacts import spelt_folders
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.plan.plan import Plan
from stoker.report import line_chart, page_sections, plan_check, run_history, state_words
from stoker.report.line_chart import Series
from stoker.report.page_style import STYLE
from stoker.report.run_history import RunHistory
from stoker.rundir import files
from stoker.rundir.layout import Manifest, RunDir

NAME = "report.html"
_MOST_POINTS = 400
_TAG = re.compile(r"(<[^>]*>)")


def write(run_dir: RunDir) -> Path:
    """Write the page of a run into its directory, in one step; returns where it is."""
    path = run_dir.path / NAME
    files.write_text(path, page(run_dir))
    return path


def figures_of(run_dir: RunDir) -> dict[str, Any]:
    """The plan beside what happened, for `--json`."""
    made = plan_check.read_plan(run_dir)
    if made is None:
        return {"plan": None}
    progress = _progress(run_dir)
    return {"plan": plan_check.to_json(plan_check.compare(made, run_history.read(run_dir), progress))}


def page(run_dir: RunDir) -> str:
    """The whole page."""
    manifest, progress, history = run_dir.manifest(), _progress(run_dir), run_history.read(run_dir)
    run, made = _run(run_dir), plan_check.read_plan(run_dir)
    compared = plan_check.compare(made, history, progress) if made else []
    parts = [
        _head(run_dir, manifest, _about(run, made) if run else "", progress),
        _problem(progress),
        _tiles(made, history, progress),
        _curves(history, progress),
        page_sections.planned(compared, made, progress) if made else "",
        page_sections.samples(history, run_dir),
        page_sections.data(run_dir),
        page_sections.saved(run_dir, history),
        page_sections.happened(history),
        page_sections.origin(run_dir, manifest, run, made, progress),
        page_sections.machine(manifest),
        page_sections.commands(run_dir, manifest, progress),
    ]
    return _private(html_tables.document(f"{run_dir.name} · Stoker", STYLE, filter(None, parts)), run_dir, manifest)


def _progress(run_dir: RunDir) -> RunProgress:
    progress = RunProgress(run_dir)
    progress.update()
    return progress


def _run(run_dir: RunDir) -> Run | None:
    """What was asked; None where the run file is of a Stoker with other keys, or a stranger's."""
    try:
        return run_dir.run()
    except (OSError, StokerError):
        return None


def _private(page: str, run_dir: RunDir, manifest: Manifest) -> str:
    """The page without secrets; folders of this machine are named from the run file's, or from the home folder."""
    named = ((run_dir.path.absolute(), "."), (manifest.folder, "."), (Path.home(), "~"))
    spelt = {one: name for folder, name in named for one in spelt_folders.spellings(folder)}
    known = [
        (re.compile(rf"{spelt_folders.pattern(html.escape(one))}(?![\w.-])"), spelt[one])
        for one in sorted(spelt, key=len, reverse=True)
    ]

    def shown(text: str) -> str:
        for folder, name in known:
            text = folder.sub(name, text)
        return html.escape(env.masked(html.unescape(text))) if "&" in text else env.masked(text)

    # Every `<` of a text is escaped: what is between two tags is text.
    return "".join(part if part.startswith("<") else shown(part) for part in _TAG.split(page))


# ---- the first screen


def _head(run_dir: RunDir, manifest: Manifest, about: str, progress: RunProgress) -> str:
    state, done, total = progress.state, progress.done_steps, progress.total_steps
    share = min(1.0, done / total) if total else 0.0
    word = f'<span class="state {html.escape(state)}">{html.escape(state_words.of(progress))}</span>'
    so_far = html.escape(messages.text("report.so_far", step=f"{done:,}", total=f"{total:,}")) if total else ""
    lines = [about, messages.text("report.began", at=page_sections.moment(manifest.created))]
    now = datetime.datetime.now(datetime.timezone.utc).isoformat()
    fields = {"at": page_sections.moment(now), "version": __version__, "command": f"stoker report {run_dir.name}"}
    written = page_sections.note(messages.text("report.written", **fields))
    bar = f'<div class="done-part"><span style="width:{100 * share:.1f}%"></span></div>' if total else ""
    return (
        f"<header><h1>{html.escape(run_dir.name)}</h1><p>{word}{' · ' if so_far else ''}{so_far}</p>{bar}"
        f"{html_tables.paragraph(' · '.join(filter(None, lines)))}"
        f"{written}</header>"
    )


def _about(run: Run, made: Plan | None) -> str:
    """Model, method and card in a line."""
    model = run.model if isinstance(run.model, str) else run.model.shape
    method = messages.text("report.scratch") if not isinstance(run.model, str) else run.tune.method
    card = [f"{made.batch.devices} x {made.card}" if made.batch.devices > 1 else made.card] if made else []
    size = [messages.text("report.weights", count=figures.millions(made.model.parameters))] if made else []
    return " · ".join(
        [Path(model).name if Path(model).is_absolute() else model, *size, method, run.train.objective, *card]
    )


def _problem(progress: RunProgress) -> str:
    if progress.error:
        error = progress.problem
        said = [f"{error.what}  [{error.code}]", *([error.where] if error.where else [])]
        inner = "".join(map(html_tables.paragraph, [*said, messages.text("hint") + error.hint]))
        return f'<div class="problem">{inner}</div>'
    return ""


def _tiles(made: Plan | None, history: RunHistory, progress: RunProgress) -> str:
    """The figures one looks for first, each with what it is to be compared with."""
    if not progress.step:
        return html_tables.paragraph(messages.text("report.no_steps")) if not progress.error else ""
    done = progress.done_steps
    found = [
        ("report.tile_loss", figures.loss(progress.step["loss"]), _first(progress)),
        ("report.tile_eval", figures.loss(progress.evaluation.get("eval_loss")), _best(history)),
        ("report.tile_tokens", figures.thousands(history.tokens_per_step * done), _epochs(progress)),
        ("report.tile_speed", f"{history.tokens_per_second:,.0f}", messages.text("report.tokens_per_second")),
        ("report.tile_time", figures.duration(history.seconds_per_step * done), messages.text("report.of_steps")),
    ]
    if used := history.peak_bytes:
        there = messages.text("report.of_memory", there=f"{made.memory.available_bytes / 2**30:.1f}") if made else ""
        found.append(("report.tile_memory", f"{used / 2**30:.1f} GiB", there))
    if (spent := progress.spent) and spent.so_far:
        paid = f"{figures.exact_money(spent.so_far)} {spent.currency}"
        found.append(("report.tile_money", paid, messages.text("report.so_far_money")))
    return f'<dl class="tiles">{"".join(_tile(*one) for one in found if one[1] != "-")}</dl>'


def _tile(label: str, value: str, small: str) -> str:
    said = f"{html.escape(value)}<small>{html.escape(small)}</small>"
    return f"<div><dt>{html.escape(messages.text(label))}</dt><dd>{said}</dd></div>"


def _first(progress: RunProgress) -> str:
    return messages.text("report.first_loss", loss=figures.loss(progress.first_loss))


def _best(history: RunHistory) -> str:
    best = history.best_eval
    return messages.text("report.best_eval", loss=figures.loss(best["eval_loss"]), step=best["step"]) if best else ""


def _epochs(progress: RunProgress) -> str:
    return messages.text("report.epochs", epochs=f"{progress.step['epoch']:.2f}")


# ---- the curves


def _curves(history: RunHistory, progress: RunProgress) -> str:
    step_label = messages.text("report.step")
    losses = line_chart.thinned(progress.loss_curve.points, _MOST_POINTS)
    evals = line_chart.thinned(progress.eval_curve.points, _MOST_POINTS)
    series = [Series(messages.text("report.training"), losses), Series(messages.text("report.eval"), evals, "dots")]
    marks = [
        (float(one["resumed_step"]), messages.text("train.tier", tier=one["tier"], step=one["resumed_step"]))
        for one in history.happenings
        if one["event"] == "attempt" and one["resumed_step"]
    ]
    charts = [
        line_chart.chart(
            messages.text("report.loss"), series, lambda value: f"{value:.4f}", step_label=step_label, marks=marks
        )
    ]
    scaled = [
        ("report.rate", history.learning_rate, 1.0),
        ("report.tokens_per_second", history.pace, 1.0),
        ("report.memory", history.memory, 2.0**30),
    ]
    for label, curve, unit in scaled:
        points = [
            type(one)(one.step, one.mean / unit, one.low / unit, one.high / unit)
            for one in line_chart.thinned(curve.points, _MOST_POINTS)
        ]
        title = messages.text(label)
        charts.append(
            line_chart.chart(
                title, [Series(title, points)], lambda value: f"{value:g}", step_label=step_label, from_zero=True
            )
        )
    inner = "".join(charts)
    return page_sections.section("report.curves", f'<div class="charts">{inner}</div>' if inner else "")
