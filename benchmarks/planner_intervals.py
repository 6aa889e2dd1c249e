"""Intervals of measured / predicted per class of runs, conformal by source (ADR 0034).

A class holds the errors of sources on which nothing was fitted: each source was left out when the constants that judge
it were made. Every source weighs the same, however many rows it has. A class of fewer than nine sources borrows the
rest from the next wider class. Bounds leave 5 % of that weight on either side.
"""

import datetime
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from stoker.facts.intervals import ANY, ENOUGH_SOURCES, Interval, bounds_of, middle_of

Group = tuple[str, str, str]
LEVELS: tuple[Callable[[Group], Group], ...] = (
    lambda group: (ANY, ANY, ANY),
    lambda group: (ANY, group[1], ANY),
    lambda group: (group[0], group[1], ANY),
    lambda group: group,
)
"""Classes of a row, from the widest: method, how devices share, class of card."""


class Pair(Protocol):
    """What is needed of a compared row."""

    figure: str
    of: Any

    @property
    def ratio(self) -> float: ...

    @property
    def group(self) -> Group: ...


Bounds = dict[str, dict[str, dict[str, Any]]]
Weighed = list[tuple[float, float]]
"""Logarithms of measured / predicted, each with its weight; the weights sum to one."""


def make(pairs: Iterable[Any]) -> Bounds:
    """Bounds of every class of both figures, from rows as they were predicted without their source."""
    by_figure: dict[str, list[Any]] = defaultdict(list)
    for pair in pairs:
        by_figure[pair.figure].append(pair)
    return {figure: dict(_classes(own)) for figure, own in sorted(by_figure.items())}


def find(bounds: Bounds, figure: str, *group: str) -> Interval:
    """The interval of the narrowest class; one without bounds where the table has none."""
    method, strategy, card = group
    classes = bounds.get(figure, {})
    for level in reversed(LEVELS):
        name = " ".join(level((method, strategy, card)))
        if name in classes:
            return Interval(group=name, **classes[name])
    return Interval(0.0, math.inf, 0, "none")


def without_each(pairs: list[Any]) -> dict[str, Bounds]:
    """For each source the bounds that all others make."""
    sources = sorted({pair.of.source for pair in pairs})
    return {source: make(pair for pair in pairs if pair.of.source != source) for source in sources}


def write(path: Path, bounds: Bounds) -> None:
    about = (
        "Bounds of measured / predicted, per method, strategy and class of card: nine in ten of the weight of sources, "
        "each left out when it was predicted. `borrowed` is the share of that weight which the next wider class lends; "
        "half of it lies above `middle`, which the search asks for the risk of running out of memory."
    )
    made = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    by = "python benchmarks/planner.py --intervals"
    text = json.dumps({"about": about, "made": made, "by": by, "intervals": bounds}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def _classes(pairs: list[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for depth, level in enumerate(LEVELS):
        for group in sorted({level(pair.group) for pair in pairs}):
            kin = [[pair for pair in pairs if wider(pair.group) == wider(group)] for wider in LEVELS[depth::-1]]
            sources = len({pair.of.source for pair in kin[0]})
            weighed = _weighed(kin)
            low, high = bounds_of(weighed)
            middle = {"middle": round(middle_of(weighed), 4)} if pairs[0].figure == "memory" else {}
            yield (
                " ".join(group),
                {
                    "low": math.floor(low * 1e4) / 1e4,
                    "high": math.ceil(high * 1e4) / 1e4,
                    "n": len(kin[0]),
                    "sources": sources,
                    "borrowed": round(max(0.0, 1 - sources / ENOUGH_SOURCES), 3) if depth else 0.0,
                    **middle,
                },
            )


def _weighed(kin: list[list[Any]]) -> Weighed:
    """Errors of nine sources and more: those of the class, then of wider ones, each by its rows in the narrowest.

    Args:
        kin: Rows of the class, of the next wider one, and so on to all rows.
    """
    seen: set[str] = set()
    weighed: Weighed = []
    left = 1.0
    for pairs in kin:
        fresh: dict[str, list[float]] = defaultdict(list)
        for pair in pairs:
            if pair.of.source not in seen:
                fresh[pair.of.source].append(math.log(pair.ratio))
        # The last of the nine share what is left, and sources beyond them too.
        each = min(1 / ENOUGH_SOURCES, left / len(fresh)) if fresh else 0.0
        if len(seen) + len(fresh) >= ENOUGH_SOURCES and fresh:
            each = left / len(fresh)
        weighed += [(error, each / len(errors)) for errors in fresh.values() for error in errors]
        left -= each * len(fresh)
        seen |= set(fresh)
        if left < 1e-9:
            break
    whole = sum(weight for _, weight in weighed)
    return [(error, weight / whole) for error, weight in weighed]
