"""The report as a page to look at: plain HTML in one file, no script, no address, every text escaped."""

import html
from typing import Any

from stoker import messages
from stoker.api import html_tables
from stoker.prove.check import Check

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: .5em 0 1.5em; }
td, th { border-bottom: 1px solid #ddd; padding: .25em .8em .25em 0; text-align: left; vertical-align: top; }
td { overflow-wrap: anywhere; }
h2 { font-size: 1.1em; margin: 1.5em 0 .2em; }
.passed { color: #176b2c; } .failed { color: #a8071a; } .absent { color: #666; }
"""


def page(report: dict[str, Any], checks: list[Check]) -> str:
    """The whole page."""
    title = messages.text("prove.title", card=report["machine"]["card"], date=report["date"])
    machine = html.escape(messages.text("prove.machine"))
    facts = [(name, _shown(value)) for name, value in {**report["machine"], **report["packages"]}.items()]
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        html_tables.paragraph(_summary(checks)),
        *map(_section, checks),
        f"<h2>{machine}</h2>",
        html_tables.table(facts),
    ]
    return html_tables.document(title, _STYLE, parts)


def _summary(checks: list[Check]) -> str:
    counts = {f"num_{one}": sum(check.outcome == one for check in checks) for one in ("passed", "failed", "absent")}
    return messages.text("prove.summary", **counts)


def _section(check: Check) -> str:
    word = html.escape(messages.text(f"prove.{check.outcome}"))
    heading = f'<h2>{html.escape(check.title)}: <span class="{check.outcome}">{word}</span></h2>'
    reason = html_tables.paragraph(check.reason) if check.reason else ""
    rows = [row for name, value in check.figures.items() for row in _rows(name, value)]
    return heading + reason + html_tables.table(rows)


def _rows(name: str, value: Any) -> list[tuple[str, str]]:
    """A figure, or the figures of a list or mapping, one row each."""
    if isinstance(value, dict):
        return [row for inner, one in value.items() for row in _rows(f"{name}.{inner}", one)]
    if isinstance(value, list):
        return [(name if not index else "", _line(one)) for index, one in enumerate(value)]
    return [(name, _shown(value))]


def _line(value: Any) -> str:
    if isinstance(value, dict):
        return " · ".join(f"{name} {_shown(one)}" for name, one in value.items())
    return _shown(value)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
