"""Conversations in one form, whatever the row's spelling: who says what, thinks what, calls what, and is trained.

Spellings: role/content and from/value; calls as OpenAI writes and wrote them, flat, or as LLaMA-Factory's
`function_call`; arguments as an object or as JSON text; thinking as a field or as `<think>` at the start of the
content. Knows nothing of templates.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from stoker.rows import row_values
from stoker.rows.row_values import BadRow, Row

_ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
_THINKING_KEYS = ("reasoning_content", "reasoning", "thinking")
_MARKS = ("weight", "train", "loss")
"""Keys by which a message says whether it is trained."""
_TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of parts that OpenAI's interfaces give to text."""
_THOUGHT = re.compile(r"\s*<think>(.*?)</think>(?:[ \t\r]*\n)*", re.DOTALL)
"""Up to what is said, whose first line may be indented."""


@dataclass(frozen=True)
class Call:
    """A tool call."""

    name: str
    arguments: dict[str, Any]
    written: str
    """The arguments as JSON text, as the row has them."""
    id: str = ""


@dataclass(frozen=True)
class Turn:
    """One message."""

    role: str
    content: str
    thinking: str = ""
    inline: str = ""
    """The content with the thinking in it, where the row writes it so."""
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    """Of a tool's result: the call it answers."""
    name: str = ""
    trained: bool = True


@dataclass(frozen=True)
class Conversation:
    """A conversation; what the assistant says is trained, unless its turn is marked otherwise."""

    turns: tuple[Turn, ...]
    tools: tuple[dict[str, Any], ...] = ()

    @property
    def words(self) -> list[str]:
        """All that is said and thought."""
        said = [[turn.inline] if turn.inline else [turn.thinking, turn.content] for turn in self.turns]
        return [text for texts in said for text in texts if text]


def conversation(given: Sequence[Any], tools: Any = None, system: Any = None) -> Conversation:
    """Messages of either spelling; `system` is put first, unless it is there."""
    turns = _turns(given, system)
    _check_roles(turns)
    return Conversation(tuple(_named(turns)), _tools(tools))


def prompt(given: Sequence[Any], tools: Any = None, system: Any = None) -> Conversation:
    """The same up to where the assistant is to speak; answers at the end are left out."""
    turns = _turns(given, system)
    while turns and turns[-1].role == "assistant":
        turns.pop()
    spoken = [turn.role for turn in turns if turn.role != "system"]
    if not spoken:
        raise BadRow("row.no_prompt")
    if spoken[0] != "user":
        raise BadRow("row.first_role", role=spoken[0])
    return Conversation(tuple(_named(turns)), _tools(tools))


def _turns(given: Sequence[Any], system: Any) -> list[Turn]:
    turns = [_turn(one) for one in given]
    first = Turn("system", row_values.checked("system", system or ""))
    if system and turns and turns[0].role != "system":
        turns.insert(0, first)
    elif system and turns and turns[0].content.strip() != first.content.strip():
        raise BadRow("row.differ", first="system", second="messages[0]")
    return turns


def exchange(user: str, assistant: str) -> list[dict[str, str]]:
    """A question and its answer."""
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


def earlier(row: Row) -> list[dict[str, str]]:
    """The messages of `history`: pairs of a question and its answer, as LLaMA-Factory has them."""
    given = row.get("history") or []
    if not isinstance(given, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in given):
        raise row_values.wrong_type("history", "list")
    said = [[row_values.checked("history", text) for text in pair] for pair in given]
    return [message for user, assistant in said for message in exchange(user, assistant)]


def speaker(given: Any) -> str | None:
    """Who says a message, in any spelling; None where it does not say so."""
    spelled = given.get("role", given.get("from")) if isinstance(given, dict) else None
    return _ROLES.get(str(spelled).lower())


# ---- one message


def _turn(given: Any) -> Turn:
    if not isinstance(given, dict):
        raise row_values.wrong_type("messages[]", "mapping")
    row_values.refuse_media(given)
    role_key, content_key = ("from", "value") if "from" in given and "role" not in given else ("role", "content")
    spelled = row_values.value(given, role_key, str, "text")
    role = _ROLES.get(spelled.lower())
    if role is None:
        raise BadRow("row.unknown_role", role=spelled)
    trained = _trained(given, role)
    if spelled.lower() == "function_call":
        return Turn(role, "", calls=_function_calls(_content(given, content_key)), trained=trained)
    calls = _calls(given) if role == "assistant" else ()
    content = "" if calls and given.get(content_key) is None else _content(given, content_key)
    thinking, inline, content = _thinking(given, content) if role == "assistant" else ("", "", content)
    if not content.strip() and role != "system" and not calls:
        raise BadRow("row.empty", key=f"{role}: {content_key}")
    call_id, name = (row_values.checked(key, given.get(key) or "") for key in ("tool_call_id", "name"))
    return Turn(role, content, thinking, inline, calls, call_id, name, trained)


def _content(given: Row, key: str) -> str:
    """A message's text; a list of text parts, as OpenAI writes it, is joined."""
    content = given.get(key)
    if isinstance(content, list):
        return "".join(row_values.checked(key, _part(key, part)) for part in content)
    return row_values.checked(key, row_values.value(given, key, str, "text"))


def _part(key: str, part: Any) -> Any:
    """The text of one part of a message."""
    if not isinstance(part, dict):
        return part
    row_values.refuse_media(part)
    kind = part.get("type") or "text"
    if kind not in _TEXT_PARTS:
        raise BadRow("row.media", key=f"{key}[].type: {kind}")
    return part.get("text")


def _thinking(given: Row, content: str) -> tuple[str, str, str]:
    """What is thought, the content with it where it is in there, and what is said. An empty thought is none."""
    field = next((row_values.checked(key, given[key]) for key in _THINKING_KEYS if given.get(key)), "")
    thought = _THOUGHT.match(content)
    if thought is None:
        return (field if field.strip() else ""), "", content
    inner, rest = thought.group(1), content[thought.end() :]
    if inner.strip() and field.strip():
        raise BadRow("row.two_thoughts")
    return (inner.strip("\n"), content, rest) if inner.strip() else (field, "", rest)


def _trained(given: Row, role: str) -> bool:
    """Whether a message is trained: `weight`, `train` or `loss`, each true or false, 1 or 0."""
    marks = [(key, given[key]) for key in _MARKS if given.get(key) is not None]
    for key, mark in marks:
        if mark not in (0, 1):
            raise BadRow("row.mark", key=key)
        if mark and key != "weight" and role != "assistant":
            raise BadRow("row.mark_role", key=key, role=role)
    return all(mark for _, mark in marks)


# ---- calls and tools


def _calls(given: Row) -> tuple[Call, ...]:
    calls = given.get("tool_calls") or given.get("function_call") or []
    if isinstance(calls, dict):
        calls = [calls]
    if not isinstance(calls, list):
        raise row_values.wrong_type("tool_calls", "list")
    return tuple(_call(one) for one in calls)


def _function_calls(content: str) -> tuple[Call, ...]:
    """What a `function_call` message of LLaMA-Factory holds: a call as JSON, or a list of them."""
    try:
        given = row_values.from_json("function_call", content)
    except ValueError:
        raise BadRow("row.call") from None
    calls = given if isinstance(given, list) else [given]
    if not calls:
        raise BadRow("row.call")
    return tuple(_call(one) for one in calls)


def _call(given: Any) -> Call:
    """A call in OpenAI's form, or flat; its arguments an object, or one as JSON text."""
    inner = given.get("function", given) if isinstance(given, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str) or not inner["name"].strip():
        raise BadRow("row.call")
    name, arguments = row_values.checked("name", inner["name"]), inner.get("arguments") or {}
    written = row_values.checked("arguments", arguments) if isinstance(arguments, str) else ""
    try:
        arguments = row_values.from_json("arguments", written) if written else arguments
        row_values.check_json("arguments", arguments)
        written = written or json.dumps(arguments, ensure_ascii=False)
    except (TypeError, ValueError):
        arguments = None
    if not isinstance(arguments, dict):
        raise BadRow("row.arguments", name=name)
    return Call(name, arguments, written, row_values.checked("id", given.get("id") or ""))


def _named(turns: list[Turn]) -> list[Turn]:
    """A tool's result has the name of the call it answers, by its id or else by its place."""
    named: list[Turn] = []
    open_calls: list[Call] = []
    for turn in turns:
        if turn.role != "tool":
            open_calls = list(turn.calls)
        elif open_calls:
            answered = next((call for call in open_calls if call.id and call.id == turn.call_id), open_calls[0])
            open_calls.remove(answered)
            turn = turn if turn.name else replace(turn, name=answered.name)
        named.append(turn)
    return named


def _tools(given: Any) -> tuple[dict[str, Any], ...]:
    """The tools of a row: a list, or one as JSON text."""
    if isinstance(given, str):
        try:
            given = row_values.from_json("tools", given or "[]")
        except ValueError:
            raise row_values.wrong_type("tools", "list") from None
    if not given:
        return ()
    if not isinstance(given, list) or not all(isinstance(tool, dict) for tool in given):
        raise row_values.wrong_type("tools", "list")
    row_values.check_json("tools", given)
    return tuple(given)


def _check_roles(turns: list[Turn]) -> None:
    spoken = [turn.role for turn in turns]
    if not spoken:
        raise BadRow("row.empty", key="messages")
    first = spoken[1:2] if spoken[0] == "system" else spoken[:1]
    if "assistant" not in spoken:
        raise BadRow("row.no_assistant")
    if first != ["user"]:
        raise BadRow("row.first_role", role=first[0])
    if not any(turn.trained for turn in turns if turn.role == "assistant"):
        raise BadRow("row.none_trained")
