"""Platforms people rent or borrow from: how to recognise one, what survives there, what stops the meter.

Nothing here was tried on a live platform (see `confidence`): callers probe, they do not assume.
"""

import fnmatch
import functools
import itertools
import json
import socket
from collections.abc import Callable, Container, Mapping
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import Field

from stoker import env
from stoker.facts.fact import Fact

Confidence = Literal["P", "S", "G"]


class Detection(Fact):
    """Signs of a platform; one is enough."""

    env: tuple[str, ...]
    """Environment variables."""
    paths: tuple[str, ...]
    """Files and folders."""
    hostname: str | None = None
    """Pattern of the host's name."""
    commands: tuple[str, ...] = ()
    """Programs; the weakest of signs."""
    env_in_login_shell_only: bool = False
    """Whether a command over SSH misses the variables."""
    confidence: Confidence = "P"


class Storage(Fact):
    """A place on disk, and what becomes of it."""

    path: str
    size_gb: float | None = None
    survives_stop: bool
    survives_release: bool
    keeps_hours: float | None = None
    """Hours it is kept after a stop, where it is not lost at once."""
    slow: bool = False
    """On a network: good for copies, not to train on."""
    confidence: Confidence


class Verb(Fact):
    """A command on the machine itself. A word `$NAME` is a variable of the machine."""

    words: tuple[str, ...]
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables the command reads, by those the machine has; a secret comes this way, never as a word."""

    @property
    def variables(self) -> tuple[str, ...]:
        """What must be set there: in a login shell, or in the environment of process 1."""
        given = (*self.words, *self.environment.values())
        return tuple(dict.fromkeys(word[1:] for word in given if word.startswith("$")))

    def expanded(self, environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]] | None:
        """The command and its variables; None if a required variable is missing on the machine."""
        if any(not environment.get(name) for name in self.variables):
            return None
        words = [environment[word[1:]] if word.startswith("$") else word for word in self.words]
        given = self.environment.items()
        return words, {name: environment[value[1:]] if value.startswith("$") else value for name, value in given}


class Meter(Fact):
    """What ends billing."""

    stops_on: Literal["stop", "release"]
    """`stop` can be undone, `release` cannot. What a platform bills on after a stop, it bills until the release."""
    reversible: Verb | None = None
    """Switches the machine off, and it can be switched on again; None where there is no such command, or none known."""
    irreversible: Verb | None = None
    """Gives the machine back, with what is on it."""
    stopped_bills: bool = False
    """Whether a machine that is switched off still costs: its disk, as a rule."""
    confidence: Confidence


class PlatformLimits(Fact):
    """Clocks that end a session or delete data."""

    session_hours: float | None = None
    counted_hours: float | None = None
    """Hours of a session that a plan counts on, where sources disagree about `session_hours`."""
    idle_minutes: float | None = None
    weekly_gpu_hours: float | None = None
    release_after_stopped_days: float | None = None
    spot_notice_seconds: float | None = None
    """Between the notice and the kill."""


class Lent(Fact):
    """A card that a platform lends without a price per hour."""

    card: str
    """Its name in the catalogue."""
    count: int
    """How many of them a machine has."""
    free: bool
    """Whether it costs nothing."""
    confidence: Confidence


class TensorBoard(Fact):
    """The platform's own TensorBoard."""

    port: int
    folder: str


class Platform(Fact):
    """One platform."""

    name: str
    title: str
    kind: Literal["ssh", "notebook", "queue"]
    detect: Detection
    storage: tuple[Storage, ...]
    meter: Meter
    limits: PlatformLimits
    cards: tuple[Lent, ...] = ()
    """Cards that no table of prices has; those it has are found by the platform's name as a cloud."""
    tensorboard: TensorBoard | None = None
    runs_without_card: bool = False
    """Whether a machine can be switched on for less without its cards."""
    instance: str = ""
    """The variable that holds the platform's own name of the machine; no secret."""
    pythons: tuple[str, ...] = ()
    """Where its images keep Python, beyond the usual places."""
    no_files: tuple[str, ...] = ()
    """Addresses of its that give a shell and take no files."""
    traps: tuple[str, ...] = ()
    """What has cost others data or money there: keys of the message catalogue (`trap.NAME`)."""
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


def short_name(word: str) -> str:
    """The name of the platform that is called so, such as `matpool` for `矩池云`; any other word in small letters."""
    asked = word.lower()
    return next((one.name for one in platforms() if asked in one.title.lower().split()), asked)


def find(name: str) -> Platform | None:
    """The platform of this name; None for a machine of one's own."""
    return next((platform for platform in platforms() if platform.name == name), None)


def detect(
    environment: Container[str],
    hostname: str,
    exists: Callable[[str], bool],
    has_command: Callable[[str], bool] = lambda _: False,
) -> Platform | None:
    """The platform whose signs are here; variables go first, a folder may be anyone's."""
    by_variable = (p for p in platforms() if any(name in environment for name in p.detect.env))
    by_host = (p for p in platforms() if p.detect.hostname and fnmatch.fnmatch(hostname, p.detect.hostname))
    by_path = (p for p in platforms() if any(exists(path) for path in p.detect.paths))
    by_command = (p for p in platforms() if any(has_command(name) for name in p.detect.commands))
    return next(itertools.chain(by_variable, by_host, by_path, by_command), None)


def environment() -> dict[str, str]:
    """This process' environment, over the one of the container's first process where that may be read."""
    try:
        raw = Path("/proc/1/environ").read_bytes().decode("utf-8", "replace")
    except OSError:
        raw = ""
    first = dict(pair.split("=", 1) for pair in raw.split("\0") if "=" in pair)
    return {**first, **env.child_environment({})}


def here() -> Platform | None:
    """The platform this process is on; a shell over SSH may miss the variables its machine was started with."""
    return detect(environment(), socket.gethostname(), lambda path: Path(path).exists())
