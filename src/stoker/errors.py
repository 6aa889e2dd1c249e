"""Every error a person can meet: a code, where it happened, and fields for its sentence.

The sentences (what happened, what to do) live in `stoker.messages` under the code and `<code>.hint`.
`StokerError` is for what the user can fix (exit 1); anything else that escapes is a surprise (exit 2).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stoker import env, messages

EXIT_DONE = 0
EXIT_USER = 1
EXIT_SURPRISE = 2
EXIT_STOPPED = 75
"""Stopped with a committed checkpoint: run the same command to resume."""

_PLACE = re.compile(r"(?P<file>[^:].*?):(?P<line>\d+)(?:: (?P<key>.+))?")
_FILE = re.compile(r"(?P<file>.+\.(?:ya?ml|jsonl?|csv|tsv|txt|parquet|gz|zst))")
_KEY = re.compile(r"(?P<key>--set [^=:]+|--[a-z-]+|[a-z_][\w.\[\]]*).*")
"""How `where` is written: a line of a file, a whole file, a flag or a key."""

_CHOICES = ("nearest", "choices", "known", "there", "methods", "example")
"""Fields that list what may be given instead, where they are lists."""


class StokerError(Exception):
    """Something the user can fix, named by code.

    Args:
        code: `STK` and three digits; its sentences are in the message catalogue.
        where: `file:line: key` or `file:row`, when there is such a place.
        fields: what the sentences need.
    """

    code: str
    where: str
    fields: dict[str, Any]
    exit_code: int = EXIT_USER
    """What the command that ends with it exits with."""
    result: Any = None
    """What the command found out all the same, for `--json`."""

    def __init__(self, code: str, where: str = "", **fields: Any) -> None:
        super().__init__(code, where)
        self.code = code
        self.where = where
        self.fields = fields

    @property
    def what(self) -> str:
        """What happened, in the user's language."""
        return env.masked(messages.text(self.code, **self.fields))

    @property
    def hint(self) -> str:
        """What to do about it, in the user's language."""
        return env.masked(messages.text(f"{self.code}.hint", **self.fields))

    @property
    def choices(self) -> list[str]:
        """What may be given instead, the closest first; empty where that is not known."""
        found = [self.fields["plain"]] if "plain" in self.fields else []
        for name in _CHOICES:
            given = self.fields.get(name)
            names = given.names if isinstance(given, ClosestNames) else given
            found += names if isinstance(names, list | tuple) else []
        return [env.masked(item) for item in dict.fromkeys(_bare(str(one)) for one in found)]

    @property
    def errors(self) -> list[StokerError]:
        """All problems that were found: this one."""
        return [self]

    def __str__(self) -> str:
        place = f"{env.masked(self.where)}: " if self.where else ""
        return f"{place}{self.what} [{self.code}]; {self.hint}"

    def as_dict(self) -> dict[str, Any]:
        """Everything about it for a program: the sentences in the user's language, its place taken apart, choices."""
        place = {"file": None, "line": None, "key": None, **_place(env.masked(self.where))}
        return {**self.to_json(), "message": self.what, "hint": self.hint, **place, "choices": self.choices}

    def to_json(self) -> dict[str, Any]:
        """For `events.jsonl` and `--json`; `from_json` is its inverse."""
        fields = {key: _plain(value) for key, value in self.fields.items()}
        return {"code": self.code, "where": env.masked(self.where), "fields": fields}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StokerError:
        """Rebuild an error that another process wrote; one without a sentence in this catalogue is shown as it is."""
        try:
            error = cls(data["code"], data["where"], **data["fields"])
            messages.text(error.code, **error.fields), messages.text(f"{error.code}.hint", **error.fields)
        except (LookupError, TypeError, ValueError, AttributeError):
            return cls("STK900", reason=data)
        return error


class StokerErrors(StokerError):
    """Several problems found at once: all of a run file's, all bad rows of a data file. By itself it is the first."""

    def __init__(self, errors: Iterable[StokerError]) -> None:
        self._errors = list(errors)
        first = self._errors[0]
        super().__init__(first.code, first.where, **first.fields)

    @property
    def errors(self) -> list[StokerError]:
        """All of them."""
        return self._errors

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)

    def as_dict(self) -> dict[str, Any]:
        """The first one, and each of them under `errors`."""
        return {**super().as_dict(), "errors": [error.as_dict() for error in self.errors]}


class ClosestNames(str):
    """The beginning of a hint: names that are close to what was given, best first; empty where none is."""

    names: list[str]

    def __new__(cls, names: Sequence[str], mark: str = "`") -> ClosestNames:
        """The sentence; a program reads `names`."""
        quoted = [f"{mark}{one}{mark}" for one in names]
        said = super().__new__(cls, messages.text("nearest.keys", keys=quoted) if names else "")
        said.names = list(names)
        return said


def checked_name(path: Path) -> Path:
    """A path that files of ours can name: one that is not UTF-8 is refused."""
    if is_utf8(str(path)):
        return path
    first = next(one for one in (*reversed(path.parents), path) if not is_utf8(str(one)))
    raise StokerError("STK365", path=_written(str(first)), folder=first.parent)


def is_utf8(name: str) -> bool:
    """Whether a file's name can be written."""
    return name == _written(name)


def closest(name: str, known: Sequence[str], count: int = 3, first: Sequence[str] = ()) -> ClosestNames:
    """The names that are spelt alike, after those that are known to be meant more likely."""
    alike = dict.fromkeys([*first, *difflib.get_close_matches(name[:200], known, n=count)])
    return ClosestNames([_written(one) for one in list(alike)[:count]])


def _written(name: str) -> str:
    """A file's name as UTF-8 can say it."""
    return name.encode("utf-8", "backslashreplace").decode()


def _place(where: str) -> dict[str, Any]:
    """`run.yaml:3: train.epochs`, `train.jsonl:12`, `--card` or `budget.money`, taken apart as far as it goes."""
    if found := _PLACE.fullmatch(where):
        return {**found.groupdict(), "line": int(found["line"])}
    found = _FILE.fullmatch(where) or _KEY.fullmatch(where)
    return {name: text.removeprefix("--set ") for name, text in found.groupdict().items()} if found else {}


def _bare(name: str) -> str:
    """A name without the marks it has in a sentence, and without what is said about it after them."""
    found = re.fullmatch(r"`([^`]+)`.*", name)
    return found[1] if found else name


def _plain(value: Any) -> Any:
    """A field as JSON has it: numbers, lists, and text without secrets."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, int | float | bool) else env.masked(str(value))
