"""Line charts as HTML and inline SVG: curves, points and bands, with axes, ticks and units; no script.

The drawing is stretched to the width of the page, its labels are not: they are HTML, placed by percentages.
"""

import html
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stoker.api.run_progress import CurvePoint

_SIDE = 1000
"""Units of the drawing in both directions."""
_TICKS = 5
_MOST_DECIMALS = 4
_STEP_TICKS, _FEW_STEP_TICKS, _LONG_STEPS = 7, 4, 10_000
"""Of steps with long numbers few fit a phone."""


@dataclass(frozen=True)
class Series:
    """What is drawn, and how it is called."""

    label: str
    points: Sequence[CurvePoint]
    kind: str = "line"
    """`line`, with the band between smallest and largest values; or `dots`, joined by a thin line."""


@dataclass(frozen=True)
class Axis:
    """The values that a chart spans, with round ticks inside."""

    low: float
    high: float
    ticks: list[float] = field(default_factory=list)

    def share(self, value: float) -> float:
        """Where a value is between both ends."""
        return (value - self.low) / (self.high - self.low)


def axis(low: float, high: float, *, whole: bool = False) -> Axis:
    """An axis around values; its ticks are 1, 2 or 5 times a power of ten apart.

    Args:
        low: The smallest value.
        high: The largest.
        whole: Ticks are whole numbers, and the axis ends where the values do.
    """
    if not low < high:
        room = abs(low) / 10 or 1.0
        low, high = low - room, high + room
    count = _TICKS if not whole else _STEP_TICKS if high < _LONG_STEPS else _FEW_STEP_TICKS
    apart = _round_distance((high - low) / count)
    apart = max(1.0, apart) if whole else apart
    first, last = math.ceil(low / apart - 1e-9), math.floor(high / apart + 1e-9)
    if not whole:
        first, last = math.floor(low / apart + 1e-9), math.ceil(high / apart - 1e-9)
        low, high = first * apart, last * apart
    return Axis(low, high, [number * apart for number in range(first, last + 1)])


def _round_distance(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def decimals(ticks: Sequence[float]) -> int:
    """Digits after the point that tell ticks apart."""
    apart = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    return max(0, -math.floor(math.log10(apart) + 1e-9))


def labels(ticks: Sequence[float]) -> list[str]:
    """What stands beside ticks: `1,200`, `0.25`; for what is tiny one power of ten for all, `0.5e-4`, `1e-4`."""
    digits = decimals(ticks)
    if digits <= _MOST_DECIMALS:
        return [f"{tick:,.{digits}f}" for tick in ticks]
    power = math.floor(math.log10(max(map(abs, ticks))) + 1e-9)
    return [f"{round(tick / 10**power, digits + power):g}e{power}" if tick else "0" for tick in ticks]


def chart(
    title: str,
    series: Sequence[Series],
    said: Callable[[float], str],
    *,
    step_label: str,
    from_zero: bool = False,
    marks: Sequence[tuple[float, str]] = (),
) -> str:
    """A chart over steps; empty where there is nothing to draw.

    Args:
        title: What it shows, with its unit.
        series: Its curves.
        said: A value in words, for points one can stop at.
        step_label: The word under the axis of steps.
        from_zero: Whether the axis begins at zero.
        marks: Steps with a line of their own, and what happened there.
    """
    known = [point for one in series for point in one.points]
    if not known:
        return ""
    steps = axis(min(point.step for point in known), max(point.step for point in known), whole=True)
    lowest = 0.0 if from_zero else min(point.mean for point in known)
    values = axis(lowest, max(point.mean for point in known))
    said_ticks = labels(values.ticks)
    rows = "".join(
        f'<span style="bottom:{100 * values.share(tick):.2f}%">{html.escape(label)}</span>'
        for tick, label in zip(values.ticks, said_ticks, strict=True)
    )
    columns = "".join(f'<span style="left:{100 * steps.share(tick):.2f}%">{tick:,.0f}</span>' for tick in steps.ticks)
    widest = max(map(len, said_ticks))
    drawing = _drawing(series, steps, values, said, marks)
    legend = "".join(f'<span class="key s{number}">{html.escape(one.label)}</span>' for number, one in _named(series))
    return (
        f'<figure class="chart" style="--digits:{widest}"><figcaption><b>{html.escape(title)}</b>{legend}</figcaption>'
        f'<div class="plot"><div class="rows">{rows}</div>{_svg(title, drawing)}<div class="columns">{columns}</div>'
        f'</div><div class="under">{html.escape(step_label)}</div></figure>'
    )


def _named(series: Sequence[Series]) -> list[tuple[int, Series]]:
    """Those that need a name: one curve alone is what the title says."""
    drawn = [(number, one) for number, one in enumerate(series) if one.points]
    return drawn if len(drawn) > 1 else []


def _svg(title: str, drawing: str) -> str:
    return (
        f'<svg viewBox="0 0 {_SIDE} {_SIDE}" preserveAspectRatio="none" role="img" aria-label="{html.escape(title)}">'
        f"{drawing}</svg>"
    )


def _drawing(
    series: Sequence[Series],
    steps: Axis,
    values: Axis,
    said: Callable[[float], str],
    marks: Sequence[tuple[float, str]],
) -> str:
    def at(step: float, value: float) -> str:
        inside = min(1.0, max(0.0, values.share(value)))
        return f"{_SIDE * steps.share(step):.1f} {_SIDE * (1 - inside):.1f}"

    def joined(points: Sequence[CurvePoint]) -> str:
        return "M" + "L".join(at(point.step, point.mean) for point in points)

    parts = [f'<path class="grid" d="M0 {_SIDE * (1 - values.share(tick)):.1f}h{_SIDE}"/>' for tick in values.ticks]
    for step, what in marks:
        if steps.low <= step <= steps.high:
            place = f"M{_SIDE * steps.share(step):.1f} 0v{_SIDE}"
            parts.append(f'<path class="mark" d="{place}"><title>{html.escape(what)}</title></path>')
    for number, one in enumerate(series):
        if not one.points:
            continue
        if one.kind == "line" and any(point.low < point.high for point in one.points):
            edge = [at(point.step, point.high) for point in one.points]
            edge += [at(point.step, point.low) for point in reversed(one.points)]
            parts.append(f'<path class="band s{number}" d="M{"L".join(edge)}Z"/>')
        parts.append(f'<path class="{one.kind} s{number}" d="{joined(one.points)}"/>')
        if one.kind == "dots" or len(one.points) == 1:
            parts += [
                f'<path class="dot s{number}" d="M{at(point.step, point.mean)}h0">'
                f"<title>{html.escape(f'{point.step:,.0f}: {said(point.mean)}')}</title></path>"
                for point in one.points
            ]
    return "".join(parts)


def thinned(points: Sequence[CurvePoint], most: int) -> list[CurvePoint]:
    """At most so many points: means of neighbours, with their smallest and largest value."""
    count = min(most, len(points))
    edges = [number * len(points) // count for number in range(count + 1)] if count else []
    found = [points[begin:end] for begin, end in itertools.pairwise(edges)]
    return [
        CurvePoint(
            sum(one.step for one in part) / len(part),
            sum(one.mean for one in part) / len(part),
            min(one.low for one in part),
            max(one.high for one in part),
        )
        for part in found
    ]
