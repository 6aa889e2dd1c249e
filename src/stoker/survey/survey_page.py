"""What a survey found, as HTML with plots: one file, no script, no address, every text escaped."""

import html
from collections.abc import Iterable, Sequence
from typing import Any

from stoker import messages
from stoker.survey import findings, survey_lines
from stoker.survey.findings import OddRow, RowGroup, Survey

PAGE_NAME = "report.html"
"""Beside `report.json`."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222; }
"""
_PART_STYLE = """
.survey table { border-collapse: collapse; margin: .5em 0 1em; }
.survey td, .survey th { border-bottom: 1px solid #ddd; padding: .25em .8em .25em 0; text-align: left; }
.survey td { overflow-wrap: anywhere; vertical-align: top; }
.survey .figures td:first-child { overflow-wrap: normal; white-space: nowrap; }
.survey h3 { font-size: 1.05em; margin: 1.5em 0 .2em; }
.survey svg { display: block; max-width: 100%; height: auto; margin: .5em 0; }
.survey .bar { fill: #4878a8; } .survey .asked { stroke: #a8071a; } .survey text { font-size: 12px; fill: #444; }
.survey .good { color: #176b2c; } .survey .look { color: #a8071a; }
"""
_WIDTH, _HEIGHT, _BELOW = 720, 180, 36


def page(report: dict[str, Any], name: str) -> str:
    """The whole page for a prepared set, by its report."""
    title = html.escape(messages.text("survey.page_title", name=name))
    wide = '<meta name="viewport" content="width=device-width">'
    head = f'<meta charset="utf-8">{wide}<title>{title}</title><style>{_STYLE}{_PART_STYLE}</style>'
    figures = f'<div class="survey"><div class="figures">{_figures(report)}</div></div>'
    body = f"<h1>{title}</h1>\n{figures}\n{fragment(report)}"
    return f'<!doctype html>\n<html lang="{messages.language()}"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def fragment(report: dict[str, Any]) -> str:
    """The part of a page about the rows of a prepared set, by its report (`data/report.json`); empty where none is."""
    found = findings.read(report)
    if found is None:
        return ""
    parts = [_kept(found), _lengths(found, report["length"]), _scripts(found)]
    if found.skipped is None:
        parts = [_duplicates(found), _leaks(found), _contradictions(found), *parts]
    said = survey_lines.skipped_text(found)
    notes = [_paragraph(said)] if said else []
    if found.bad:
        notes.append(_heading("survey.page.bad") + _items(survey_lines.bad_rows(found)))
    return (
        f'<div class="survey"><style>{_PART_STYLE}</style>\n' + "\n".join([*notes, *filter(None, parts)]) + "\n</div>"
    )


def _figures(report: dict[str, Any]) -> str:
    train, eval_ = report["train"], report["eval"] or {}
    rows = [
        ("survey.page.rows", f"{report['rows_read']:,}"),
        ("survey.page.bad", f"{report['bad_rows']:,}"),
        ("survey.page.tokens", f"{train['tokens']:,}"),
        ("survey.page.trained", f"{train['trained_tokens']:,}"),
        ("survey.page.eval_tokens", f"{eval_.get('tokens', 0):,}"),
        ("survey.page.digest", report["digest"]),
    ]
    return _table([(messages.text(key), value) for key, value in rows])


def _duplicates(found: Survey) -> str:
    parts = [_heading("survey.page.duplicates")]
    for split, one in (found.duplicates or {}).items():
        if one.count:
            parts += [_looked(survey_lines.duplicates_text(split, one)), _groups(one.places)]
    if len(parts) == 1:
        parts.append(_good())
    return "\n".join([*parts, *map(_paragraph, survey_lines.left_out(found))])


def _leaks(found: Survey) -> str:
    if found.leaks is None:
        return ""
    said = survey_lines.leaks_text(found)
    return _heading("survey.page.leaks") + (_looked(said) + _groups(found.leaks.places) if said else _good())


def _contradictions(found: Survey) -> str:
    said, one = survey_lines.contradictions_text(found), found.contradictions
    return _heading("survey.page.contradictions") + (_looked(said) + _groups(one.places) if said and one else _good())


def _scripts(found: Survey) -> str:
    one = found.scripts
    if one is None or not one.rows:
        return ""
    said = survey_lines.scripts_text(found)
    names = [(messages.named("survey.why", name), count) for name, count in one.rows.items()]
    odd = _looked(said) + _odd(one.places) if said else ""
    return _heading("survey.page.scripts") + _across(names) + odd


def _lengths(found: Survey, asked: int) -> str:
    one = found.lengths
    if one is None:
        return ""
    said = survey_lines.lengths_text(found)
    odd = _looked(said) + _odd(one.places) if said else ""
    return _heading("survey.page.lengths") + _upright(one.histogram, asked) + odd


def _kept(found: Survey) -> str:
    rows = survey_lines.kept_rows(found)
    if not rows:
        return ""
    headings = [messages.text(f"survey.page.kept_{name}") for name in ("length", "rows", "tokens")]
    return _heading("survey.page.kept") + _table(rows, headings)


# ---- plots


def _upright(histogram: Sequence[tuple[int, int]], asked: int) -> str:
    """Bars by length, with a line at the run file's length."""
    largest = max(count for _, count in histogram)
    wide = _WIDTH / len(histogram)
    bars = "".join(
        f'<rect class="bar" x="{at * wide:.1f}" y="{_HEIGHT * (1 - count / largest):.1f}" width="{wide * 0.9:.1f}" '
        f'height="{_HEIGHT * count / largest:.1f}"><title>≤ {end:,}: {count:,}</title></rect>'
        for at, (end, count) in enumerate(histogram)
    )
    every = -(-len(histogram) // 8)
    labels = "".join(
        f'<text x="{(at + 0.45) * wide:.1f}" y="{_HEIGHT + 16}" text-anchor="middle">{end:,}</text>'
        for at, (end, _) in enumerate(histogram)
        if at % every == 0
    )
    under = sum(end <= asked for end, _ in histogram) * wide
    line = f'<line class="asked" x1="{under:.1f}" y1="0" x2="{under:.1f}" y2="{_HEIGHT}" stroke-dasharray="4 3"/>'
    shown = line if histogram[0][0] <= asked <= histogram[-1][0] else ""
    caption = html.escape(messages.text("survey.page.lengths_caption", length=f"{asked:,}"))
    text = f'<text x="0" y="{_HEIGHT + _BELOW - 4}">{caption}</text>'
    return _svg(_HEIGHT + _BELOW, bars + labels + shown + text)


def _across(counts: Sequence[tuple[str, int]]) -> str:
    """A bar per name."""
    high, whole = 22, max(1, sum(count for _, count in counts))
    largest = max(count for _, count in counts)
    rows = "".join(
        f'<text x="0" y="{at * high + 15}">{html.escape(name)}</text>'
        f'<rect class="bar" x="150" y="{at * high + 3}" width="{max(1, 400 * count / largest):.1f}" height="16"/>'
        f'<text x="{156 + 400 * count / largest:.1f}" y="{at * high + 15}">{count:,} ({count / whole:.1%})</text>'
        for at, (name, count) in enumerate(counts)
    )
    return _svg(high * len(counts) + 4, rows)


def _svg(height: int, inner: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img">{inner}</svg>'


# ---- text


def _heading(key: str) -> str:
    return f"<h3>{html.escape(messages.text(key))}</h3>"


def _paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def _looked(text: str) -> str:
    return f'<p class="look">{html.escape(text)}</p>'


def _good() -> str:
    return f'<p class="good">{html.escape(messages.text("survey.page.none"))}</p>'


def _groups(places: Sequence[RowGroup]) -> str:
    return _items(survey_lines.group_text(group) for group in places)


def _odd(places: Sequence[OddRow]) -> str:
    return _items(survey_lines.odd_text(one) for one in places)


def _items(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in lines)}</ul>"


def _table(rows: Iterable[Sequence[str]], headings: Sequence[str] = ()) -> str:
    head = f"<thead><tr>{''.join(f'<th>{html.escape(one)}</th>' for one in headings)}</tr></thead>" if headings else ""
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{head}<tbody>{body}</tbody></table>"
