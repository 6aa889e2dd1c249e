"""What a check found: a name, how bad it is, and the key of the sentence that says it."""

from dataclasses import dataclass
from typing import Any, Literal

from stoker import messages

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One finding."""

    name: str
    status: Status
    key: str
    """The sentence that says what was found."""
    advice: str | None
    """The sentence that says what to do; None where all is well."""
    fields: dict[str, Any]

    @property
    def what(self) -> str:
        """What was found, in the user's language."""
        return messages.text(self.key, **self.fields)

    @property
    def hint(self) -> str:
        """What to do about it; empty where all is well."""
        return messages.text(self.advice, **self.fields) if self.advice else ""

    def to_json(self) -> dict[str, str]:
        """For `--json`."""
        return {"name": self.name, "status": self.status, "what": self.what, "hint": self.hint}


def ok(name: str, key: str, /, **fields: Any) -> Finding:
    """All is well."""
    return Finding(name, "ok", key, None, fields)


def warn(name: str, key: str, advice: str, /, **fields: Any) -> Finding:
    """It works, with a catch."""
    return Finding(name, "warn", key, advice, fields)


def fail(name: str, key: str, advice: str, /, **fields: Any) -> Finding:
    """It will not work."""
    return Finding(name, "fail", key, advice, fields)
