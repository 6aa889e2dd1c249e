"""Intervals of measured / predicted, per group, from compared rows.

A group's bounds are the 5th and 95th percentile of its rows, drawn to the next wider group's where it has few. All are
widened by one factor so that a source which was left out is covered too, for sources differ more than their rows do;
then each until it covers its own rows.
"""

import datetime
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from stoker.facts.intervals import ANY, Interval

COVER = 0.90
OLDER = "older"
DRAWN_AT = 30
"""Rows at which a group's own percentiles weigh as much as the wider group's."""
ENOUGH = 10
"""Smaller groups are not looked up, by `stoker.facts.intervals` neither."""
LEAST = 0.88
"""Of its own rows, a group that is large enough covers so many."""
MOST = 0.95
"""Beyond this share of its own rows an interval says too little."""


class Pair(Protocol):
    """What is needed of a compared row."""

    figure: str
    of: Any

    @property
    def ratio(self) -> float: ...

    @property
    def group(self) -> tuple[str, str, str]: ...


Bounds = dict[str, dict[str, dict[str, Any]]]


def make(pairs: list[Any], judged: list[Any] | None = None) -> Bounds:
    """Bounds of all groups of both figures.

    Args:
        pairs: Rows with the shipped predictions.
        judged: The same rows as predicted without their source, where that makes a difference; they decide how far
            bounds are widened.
    """
    made: Bounds = {}
    for figure in ("memory", "speed"):
        chosen, apart = ([pair for pair in all_ if pair.figure == figure] for all_ in (pairs, judged or pairs))
        if chosen:
            made[figure] = _groups(chosen, _widening(chosen, apart))
    return made


def reach(bounds: Bounds, group: tuple[str, str, str], ratio: float) -> None:
    """Lets an interval for older cards reach a run that ran out of memory: it needed at least so much more.

    Only where no measurement of the group states its memory; the bounds are a wider group's then, and n is 0.
    """
    if group[2] != OLDER:
        return
    own = find(bounds, "memory", *group)
    made = bounds["memory"].setdefault(" ".join(group), {"low": own.low, "high": own.high, "n": 0})
    if made["n"] == 0:
        made["high"] = max(made["high"], math.ceil(ratio * 100) / 100)


def measured(bounds: Bounds) -> Bounds:
    """The groups that measurements made, without those stretched to runs that ran out of memory."""
    return {figure: {name: own for name, own in groups.items() if own["n"]} for figure, groups in bounds.items()}


def find(bounds: Bounds, figure: str, method: str, strategy: str, card: str) -> Interval:
    """The interval of the narrowest group that is large enough; one without bounds where the table made none."""
    groups = bounds.get(figure, {})
    for words in ((method, strategy, card), (method, strategy, ANY), (ANY, strategy, ANY), (ANY, ANY, ANY)):
        name = " ".join(words)
        if name in groups and (words[1] == ANY or not 0 < groups[name]["n"] < ENOUGH):
            return Interval(groups[name]["low"], groups[name]["high"], groups[name]["n"], name)
    return Interval(0.0, math.inf, 0, "none")


def write(path: Path, bounds: Bounds) -> None:
    about = (
        "Bounds of measured / predicted that hold nine of ten published measurements, per method, strategy, card class."
    )
    unmeasured = "n = 0: a wider group's bounds, stretched to runs on older cards that ran out of memory."
    made = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    by = "python benchmarks/planner.py --intervals"
    text = json.dumps({"about": about, "unmeasured": unmeasured, "made": made, "by": by, "intervals": bounds}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def _groups(pairs: list[Any], widening: float, enough: float = ENOUGH) -> dict[str, dict[str, Any]]:
    """Each level's groups, from all rows down; those of `enough` rows cover their own."""
    levels: list[Callable[[tuple[str, str, str]], tuple[str, str, str]]] = [
        lambda group: (ANY, ANY, ANY),
        lambda group: (ANY, group[1], ANY),
        lambda group: (group[0], group[1], ANY),
        lambda group: group,
    ]
    logs: dict[str, tuple[float, float]] = {}
    made: dict[str, dict[str, Any]] = {}
    for depth, level in enumerate(levels):
        for words in sorted({level(pair.group) for pair in pairs}):
            own = [math.log(pair.ratio) for pair in pairs if level(pair.group) == words]
            parent = " ".join(levels[max(0, depth - 1)](words))
            logs[" ".join(words)] = _bounds(own, logs.get(parent))
            made[" ".join(words)] = _stated(logs[" ".join(words)], widening, own, enough)
    return made


def _bounds(own: list[float], wider: tuple[float, float] | None) -> tuple[float, float]:
    """Percentiles with the finite-sample rank of split conformal prediction, drawn to the wider group's."""
    ranked = sorted(own)
    below = max(0, math.floor((len(ranked) + 1) * (1 - COVER) / 2) - 1)
    low, high = ranked[below], ranked[len(ranked) - 1 - below]
    if wider is None:
        return low, high
    weight = len(ranked) / (len(ranked) + DRAWN_AT)
    return weight * low + (1 - weight) * wider[0], weight * high + (1 - weight) * wider[1]


def _stated(bounds: tuple[float, float], widening: float, own: list[float], enough: float) -> dict[str, Any]:
    """Widened about the middle, in a large group until it covers its rows; some doubt remains on either side."""
    middle, half = sum(bounds) / 2, max(0.01, (bounds[1] - bounds[0]) / 2) * widening
    if len(own) >= enough:
        half = max(half, _quantile([abs(value - middle) for value in own], LEAST))
    low, high = math.floor(math.exp(middle - half) * 1e4) / 1e4, math.ceil(math.exp(middle + half) * 1e4) / 1e4
    return {"low": low, "high": high, "n": len(own)}


def _widening(pairs: list[Any], judged: list[Any]) -> float:
    """The factor at which sources, left out, are covered; at most that at which too many rows are covered."""
    sources = sorted({pair.of.source for pair in pairs})
    if len(sources) < 2:
        return 1.0
    apart = []
    for source in sources:
        bounds = {pairs[0].figure: _groups([pair for pair in pairs if pair.of.source != source], 1.0, math.inf)}
        apart += [_needed(bounds, pair) for pair in judged if pair.of.source == source]
    own = {pairs[0].figure: _groups(pairs, 1.0, math.inf)}
    together = [_needed(own, pair) for pair in pairs]
    return max(1.0, min(_quantile(apart, COVER), _quantile(together, MOST)))


def _needed(bounds: Bounds, pair: Any) -> float:
    """By how much a pair's interval must be widened to hold it."""
    own = find(bounds, pair.figure, *pair.group)
    middle = (math.log(own.low) + math.log(own.high)) / 2
    half = (math.log(own.high) - math.log(own.low)) / 2
    return abs(math.log(pair.ratio) - middle) / half


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, math.ceil(share * len(values)) - 1)]
