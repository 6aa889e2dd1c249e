"""What `prepare` found in the data, in words."""

from typing import Any

from stoker import messages
from stoker.config import objectives
from stoker.report import prepared_words
from stoker.rows import pipeline_output
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report
from stoker.survey import findings, survey_lines, survey_page
from stoker.terminal import source_lines

_BAR_WIDTH = 40
_PLAIN = {
    "alpaca": "prepare.plain.alpaca",
    **dict.fromkeys(("prompt_completion", "preference", "labelled"), "prepare.plain.prompt_completion"),
}
"""How rows of a format are laid out where the tokenizer has no chat template."""


def lines(run_dir: RunDir, report: Report) -> list[str]:
    """The whole report; empty lines stand between its parts."""
    found = _pipeline(report)
    for entry in report.detected:
        found.append(_detected(entry))
        if entry.get("plain") and (key := _PLAIN.get(entry["format"])):
            found.append(messages.text(key, path=entry["path"]))
    lengths = messages.text("prepare.pairs.lengths" if objectives.has_pairs(report.objective) else "prepare.lengths")
    found += ["", *_figures(report), "", lengths, *_histogram(report.length_histogram)]
    if report.bad_rows:
        path = run_dir.data / "bad_rows.jsonl"
        found += ["", messages.text("prepare.bad_rows", count=f"{report.bad_rows:,}", path=path)]
    surveyed = findings.read(report.model_dump())
    if surveyed:
        found += [f"  {line}" for line in survey_lines.bad_rows(surveyed)]
        page = run_dir.data / survey_page.PAGE_NAME
        shown = [messages.text("survey.page", path=page)] if page.is_file() else []
        found += ["", messages.text("survey.title"), *survey_lines.lines(surveyed), *shown]
    return found


def _detected(entry: dict[str, Any]) -> str:
    keys = [f"`{key}`" for key in entry["keys"]]
    reason = messages.text(entry["reason"], keys=keys)
    counts = {name: f"{entry[name]:,}" for name in ("files", "rows", "bad_rows")}
    known = f"{entry['format']} ({entry['package']})" if "package" in entry else entry["format"] or "-"
    return messages.text(
        "prepare.detected", path=entry.get("file", entry["path"]), format=known, reason=reason, **counts
    )


def _pipeline(report: Report) -> list[str]:
    """What `data.pipeline` could not read, and what each step kept; blocks that only read or write say nothing new."""
    bad = pipeline_output.num_bad(report.pipeline or [])
    lines = [messages.text("prepare.pipeline_bad", count=f"{bad:,}")] if bad else []
    exam = [block["counts"] for stage in report.pipeline or [] for block in stage["blocks"]]
    short = sum(counts.get("without_ngrams", 0) for counts in exam)
    lines += [messages.text("prepare.pipeline_short", count=f"{short:,}")] if short else []
    return lines + [
        messages.text(
            "prepare.pipeline_step",
            step=pipeline_output.title(block),
            total=f"{block['counts']['total']:,}",
            dropped=f"{block['counts'].get('dropped', 0):,}",
        )
        for stage in report.pipeline or []
        for block in stage["blocks"]
        if "forwarded" in block["counts"] or "dropped" in block["counts"]
    ]


def _figures(report: Report) -> list[str]:
    lines = [*prepared_words.trained(report), *source_lines.prepared(report), *prepared_words.held_and_cut(report)]
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
