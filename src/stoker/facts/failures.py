"""How often a run is expected to end without a word, by place; the figures and where they are from are data."""

import functools
import json
from importlib import resources
from typing import Any


def seconds_between(place: str, gpus: int) -> float:
    """Mean time between failures of this many GPUs at a place: a platform's name, its kind, or `local`."""
    known = _known()
    per_hour = 1 / known["places"][place]["hours"] + gpus * known["hardware"]["failures_per_gpu_hour"]
    return float(3600 / per_hour)


def known_place(*names: str) -> str:
    """The first of some names that we have a figure for."""
    return next((name for name in names if name in _known()["places"]), "local")


def restart_seconds() -> float:
    """From the end of one machine to the first new step on the next."""
    return float(_known()["restart"]["seconds"])


@functools.cache
def _known() -> dict[str, Any]:
    text = resources.files("stoker.facts").joinpath("data", "failures.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
