"""What a reward is asked about, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stoker import env, messages
from stoker.rewards.worker_main import LARGEST


@dataclass(frozen=True)
class Sample:
    """One completion with what it answers."""

    prompt: str | list[dict[str, Any]]
    """Text, or the messages of a conversation."""
    completion: str
    row: dict[str, Any]
    """All columns of the row that the prompt is from."""
    completion_ids: list[int] | None = None
    """The completion's tokens, for functions that ask for them."""


@dataclass(frozen=True)
class Outcome:
    """What one reward says about one sample."""

    value: float | None = None
    """None where the reward does not apply to it, or failed."""
    error: str | None = None
    """Why it failed, in words."""

    @classmethod
    def failed(cls, key: str, **fields: Any) -> Outcome:
        """One that failed; `key` names the sentence."""
        return cls(error=env.masked(messages.text(f"reward.problem.{key}", **fields)))

    @classmethod
    def of(cls, sent: dict[str, Any]) -> Outcome:
        """As the worker sent it."""
        if "problem" in sent:
            fields = dict(sent["problem"])
            return cls.failed(str(fields.pop("key")), **fields)
        value = sent["value"]
        if value is None:
            return cls()
        if not abs(float(value)) <= LARGEST:
            raise ValueError(value)
        return cls(float(value))
