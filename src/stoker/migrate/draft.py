"""A run file in the making: what it says so far, and what became of every key of the other trainer's file.

Knows neither LLaMA-Factory nor axolotl; their modules read by `Draft`'s methods, and a key is accounted for once.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from stoker.config import native
from stoker.config.reader import Document, KeyPath, dotted_path, scalar
from stoker.errors import StokerError, closest

Outcome = Literal["carried", "equal", "decided", "own", "left", "unknown"]
"""Carried over; equal to Stoker's default; decided by the plan; done by Stoker in its own way, without an effect on
what is trained; not carried over, which changes or may change the training; no key that is known."""

LOST: tuple[Outcome, ...] = ("left", "unknown")
"""Outcomes that change or may change the training."""
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")


@dataclass(frozen=True)
class KeyOutcome:
    """What became of one of their keys."""

    key: str
    line: int
    outcome: Outcome
    reason: str
    """A key of the catalogue."""
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Written:
    """A value of the run file, and where it is from."""

    value: Any
    source: str
    """A key of the catalogue."""
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PassedOn:
    """An option that the engine has under this name; with one of the values `off` it is as if it were not there."""

    block: str
    name: str
    off: tuple[Any, ...] = (None, False)


@dataclass(frozen=True)
class Decided:
    """Decided by the plan for the machine; `where` may fix it."""

    owner: str


@dataclass(frozen=True)
class Own:
    """Stoker does it in its own way, without an effect on what is trained."""

    reason: str = "migrate.own.files"


@dataclass(frozen=True)
class Left:
    """Not carried over; with one of the values `off` it asks for nothing."""

    reason: str = "migrate.left.absent"
    off: tuple[Any, ...] = (None, False)


Rule = PassedOn | Decided | Own | Left


class Draft:
    """Their file, and the run file that is made of it."""

    def __init__(self, theirs: Document, dialect: str, folders: tuple[Path, ...], target: Path, devices: int) -> None:
        self.theirs = theirs
        self.dialect = dialect
        self.folders = folders
        """Where a path of theirs may start: they mean the folder that training was started in."""
        self.target = target
        """The folder of the run file."""
        self.devices = devices
        self.written: dict[str, Written] = {}
        self.findings: list[KeyOutcome] = []
        self._seen: set[KeyPath] = set()

    # ---- reading

    def has(self, key: str) -> bool:
        """Whether their file sets a key to something."""
        return self.theirs.values.get(key) is not None

    def value(self, key: str, default: Any = None) -> Any:
        """The value of a key, or their default."""
        return self.theirs.values[key] if self.has(key) else default

    def text(self, key: str, default: str = "") -> str:
        """A value as text; `no` without quotes is false for the YAML 1.1 that they read, and `no` again here."""
        value = self.value(key, default)
        return "no" if value is False else str(value)

    def truth(self, key: str, *, default: bool = False) -> bool:
        """A value that is true or false, as YAML 1.1 writes it too."""
        value = self.value(key, default)
        word = str(value).lower()
        if isinstance(value, bool) or word in (*_TRUE, *_FALSE):
            return word in _TRUE
        raise self.unreadable(key)

    def number(self, key: str, default: float) -> float:
        """A finite number; text that is one counts."""
        value = self.value(key, default)
        value = scalar(value.strip()) if isinstance(value, str) else value
        is_endless = isinstance(value, float) and not math.isfinite(value)
        if is_endless or isinstance(value, bool) or not isinstance(value, int | float):
            raise self.unreadable(key)
        return value

    def whole(self, key: str, default: int) -> int:
        """A whole number; `3.0` is one."""
        value = self.number(key, default)
        if value != int(value):
            raise self.unreadable(key)
        return int(value)

    def names(self, key: str) -> list[str]:
        """A list, or names with commas between them."""
        value = self.value(key, [])
        given = value if isinstance(value, list) else str(value).split(",")
        return [str(one).strip() for one in given if str(one).strip()]

    def unreadable(self, key: str) -> StokerError:
        """The error of a value that their trainer would not read either."""
        return StokerError("STK184", self.theirs.where((key,)), key=key, value=str(self.value(key))[:80])

    # ---- writing

    def write(self, ours: str, value: Any, source: str = "migrate.from.none", **fields: Any) -> None:
        """Put a value into the run file."""
        self.written[ours] = Written(value, source, fields)

    def carry(self, key: str, ours: str, value: Any) -> None:
        """Carry a key over; one that they leave out has their default, which the run file then states."""
        if not self.has(key):
            self.write(ours, value, "migrate.from.default", key=key)
            return
        self.write(ours, value, "migrate.from.key", key=key, line=self._line((key,)))
        self._found((key,), "carried", "migrate.carried", ours=ours)

    def equal(self, key: str, ours: str = "") -> None:
        """Their value is what Stoker does anyway."""
        self._found((key,), "equal", "migrate.equal.key" if ours else "migrate.equal", ours=ours)

    def left(self, key: str | KeyPath, reason: str = "migrate.left.absent", **fields: Any) -> None:
        """Not carried over, with the reason."""
        self._found(key if isinstance(key, tuple) else (key,), "left", reason, **fields)

    def remark(self, key: str | KeyPath, reason: str, **fields: Any) -> None:
        """A difference in the training beside what became of the key itself; the key may be absent."""
        path = key if isinstance(key, tuple) else (key,)
        finding = KeyOutcome(dotted_path(path), self.theirs.lines.get(path, 0), "left", reason, fields)
        if finding not in self.findings:
            self.findings.append(finding)

    def own(self, key: str | KeyPath, reason: str = "migrate.own.files", **fields: Any) -> None:
        """Done in Stoker's own way, without an effect on what is trained."""
        self._found(key if isinstance(key, tuple) else (key,), "own", reason, **fields)

    def decided(self, key: str, owner: str) -> None:
        """Decided by the plan for the machine."""
        reason = "migrate.decided.plan" if owner == native.PLAN else "migrate.decided"
        self._found((key,), "decided", reason, owner=owner)

    def carried(self, key: str | KeyPath, ours: str) -> None:
        """Already written, together with another key."""
        self._found(key if isinstance(key, tuple) else (key,), "carried", "migrate.carried", ours=ours)

    def pass_on(self, key: str, block: str, name: str) -> None:
        """Carry an option over to the engine under its own name."""
        self.carry(key, f"native.{block}.{name}", self.value(key))

    # ---- whole tables

    def apply(self, rules: Mapping[str, Rule]) -> None:
        """Account for every key of a table that their file has and that nobody looked at."""
        for key, rule in rules.items():
            if key in self.theirs.values and (key,) not in self._seen:
                self._apply(key, rule)

    def _apply(self, key: str, rule: Rule) -> None:
        value = self.theirs.values[key]
        if isinstance(rule, PassedOn | Left) and _is_off(value, rule.off):
            self.equal(key)
        elif isinstance(rule, PassedOn):
            self.pass_on(key, rule.block, rule.name)
        elif isinstance(rule, Left):
            self.left(key, rule.reason)
        elif isinstance(rule, Decided):
            self.decided(key, rule.owner)
        else:
            self.own(key, rule.reason)

    def finish(self, known: Collection[str], *, trainer_options: bool) -> None:
        """Name what is left: options of transformers where theirs are meant too, then keys that nobody knows.

        Args:
            known: Every key that the dialect's module knows, for the nearest name.
            trainer_options: Whether their file takes any option of `TrainingArguments`.
        """
        options = native.known_options()["trainer"] if trainer_options else []
        owned = native.OWNED["trainer"]
        for key in self.theirs.values:
            if (key,) in self._seen:
                continue
            if key in known and not self.has(key):
                self.own(key, "migrate.own.no_effect")
            elif key not in options:
                self._unknown((key,), {*known, *options})
            elif owned.get(key) == native.PLAN or owned.get(key, "").startswith("where."):
                self.decided(key, owned[key])
            elif not self.has(key) or (key in owned and self.theirs.values[key] is False):
                self.equal(key)
            elif key not in owned:
                self.pass_on(key, "trainer", key)
            else:
                self.left(key, "migrate.left.word", owner=owned[key])

    def unknown_inside(self, path: KeyPath, known: Collection[str]) -> None:
        """Name the keys of a mapping inside their file that nobody looked at."""
        inside: Any = self.theirs.values
        for part in path:
            inside = inside[part]
        for key in inside:
            if (*path, key) not in self._seen:
                self._unknown((*path, key), known)

    def _unknown(self, path: KeyPath, known: Collection[str]) -> None:
        nearest = closest(str(path[-1]), sorted(known)).rstrip(";； ")
        self._found(path, "unknown", "migrate.unknown", dialect=self.dialect, nearest=nearest)

    def _found(self, path: KeyPath, outcome: Outcome, reason: str, **fields: Any) -> None:
        if path in self._seen or path not in self.theirs.lines:
            return
        self._seen.add(path)
        self.findings.append(KeyOutcome(dotted_path(path), self._line(path), outcome, reason, fields))

    def _line(self, path: KeyPath) -> int:
        return self.theirs.lines[path]


def texts(value: Any, where: str, key: str) -> dict[str, str]:
    """A mapping of texts; empty where there is none, an error where it is something else."""
    if not value and value is not False and value != 0:
        return {}
    if not isinstance(value, dict) or not all(one is None or isinstance(one, str) for one in value.values()):
        raise StokerError("STK184", where, key=key, value=str(value)[:80])
    return {name: one for name, one in value.items() if one}


def beside(findings: Sequence[KeyOutcome]) -> list[KeyOutcome]:
    """What was not carried over beside a key that was, or is not in their file."""
    settled = {one.key for one in findings if one.outcome not in LOST}
    return [one for one in findings if one.outcome in LOST and (not one.line or one.key in settled)]


def percent(share: float) -> str:
    """0.03 as `3%`, exactly."""
    return f"{(Decimal(str(share)) * 100).normalize():f}%"


def _is_off(value: Any, off: tuple[Any, ...]) -> bool:
    """Whether a value is one of these; 0 is not False here."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in off)
