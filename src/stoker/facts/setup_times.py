"""What a rented machine spends besides training steps, and how its hours are billed; each figure with its source."""

import functools
import json
from importlib import resources
from typing import Any, Literal

from stoker.facts.fact import Fact

Rented = Literal["boot", "environment", "download", "start", "load", "save"]
Part = Rented | Literal["prepare", "prepare_start", "pipeline", "pipeline_start", "evaluation", "eval_share"]
SEVERAL_BYTES = 4 << 20
"""Of sources from which on all processors tokenise: for fewer, other processes are not worth their start."""
_SEVERAL_TOKENS = 1_000_000
"""What so much text has, about."""
LOCAL = "local"
"""A machine that is already on, as a provider."""


class Figure(Fact):
    """A figure and where it is from."""

    value: float
    confidence: Literal["P", "M", "S", "G"]
    source: str


class Billing(Fact):
    """In which units a provider bills."""

    unit_seconds: float
    minimum_seconds: float
    confidence: Literal["P", "M", "S", "G"]
    source: str


@functools.cache
def figure(part: Part, *names: str) -> Figure:
    """The figure of the first of some names that has one (a provider, a region), else the default."""
    known = _known()["parts"][part]
    return Figure.model_validate(known[next((name for name in names if name in known), "default")])


def preparing(tokens: int, processors: int, pipeline_steps: int = 0, source_bytes: int = 0) -> float:
    """Seconds of tokenising, and before it of a pipeline over so many bytes."""
    used = processors if tokens >= _SEVERAL_TOKENS else 1
    tokenising = figure("prepare_start").value + tokens / (figure("prepare").value * used)
    if not pipeline_steps:
        return tokenising
    starting = figure("pipeline_start").value * pipeline_steps
    return starting + source_bytes / (figure("pipeline").value * processors) + tokenising


@functools.cache
def billing(provider: str) -> Billing:
    """How a provider bills."""
    known = _known()["billing"]
    return Billing.model_validate(known.get(provider, known["default"]))


@functools.cache
def _known() -> dict[str, Any]:
    text = resources.files("stoker.facts").joinpath("data", "setup.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
