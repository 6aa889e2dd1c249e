"""`Check`: what one check of a proof found. Its figures and its reason name no path, host or user."""

import getpass
import re
import socket
from dataclasses import dataclass
from typing import Any, Literal

from stoker import messages
from stoker.errors import StokerError

Outcome = Literal["passed", "failed", "absent"]

_PATH = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?[\\/][^\s`'\",;:]+")
_SHORTEST_NAME = 3
"""A user's or host's name of fewer letters is part of other words."""


@dataclass(frozen=True)
class Check:
    """One check."""

    name: str
    outcome: Outcome
    figures: dict[str, Any]
    """What was measured: numbers, digests, versions."""
    key: str = ""
    """The sentence that says why it failed or is absent; empty where it passed."""
    fields: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        """What it tries, in the user's language."""
        return messages.text(f"prove.check.{self.name}")

    @property
    def reason(self) -> str:
        """Why it failed or is absent, in the user's language."""
        return messages.text(self.key, **dict(self.fields)) if self.key else ""

    def to_json(self) -> dict[str, Any]:
        """For the report: the reason in English, whoever runs it."""
        reason = messages.in_language("en", self.key, **dict(self.fields)) if self.key else ""
        return {"name": self.name, "outcome": self.outcome, "figures": self.figures, "reason": reason}


def passed(name: str, **figures: Any) -> Check:
    """It holds here."""
    return Check(name, "passed", figures)


def failed(name: str, key: str, figures: dict[str, Any] | None = None, /, **fields: object) -> Check:
    """It does not hold here."""
    return Check(name, "failed", figures or {}, key, _anonymous(fields))


def absent(name: str, key: str, figures: dict[str, Any] | None = None, /, **fields: object) -> Check:
    """It cannot be tried here."""
    return Check(name, "absent", figures or {}, key, _anonymous(fields))


def broken(name: str, error: Exception) -> Check:
    """The check itself ended with an error, which is its result."""
    if isinstance(error, StokerError):
        return failed(name, "prove.reason.error", code=error.code, what=error.what)
    return failed(name, "prove.reason.error", code=type(error).__name__, what=error)


def anonymous(text: str) -> str:
    """A text without paths and without the names of this machine and its user."""
    hidden = _PATH.sub("…", text)
    for name in (socket.gethostname(), _user()):
        if len(name) >= _SHORTEST_NAME:
            hidden = re.sub(rf"\b{re.escape(name)}\b", "…", hidden)
    return hidden


def _anonymous(fields: dict[str, object]) -> tuple[tuple[str, str], ...]:
    return tuple((name, anonymous(str(value))) for name, value in fields.items())


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return ""
