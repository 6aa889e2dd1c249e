"""Tables as notebooks show them, and pages of them: plain HTML, no script, no address, every text escaped."""

import html
import re
from collections.abc import Iterable, Sequence

from stoker import messages

_TYPED = re.compile(r"`([^`\n]+)`")
Cell = str | tuple[str, str]
"""A text, or a figure with the interval it lies in."""


def document(title: str, style: str, parts: Iterable[str]) -> str:
    """A whole page in the user's language, in one file."""
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f'<meta charset="utf-8">{view}<title>{html.escape(title)}</title><style>{style}</style>'
    language = {"zh": "zh-CN"}.get(messages.language(), messages.language())
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="{language}"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def table(rows: Iterable[Sequence[Cell]], headings: Sequence[str] = ()) -> str:
    """A table, with a row of headings where there are any."""
    head = f"<thead><tr>{''.join(f'<th>{html.escape(one)}</th>' for one in headings)}</tr></thead>" if headings else ""
    body = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{head}<tbody>{body}</tbody></table>"


def paragraph(text: str, kind: str = "") -> str:
    """A line of text, of a class of the page's style; what a person could type is marked as code."""
    return f'<p class="{kind}">{_lines(text)}</p>' if kind else f"<p>{_lines(text)}</p>"


def items(lines: Iterable[str]) -> str:
    """A list of lines."""
    return f"<ul>{''.join(f'<li>{_lines(line)}</li>' for line in lines)}</ul>"


def _cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return _lines(cell)
    figure, interval = cell
    return f"{_lines(figure)}<br><small>{_lines(interval)}</small>"


def _lines(text: str) -> str:
    return _TYPED.sub(r"<code>\1</code>", html.escape(text)).replace("\n", "<br>")
