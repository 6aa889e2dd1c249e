"""How a row is laid out: detection by its keys, and from a row to a document. No registration, no names of datasets.

A bad row raises `BadRow` with a reason of the catalogue. Knows nothing of tokenizers beyond whether there is a chat
template: with one, alpaca and prompt/completion rows are conversations of one turn; without, plain text.
"""

from dataclasses import dataclass, field
from typing import Any

from stoker import messages
from stoker.config import layouts

Row = dict[str, Any]
Message = dict[str, Any]

_ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "tool": "tool",
}
_MESSAGE_EXTRAS = ("tool_calls", "tool_call_id", "name", "reasoning_content")

ALPACA_PLAIN = "### Instruction:\n{instruction}\n\n### Response:\n"
ALPACA_PLAIN_INPUT = "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
"""The prompt of an alpaca row where the tokenizer has no chat template: the layout Alpaca itself was trained with."""


class BadRow(Exception):
    """A row that cannot be used, and why."""

    def __init__(self, reason: str, **fields: Any) -> None:
        super().__init__(reason)
        self.reason = reason
        self.fields = fields

    @property
    def text(self) -> str:
        """The reason in the user's language."""
        return messages.text(self.reason, **self.fields)


@dataclass(frozen=True)
class Text:
    """Running text; all of it is trained."""

    text: str
    opens: bool = True
    """The document starts here."""
    closes: bool = True
    """The document ends here."""


@dataclass(frozen=True)
class Pair:
    """A prompt and what should follow it; the latter is trained."""

    prompt: str
    completion: str


@dataclass(frozen=True)
class Chat:
    """A conversation; what the assistant says is trained."""

    messages: list[Message]
    tools: list[Any] | None = None


Document = Text | Pair | Chat


@dataclass(frozen=True)
class Layout:
    """How the rows of a file are laid out, and why we think so."""

    format: str
    reason: str
    """A key of the catalogue."""
    keys: list[str] = field(default_factory=list)

    @property
    def is_conversation(self) -> bool:
        """Whether such rows need a chat template."""
        return self.format in layouts.CONVERSATIONS


def detect(row: Row) -> Layout | None:
    """The layout a row's keys speak for."""
    for format_, keys in layouts.SIGNS:
        if all(key in row for key in keys):
            return Layout(format_, "detect.keys", list(keys))
    return None


def parse(row: Any, format_: str, *, has_template: bool) -> Document:
    """A row as a document."""
    if not isinstance(row, dict):
        raise BadRow("row.not_object", kind=type(row).__name__)
    if format_ == "text":
        return Text(_text(row, "text"))
    if format_ == "messages":
        return _chat(row, "messages")
    if format_ == "sharegpt":
        return _chat(row, "conversations")
    if format_ == "alpaca":
        return _alpaca(row, has_template=has_template)
    return _prompt_completion(row, has_template=has_template)


# ---- layouts


def _chat(row: Row, key: str) -> Chat:
    turns = _value(row, key, list, "list")
    conversation = [_message(turn) for turn in turns]
    system = row.get("system")
    if system and conversation and conversation[0]["role"] != "system":
        conversation.insert(0, {"role": "system", "content": _checked("system", system)})
    _check_roles(conversation)
    return Chat(conversation, _tools(row))


def _alpaca(row: Row, *, has_template: bool) -> Document:
    instruction, output = _text(row, "instruction"), _text(row, "output")
    extra = _checked("input", row.get("input") or "")
    earlier = row.get("history") or []
    system = _checked("system", row.get("system") or "")
    if not has_template:
        if earlier or system:
            raise BadRow("row.needs_template")
        layout = ALPACA_PLAIN_INPUT if extra.strip() else ALPACA_PLAIN
        return Pair(layout.format(instruction=instruction, input=extra), output)
    conversation = [{"role": "system", "content": system}] if system else []
    for turn in earlier:
        if not isinstance(turn, list | tuple) or len(turn) != 2:
            raise BadRow("row.wrong_type", key="history", expected=messages.text("type.list"))
        conversation += _turn(_checked("history", turn[0]), _checked("history", turn[1]))
    question = f"{instruction}\n{extra}" if extra.strip() else instruction
    return Chat(conversation + _turn(question, output))


def _prompt_completion(row: Row, *, has_template: bool) -> Document:
    prompt_key, completion_key = _pair(row) or layouts.PAIRS[0]
    prompt, completion = _text(row, prompt_key), _text(row, completion_key)
    return Chat(_turn(prompt, completion)) if has_template else Pair(prompt, completion)


def _pair(row: Row) -> tuple[str, str] | None:
    return next((pair for pair in layouts.PAIRS if pair[0] in row and pair[1] in row), None)


def _turn(user: str, assistant: str) -> list[Message]:
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


# ---- messages


def _message(turn: Any) -> Message:
    """A message of either spelling: role/content or from/value."""
    if not isinstance(turn, dict):
        raise BadRow("row.wrong_type", key="messages[]", expected=messages.text("type.mapping"))
    role_key, content_key = ("from", "value") if "from" in turn and "role" not in turn else ("role", "content")
    given = _value(turn, role_key, str, "text")
    role = _ROLES.get(given.lower())
    if role is None:
        raise BadRow("row.unknown_role", role=given)
    extras = {key: turn[key] for key in _MESSAGE_EXTRAS if turn.get(key)}
    content = _content(turn, content_key)
    if not content.strip() and role != "system" and "tool_calls" not in extras:
        raise BadRow("row.empty", key=f"{role}: {content_key}")
    return {"role": role, "content": content, **extras}


def _content(turn: Message, key: str) -> str:
    """A message's text; a list of text parts, as OpenAI writes it, is joined."""
    if turn.get("tool_calls") and turn.get(key) is None:
        return ""
    content = turn.get(key)
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return "".join(_checked(key, part) for part in parts)
    return _checked(key, _value(turn, key, str, "text"))


def _check_roles(conversation: list[Message]) -> None:
    spoken = [message["role"] for message in conversation]
    if not spoken:
        raise BadRow("row.empty", key="messages")
    first = spoken[1:2] if spoken[0] == "system" else spoken[:1]
    if "assistant" not in spoken:
        raise BadRow("row.no_assistant")
    if first != ["user"]:
        raise BadRow("row.first_role", role=first[0])


def _tools(row: Row) -> list[Any] | None:
    tools = row.get("tools")
    if tools and not isinstance(tools, list):
        raise BadRow("row.wrong_type", key="tools", expected=messages.text("type.list"))
    return tools or None


# ---- values


def _value(row: Row, key: str, kind: type, expected: str) -> Any:
    if key not in row:
        raise BadRow("row.missing_key", key=key)
    if not isinstance(row[key], kind):
        raise BadRow("row.wrong_type", key=key, expected=messages.text(f"type.{expected}"))
    return row[key]


def _text(row: Row, key: str) -> str:
    """A text that must be there and say something."""
    text = _checked(key, _value(row, key, str, "text"))
    if not text.strip():
        raise BadRow("row.empty", key=key)
    return text


def _checked(key: str, text: Any) -> str:
    """Text that can be written as UTF-8: JSON can smuggle in half of a surrogate pair."""
    if not isinstance(text, str):
        raise BadRow("row.wrong_type", key=key, expected=messages.text("type.text"))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRow("row.not_unicode", key=key) from None
    return text
