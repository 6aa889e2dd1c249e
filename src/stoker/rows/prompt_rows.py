"""Rows that ask, for objectives that generate the answers themselves.

A prompt is text (`prompt`, `question`, `query`, `problem`, `instruction` with `input`) or messages (`prompt`,
`messages`, `conversations`; `instruction` after its `history`). Answers at the end of messages are left out; all
columns of a row stay beside the prompt, for whoever scores what is generated.
"""

from dataclasses import dataclass
from typing import Any

from stoker.rows import row_values, turns
from stoker.rows.row_values import BadRow, Row
from stoker.rows.turns import Conversation

_TEXTS = ("prompt", "question", "query", "problem", "instruction")
_MESSAGES = ("prompt", "messages", "conversations")


@dataclass(frozen=True)
class PromptRow:
    """What is asked, as text or as a conversation that ends where the assistant is to speak."""

    asked: str | Conversation
    text: str | None = None
    """What the row says, where that is text: a chat template makes a message of it."""

    @property
    def prompt(self) -> str | list[dict[str, Any]]:
        """What a reward is told of it: text or messages, as the row has it."""
        if self.text is not None:
            return self.text
        if isinstance(self.asked, str):
            return self.asked
        return [{"role": turn.role, "content": turn.content} for turn in self.asked.turns]

    @property
    def system(self) -> str | None:
        """The system prompt beside a text, whatever its column is called."""
        if self.text is None or isinstance(self.asked, str):
            return None
        return next((turn.content for turn in self.asked.turns if turn.role == "system"), None)


def asks(row: Row) -> bool:
    """Whether a row has a key of a prompt."""
    return not row.keys().isdisjoint((*_TEXTS, *_MESSAGES))


def read(row: Row, *, has_template: bool) -> PromptRow:
    """The prompt of a row; with a chat template a text is one message of the user."""
    system, text = row.get("system"), None
    given = next((row[key] for key in _MESSAGES if isinstance(row.get(key), list)), None)
    if given is None:
        key, asked = _text(row)
        earlier = turns.earlier(row) if key == "instruction" else []
        if not has_template and not earlier and not system:
            return PromptRow(asked)
        given, text = [*earlier, {"role": "user", "content": asked}], None if earlier else asked
    if not has_template:
        raise BadRow("row.needs_template")
    return PromptRow(turns.prompt(given, row.get("tools"), system), text)


def _text(row: Row) -> tuple[str, str]:
    """The key of what is asked, and the text."""
    key = next((key for key in _TEXTS if key in row), None)
    if key is None:
        raise BadRow("row.no_prompt")
    text = row_values.text(row, key)
    extra = row_values.checked("input", row.get("input") or "") if key == "instruction" else ""
    return key, f"{text}\n{extra}" if extra.strip() else text
