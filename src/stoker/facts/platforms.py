"""Platforms people rent or borrow from: how to tell that we are on one, what survives there, what stops the meter.

Nothing here was tried on a live platform (see `confidence`): callers probe, they do not assume.
"""

import fnmatch
import functools
import itertools
import json
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import PurePosixPath
from typing import Literal

from pydantic import BaseModel, ConfigDict

Confidence = Literal["P", "S", "G"]


class _Fact(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Detection(_Fact):
    """Signs of a platform; one is enough."""

    env: tuple[str, ...]
    """Environment variables."""
    paths: tuple[str, ...]
    """Files and folders."""
    hostname: str | None = None
    """Pattern of the host's name."""
    env_in_login_shell_only: bool = False
    """Whether a command over SSH misses the variables."""
    confidence: Confidence = "P"


class Storage(_Fact):
    """A place on disk, and what becomes of it."""

    path: str
    size_gb: float | None = None
    survives_stop: bool
    survives_release: bool
    keeps_hours: float | None = None
    """Hours it is kept after a stop, where it is not lost at once."""
    confidence: Confidence


class Meter(_Fact):
    """What ends billing."""

    stops_on: Literal["stop", "release"]
    """`stop` can be undone, `release` cannot."""
    from_inside: tuple[str, ...]
    """The command on the box that does it; empty where there is none or it was not verified."""
    confidence: Confidence


class Limits(_Fact):
    """Clocks that end a session or delete data."""

    session_hours: float | None = None
    counted_hours: float | None = None
    """Hours of a session that a plan counts on, where sources disagree about `session_hours`."""
    idle_minutes: float | None = None
    weekly_gpu_hours: float | None = None
    release_after_stopped_days: float | None = None
    spot_notice_seconds: float | None = None
    """Between the notice and the kill."""


class Lent(_Fact):
    """A card that a platform hands out as it is, without an offer of so much an hour."""

    card: str
    """Its name in the catalogue."""
    count: int
    """How many of them a machine has."""
    free: bool
    """Whether it costs nothing."""
    confidence: Confidence


class TensorBoard(_Fact):
    """The platform's own TensorBoard."""

    port: int
    folder: str


class Platform(_Fact):
    """One platform."""

    name: str
    title: str
    kind: Literal["ssh", "notebook", "queue"]
    detect: Detection
    storage: tuple[Storage, ...]
    meter: Meter
    limits: Limits
    cards: tuple[Lent, ...] = ()
    """Cards that no table of prices has; those it has are found by the platform's name as a cloud."""
    tensorboard: TensorBoard | None = None
    mirrors: dict[str, str] = {}
    """Environment variables that lead to mirrors reachable from there."""
    sources: tuple[str, ...]

    def storage_of(self, path: str) -> Storage | None:
        """The storage a path lies on: the longest one that contains it."""
        holding = [store for store in self.storage if PurePosixPath(path).is_relative_to(store.path)]
        return max(holding, key=lambda store: len(store.path), default=None)

    @property
    def session_hours(self) -> float | None:
        """Hours of one session that a plan may count on."""
        return self.limits.counted_hours or self.limits.session_hours


@functools.cache
def platforms() -> tuple[Platform, ...]:
    """All platforms."""
    text = resources.files("stoker.facts").joinpath("data/platforms.json").read_text(encoding="utf-8")
    found = json.loads(text)["platforms"]
    return tuple(Platform.model_validate({"name": name, **facts}) for name, facts in found.items())


def detect(environment: Mapping[str, str], hostname: str, exists: Callable[[str], bool]) -> Platform | None:
    """The platform whose signs are here; variables go first, a folder may be anyone's."""
    by_variable = (p for p in platforms() if any(name in environment for name in p.detect.env))
    by_host = (p for p in platforms() if p.detect.hostname and fnmatch.fnmatch(hostname, p.detect.hostname))
    by_path = (p for p in platforms() if any(exists(path) for path in p.detect.paths))
    return next(itertools.chain(by_variable, by_host, by_path), None)
