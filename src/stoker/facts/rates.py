"""What cards reach of their figures in a training step: constants fitted to published measurements.

Fitted by `benchmarks/fit_speed.py`; knows no card and no model (`cards.py`, `shapes.py`).
"""

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Constants of the speed model. Shares are of a card's stated figure, times are seconds."""

    peak: dict[str, float]
    """Share of the peak that large matrix products reach, by class of card.

    `cut` is of cards whose tensor peak was cut down, which power does not limit. Workstation cards do not reach their
    peak for power; their share is of what their generation's cores could do, four times the fp32 figure.
    """
    flash: float
    """Speed of flash attention 2, as a share of what products reach."""
    efficient: float
    """The same for older fused kernels (flash attention 1, memory-efficient attention) and for eager attention."""
    older: float
    """What is left of that on Hopper and later, whose full rate kernels written for Ampere cannot use."""
    experts: float
    """Speed of experts' products as a share of other products': devices wait for the busiest expert."""
    bandwidth: float
    """Share of the memory bandwidth that streaming kernels reach."""
    kernel: float
    """Least time of a kernel on the card."""
    launch: float
    """Time of the host to launch one kernel of an operation."""
    module: float
    """Time of the host for one hook that gathers or frees a shared-out part."""
    link: float
    """Share of a link's one-way figure that a collective reaches, within a node and between nodes."""
    bounce: float
    """The same where cards have no direct access to each other and data goes through main memory."""
    processor: float
    """Bytes per second that a processor's optimizer streams, for each device."""
    hidden: float
    """Share of communication beside computation that costs nothing; none where there is no direct access."""


@functools.cache
def rates() -> Rates:
    """The constants shipped here."""
    return Rates(**_stored()["constants"])


@functools.cache
def guessed() -> frozenset[str]:
    """Classes of card without a measured share of the peak."""
    return frozenset(name.removeprefix("peak ") for name in _stored()["about"]["defaults"])


@functools.cache
def _stored() -> dict[str, Any]:
    text = resources.files("stoker.facts").joinpath("data", "speed.json").read_text(encoding="utf-8")
    return dict(json.loads(text))
