"""Row formats: detection by keys (`config/layouts.py`), and from a row to a document. No names of datasets.

A bad row raises `BadRow` with a reason of the catalogue. Knows nothing of tokenizers beyond whether there is a chat
template: with one, alpaca and prompt/completion rows are conversations of one turn; without, plain text. A format of
another package (`stoker.formats`) names an object like `PluginFormat`; built-in formats are tried first.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stoker import messages, plugins
from stoker.config import layouts
from stoker.config.layouts import RowFormat
from stoker.plugins import Plugin

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


class PluginFormat(Protocol):
    """What an entry point of `stoker.formats` names; the entry point's name is the format's."""

    keys: Sequence[Sequence[str]]
    """Alternatives: a row that has every key of one of them is recognised."""
    needs_template: bool
    """Whether its rows can be read only with a chat template."""

    def document(self, row: Row, *, has_template: bool) -> Document:
        """A row as `Text`, `Pair` or `Chat`; a ValueError says why the row cannot be used."""


@dataclass(frozen=True)
class Layout:
    """How the rows of a file are laid out, and why we think so."""

    format: str
    reason: str
    """A key of the catalogue."""
    keys: list[str] = field(default_factory=list)
    package: str | None = None
    """Name and version of the package that the format is from, where it is not built in."""

    @property
    def needs_template(self) -> bool:
        """Whether such rows need a chat template."""
        return _row_format(self.format).needs_template


def forced(name: str) -> Layout:
    """The layout that `data.format` names."""
    package = None if name in layouts.BUILT_IN else _plugin(name).source
    return Layout(name, "detect.forced", package=package)


def detect(rows: Sequence[Row]) -> Layout | None:
    """The layout of the first row whose keys are recognised; packages are loaded only where no built-in matches."""
    for row in rows:
        if found := layouts.recognise(row):
            return Layout(found[0].name, "detect.keys", list(found[1]))
    for plugin in plugins.offered(plugins.FORMATS).values():
        for row in rows:
            if keys := _row_format(plugin.name).match(row):
                return Layout(plugin.name, "detect.keys", list(keys), plugin.source)
    return None


def parse(row: Any, format_: str, *, has_template: bool) -> Document:
    """A row as a document."""
    if not isinstance(row, dict):
        raise BadRow("row.not_object", kind=type(row).__name__)
    if format_ in _READERS:
        return _READERS[format_](row, has_template)
    return _plugin_document(row, _plugin(format_), has_template=has_template)


# ---- formats of other packages


@functools.cache
def _plugin(name: str) -> Plugin:
    return plugins.offered(plugins.FORMATS)[name]


@functools.cache
def _loaded(name: str) -> PluginFormat:
    plugin = _plugin(name)
    loaded: PluginFormat = plugin.load()
    missing = [word for word in ("keys", "needs_template", "document") if not hasattr(loaded, word)]
    if missing:
        raise plugin.broken(messages.text("plugin.lacks", missing=", ".join(f"`{word}`" for word in missing)))
    return loaded


def _row_format(name: str) -> RowFormat:
    if name in layouts.BUILT_IN:
        return layouts.BUILT_IN[name]
    loaded = _loaded(name)
    return RowFormat(name, tuple(map(tuple, loaded.keys)), loaded.needs_template)


def _plugin_document(row: Row, plugin: Plugin, *, has_template: bool) -> Document:
    try:
        document = _loaded(plugin.name).document(row, has_template=has_template)
    except Exception as error:  # someone else's code may raise anything: this row is bad
        problem = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise BadRow("row.plugin", problem=problem, package=plugin.source) from error
    if isinstance(document, Chat):
        conversation = [_message(turn) for turn in document.messages]
        _check_roles(conversation)
        return Chat(conversation, document.tools)
    if isinstance(document, Pair):
        return Pair(_checked("prompt", document.prompt), _filled("completion", document.completion))
    if isinstance(document, Text):
        return Text(_filled("text", document.text))
    raise plugin.broken(messages.text("plugin.wrong_type", found=type(document).__name__, expected="Text, Pair, Chat"))


# ---- built-in formats


def _plain_text(row: Row) -> Text:
    return Text(_text(row, "text"))


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


_READERS: dict[str, Callable[[Row, bool], Document]] = {
    "text": lambda row, _: _plain_text(row),
    "messages": lambda row, _: _chat(row, "messages"),
    "sharegpt": lambda row, _: _chat(row, "conversations"),
    "alpaca": lambda row, has_template: _alpaca(row, has_template=has_template),
    "prompt_completion": lambda row, has_template: _prompt_completion(row, has_template=has_template),
}
"""How each built-in format of `layouts.FORMATS` is read."""


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
    return _filled(key, _value(row, key, str, "text"))


def _filled(key: str, value: Any) -> str:
    text = _checked(key, value)
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
