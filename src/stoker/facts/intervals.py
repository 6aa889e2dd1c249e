"""How far measurements lay from predictions: intervals per kind of run, made by `benchmarks/planner.py --intervals`.

An interval holds nine of ten published measurements of its group. Knows no run and no prediction.
"""

import functools
import json
import math
import re
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from stoker.facts.cards import Card

Figure = Literal["memory", "speed"]
CardClass = Literal["datacenter", "workstation", "consumer", "older", "apple"]
ANY = "any"
_AMPERE = 8.0

_STRATEGIES = {
    "none": "single",
    "ddp": "replicated",
    "fsdp": "sharded",
    "fsdp2": "sharded",
    "zero1": "sharded",
    "zero2": "sharded",
    "zero3": "sharded",
}
"""Strategies of a plan as the classes that measurements are grouped by."""
_ASSUMED = {"memory": (0.7, 1.4), "speed": (0.5, 2.0)}
_ENOUGH = 10
"""Fewer measurements do not make an interval; the wider group's holds."""


@dataclass(frozen=True)
class Interval:
    """Bounds of measured / predicted."""

    low: float
    high: float
    n: int
    """Measurements in the group; 0 where the bounds are assumed."""
    group: str
    """The group the bounds come from: method, strategy and class of card, `any` where it is a wider one."""


def interval(figure: Figure, method: str, strategy: str, card_class: str) -> Interval:
    """The interval of the narrowest group with enough measurements."""
    sharing = _STRATEGIES.get(strategy, strategy)
    groups = _stored()[figure]
    wider = [(method, sharing, card_class), (method, sharing, ANY), (ANY, sharing, ANY), (ANY, ANY, ANY)]
    names = [" ".join(words) for words in wider]
    name = next(name for name in names if name in groups and not 0 < groups[name]["n"] < _ENOUGH)
    found = groups[name]
    return Interval(low=found["low"], high=found["high"], n=found["n"], group=name)


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
