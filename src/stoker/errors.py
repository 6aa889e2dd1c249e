"""Every error a person can meet: a code, where it happened, and fields for its sentence.

The sentences (what happened, what to do) live in `stoker.messages` under the code and `<code>.hint`.
`StokerError` is for what the user can fix (exit 1); anything else that escapes is a surprise (exit 2).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from stoker import env, messages

EXIT_DONE = 0
EXIT_USER = 1
EXIT_SURPRISE = 2
EXIT_STOPPED = 75
"""Stopped with a committed checkpoint: run the same command to resume."""


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
    def errors(self) -> list[StokerError]:
        """All problems that were found: this one."""
        return [self]

    def __str__(self) -> str:
        place = f"{env.masked(self.where)}: " if self.where else ""
        return f"{place}{self.what} [{self.code}]; {self.hint}"

    def as_dict(self) -> dict[str, Any]:
        """Everything about it, the sentences in the user's language: code, message, where, hint, fields."""
        return {**self.to_json(), "message": self.what, "hint": self.hint}

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


def closest(name: str, known: Sequence[str], count: int = 3) -> str:
    """The beginning of a hint: the names that are spelt alike, best first; empty where none is."""
    near = difflib.get_close_matches(name[:200], known, n=count)
    return messages.text("nearest.keys", keys=[f"`{one}`" for one in near]) if near else ""


def _plain(value: Any) -> Any:
    """A field as JSON has it: numbers, lists, and text without secrets."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, int | float | bool) else env.masked(str(value))
