"""Tables as notebooks show them: plain HTML without styles of its own, every text escaped."""

import html
from collections.abc import Iterable, Sequence

Cell = str | tuple[str, str]
"""A text, or a figure with the interval it lies in."""


def table(rows: Iterable[Sequence[Cell]], headings: Sequence[str] = ()) -> str:
    """A table, with a row of headings where there are any."""
    head = f"<thead><tr>{''.join(f'<th>{html.escape(one)}</th>' for one in headings)}</tr></thead>" if headings else ""
    body = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{head}<tbody>{body}</tbody></table>"


def paragraph(text: str) -> str:
    """A line of text."""
    return f"<p>{_lines(text)}</p>"


def items(lines: Iterable[str]) -> str:
    """A list of lines."""
    return f"<ul>{''.join(f'<li>{_lines(line)}</li>' for line in lines)}</ul>"


def _cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return _lines(cell)
    figure, interval = cell
    return f"{_lines(figure)}<br><small>{_lines(interval)}</small>"


def _lines(text: str) -> str:
    return html.escape(text).replace("\n", "<br>")
