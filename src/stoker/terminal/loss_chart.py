"""The loss over a run as a chart of a few lines: the training loss in braille dots, each eval as an `o`."""

import itertools
from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from stoker import messages
from stoker.api.run_progress import CurvePoint
from stoker.report import line_chart

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bit of each dot of a braille character: left column from the top, then the right one."""
_BLANK = 0x2800
_EVAL = "o"
_LEAST_POINTS = 2


def can_show(encoding: str) -> bool:
    """Whether a terminal's encoding has braille characters; GBK, for one, does not."""
    try:
        chr(_BLANK).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def lines(losses: Sequence[CurvePoint], evals: Sequence[CurvePoint], width: int, height: int) -> list[Text]:
    """The chart, with an axis of steps under it; empty where there is no curve yet.

    Args:
        losses: The training loss.
        evals: The eval loss.
        width: Columns for all of it.
        height: Lines of the drawing; the axis is one more.
    """
    if len(losses) < _LEAST_POINTS:
        return []
    known = [*losses, *evals]
    low, high = min(one.mean for one in known), max(one.mean for one in known)
    low, high = (low, high) if low < high else (low - 0.5, high + 0.5)
    digits = line_chart.decimals([0.0, (high - low) / height])
    labels = {0: f"{high:.{digits}f}", height // 2: "", height - 1: f"{low:.{digits}f}"}
    labels[height // 2] = f"{high - (high - low) * (height // 2) / (height - 1):.{digits}f}"
    margin = max(map(len, labels.values()))
    columns = max(1, width - margin - 2)
    grid = _Grid(columns, height, (min(one.step for one in known), max(one.step for one in known)), (low, high))
    grid.draw(line_chart.thinned(losses, 2 * columns))
    marked = {grid.cell(one) for one in evals}
    shown = [_row(grid, row, marked, f"{labels.get(row, ''):>{margin}} ") for row in range(height)]
    return [*shown, _axis(grid.steps, margin, columns, has_evals=bool(evals))]


def _row(grid: "_Grid", row: int, marked: set[tuple[int, int]], label: str) -> Text:
    """A line of the drawing behind its label."""
    line = Text.assemble((label, "dim"), ("│", "dim"))
    for column in range(grid.columns):
        is_eval = (column, row) in marked
        line.append(_EVAL if is_eval else grid.text(column, row), "bold yellow" if is_eval else "cyan")
    line.rstrip()
    return line


def _axis(steps: tuple[float, float], margin: int, columns: int, *, has_evals: bool) -> Text:
    first, last = (f"{step:,.0f}" for step in steps)
    legend = messages.text("watch.chart_evals") if has_evals else messages.text("watch.chart")
    room = columns - cell_len(first) - cell_len(last)
    middle = legend if cell_len(legend) + 2 <= room else ""
    before = max(1, (room - cell_len(middle)) // 2)
    after = max(1, room - before - cell_len(middle))
    return Text(f"{' ' * (margin + 2)}{first}{' ' * before}{middle}{' ' * after}{last}", style="dim")


class _Grid:
    """Dots, two columns and four lines of them in each character."""

    def __init__(self, columns: int, height: int, steps: tuple[float, float], values: tuple[float, float]) -> None:
        self.columns, self._height = columns, height
        self.steps, self._values = steps, values
        self._bits: dict[tuple[int, int], int] = {}

    def cell(self, point: CurvePoint) -> tuple[int, int]:
        """The character that a point is in."""
        x, y = self._dot(point)
        return x // 2, y // 4

    def text(self, column: int, row: int) -> str:
        """The character of a cell."""
        return chr(_BLANK + bits) if (bits := self._bits.get((column, row))) else " "

    def draw(self, points: Sequence[CurvePoint]) -> None:
        """A line through points."""
        for (x, y), (to_x, to_y) in itertools.pairwise(map(self._dot, points)):
            count = max(abs(to_x - x), abs(to_y - y), 1)
            for number in range(count + 1):
                self._set(x + round((to_x - x) * number / count), y + round((to_y - y) * number / count))

    def _dot(self, point: CurvePoint) -> tuple[int, int]:
        (first, last), (low, high) = self.steps, self._values
        across = (point.step - first) / (last - first) if last > first else 0.0
        down = (high - point.mean) / (high - low)
        return round(across * (2 * self.columns - 1)), round(down * (4 * self._height - 1))

    def _set(self, x: int, y: int) -> None:
        cell = x // 2, y // 4
        self._bits[cell] = self._bits.get(cell, 0) | _DOTS[x % 2][y % 4]
