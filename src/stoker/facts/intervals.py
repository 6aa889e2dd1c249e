"""How far measurements lay from predictions: intervals per class of runs, made by `benchmarks/planner.py --intervals`.

An interval comes from sources that were left out when it was made (ADR 0034). Knows no run and no prediction.
"""

import functools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from stoker.facts.cards import Card

Figure = Literal["memory", "speed"]
CardClass = Literal["datacenter", "workstation", "consumer", "older", "apple"]
ANY = "any"
ENOUGH_SOURCES = 9
"""Of fewer, one that was not seen lies above all of them more often than one time in ten."""
_TAIL = 0.05
_TWENTIETH = 1.645
"""Standard deviations above which a normal distribution has 5 %."""
_AMPERE = 8.0

_ASSUMED = {"memory": (0.7, 1.4), "speed": (0.5, 2.0)}


@dataclass(frozen=True)
class Interval:
    """Bounds of measured / predicted."""

    low: float
    high: float
    n: int
    """Measurements in the class; 0 where the bounds are assumed."""
    group: str
    """The class the bounds come from: method, strategy and class of card, `any` where it is a wider one."""
    sources: int = 0
    """Publishers of those measurements; none where they are points of proven machines."""
    borrowed: float = 0.0
    """Share of the weight that a wider class lends, for want of sources."""
    middle: float = 1.0
    """Half of the weight lies above; of memory only."""

    def above(self, ratio: float) -> float:
        """Chance of more than `ratio`: log-normal from the middle up, a twentieth above the upper bound."""
        side, far = (math.log(each / self.middle) for each in (self.high, ratio))
        return 0.5 * math.erfc(_TWENTIETH * far / side / math.sqrt(2)) if side > 0 else float(ratio < self.high)


@functools.cache
def interval(figure: Figure, method: str, sharing: str, card_class: str) -> Interval:
    """The interval of the narrowest class; assumed where nobody measured such cards."""
    classes = _stored()[figure]
    if not any(name.endswith(f" {card_class}") for name in classes):
        return assumed(figure)
    wider = [(method, sharing, card_class), (method, sharing, ANY), (ANY, sharing, ANY), (ANY, ANY, ANY)]
    name = next(name for name in map(" ".join, wider) if name in classes)
    return Interval(group=name, **classes[name])


def narrowed(wider: Interval, machines: Sequence[Sequence[float]], group: str) -> Interval:
    """An interval from measured / predicted of one kind of machine, by the points of each that was proven.

    A machine is a source: each takes the bounds a ninth of the way from the wider class to what was measured.
    """
    weighed = [(math.log(ratio), 1 / len(machines) / len(points)) for points in machines for ratio in points]
    if not weighed:
        return wider
    lent = max(0.0, 1 - len(machines) / ENOUGH_SOURCES)
    (least, most), half = bounds_of(weighed), middle_of(weighed)
    ends = (wider.low, least), (wider.high, most), (wider.middle, half)
    low, high, middle = (far**lent * near ** (1 - lent) for far, near in ends)
    return Interval(low, high, len(weighed), group, borrowed=round(lent, 3), middle=middle)


def middle_of(weighed: list[tuple[float, float]]) -> float:
    """The ratio that half of the weight of these logarithms lies above."""
    return math.exp(_end(sorted(weighed), 0.5))


def bounds_of(weighed: list[tuple[float, float]]) -> tuple[float, float]:
    """Ratios that leave at most 5 % of the weight of these logarithms on either side."""
    ranked = sorted(weighed)
    return math.exp(_end(ranked)), math.exp(_end(ranked[::-1]))


def _end(ranked: list[tuple[float, float]], left: float = _TAIL) -> float:
    passed = 0.0
    for error, weight in ranked:
        passed += weight
        if passed > left + 1e-9:
            return error
    return ranked[-1][0]


def assumed(figure: Figure) -> Interval:
    """For devices without measurements: a guess, marked as one."""
    low, high = _ASSUMED[figure]
    return Interval(low=low, high=high, n=0, group="not measured")


def together(*bounds: tuple[float, float]) -> tuple[float, float]:
    """Bounds of a product of figures that err independently: their logarithms add like the sides of a right angle."""
    low = math.sqrt(math.fsum(math.log(min(1.0, one[0])) ** 2 for one in bounds))
    high = math.sqrt(math.fsum(math.log(max(1.0, one[1])) ** 2 for one in bounds))
    return math.exp(-low), math.exp(high)


def card_class(card: Card) -> CardClass:
    """What kind of card: cards of one kind err alike, for they share memory, links and software.

    `older` ones have neither bf16 nor flash attention.
    """
    if card.compute_capability is None:
        return "apple"
    if card.compute_capability < _AMPERE:
        return "older"
    if re.match(r"RTX\d{4}(?!-Ada)|vGPU", card.name):
        return "consumer"
    return "datacenter" if re.match(r"[AHB]\d{3}|H20", card.name) else "workstation"


@functools.cache
def _stored() -> dict[str, dict[str, dict[str, Any]]]:
    text = resources.files("stoker.facts").joinpath("data/intervals.json").read_text(encoding="utf-8")
    return dict(json.loads(text)["intervals"])
