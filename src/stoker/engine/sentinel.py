"""What a chat template makes of conversations, asked by a conversation of the same shape whose every word is unique.

A template takes content as text or in parts, arguments as an object or as JSON text, calls and tools wrapped as OpenAI
has them or flat, thinking as a field or in the content: each form is tried until nothing is lost. What no form keeps
is a reason to refuse the rows of that shape. Knows nothing of rendering: it makes questions and judges answers.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from stoker import messages
from stoker.rows.formats import Chat, Message
from stoker.rows.row_values import BadRow
from stoker.rows.turns import Call, Conversation, Turn

Span = tuple[int, int]
Spans = list[Span | BadRow]


@dataclass(frozen=True)
class Form:
    """How a template takes a conversation."""

    parts: bool = False
    """Content is a list of parts, each with its type."""
    wrapped: bool = True
    """Calls and tools are `{"type": "function", "function": {...}}`, as OpenAI writes them."""
    written: bool = False
    """Arguments are JSON text."""
    absent: str | None = ""
    """The content of a turn that only calls."""
    inline: bool = False
    """Thinking is in the content, between `<think>` and `</think>`."""


@dataclass(frozen=True)
class Reading:
    """A form in which a template keeps all of a shape, and which spans are whose."""

    form: Form
    marked: bool
    """The spans are those that the template marks itself."""
    count: int
    """How many spans there are."""
    groups: tuple[tuple[int, ...], ...]
    """The spans of each turn of the assistant; none where the template leaves out its thinking: it is context."""


def shape(conversation: Conversation) -> tuple[Any, ...]:
    """What a template can see of a conversation but its words."""
    return bool(conversation.tools), tuple(_turn_shape(turn) for turn in conversation.turns)


def of(conversation: Conversation) -> Conversation:
    """A conversation of the same shape, of words that are found nowhere else."""
    word = (f"stk{number}word" for number in itertools.count(100))
    known: dict[str, str] = {"": ""}
    """New names and ids by the old ones; an id keeps its length, which templates may check."""
    turns = []
    for turn in conversation.turns:
        for call in turn.calls:
            known |= {call.name: next(word), call.id: _id(call.id, len(known))}
        content, thinking = (next(word) if text.strip() else "" for text in (turn.content, turn.thinking))
        calls = tuple(_call(call, known, word) for call in turn.calls)
        call_id, name = known.get(turn.call_id, turn.call_id), known.get(turn.name) or next(word)
        turns.append(Turn(turn.role, content, thinking, "", calls, call_id, name if turn.name else ""))
    key = next(word)
    schema = {"type": "object", "properties": {key: {"type": "string", "description": next(word)}}, "required": [key]}
    tool = {"name": next(word), "description": next(word), "parameters": schema}
    return Conversation(tuple(turns), (tool,) if conversation.tools else ())


def thinker() -> Conversation:
    """The smallest conversation with a thought: by it a template's form of thinking is found."""
    return of(Conversation((Turn("user", "a"), Turn("assistant", "b", thinking="c"))))


def forms(conversation: Conversation, *, inline: bool) -> Iterator[Form]:
    """The forms to try, what servers of models use first."""
    calls = any(turn.calls for turn in conversation.turns)
    silent = any(not turn.content for turn in conversation.turns)
    either, first = (False, True), (False,)
    for parts, flat, written, absent in itertools.product(
        either,
        either if calls or conversation.tools else first,
        either if calls else first,
        either if silent else first,
    ):
        yield Form(parts, not flat, written, None if absent else "", inline)


def as_template(conversation: Conversation, form: Form) -> Chat:
    """A conversation in a form."""
    tools = [_tool(tool, form) for tool in conversation.tools]
    return Chat([_message(turn, form) for turn in conversation.turns], tools or None)


# ---- the answer, judged


def judged(asked: Conversation, text: str, spans: Spans, form: Form, *, marked: bool) -> Reading | BadRow:
    """Whether a rendering of the question keeps every word, each where it belongs."""
    if any(f'\\"{word}' in text for turn in asked.turns for call in turn.calls for word in _leaves(call.arguments)):
        return _lost("call")
    if any(tool["name"] not in text for tool in asked.tools):
        return BadRow("row.template_tools")
    answers = [turn for turn in asked.turns if turn.role == "assistant"]
    if answers[-1].thinking not in text:
        return _lost("thinking")
    owned = [_owned(turn, text, spans) for turn in answers] if marked else [(number,) for number in range(len(spans))]
    if marked and sorted(number for own in owned for number in own) != list(range(len(spans))):
        return BadRow("row.template_prefix")
    groups = tuple(own if turn.thinking in text else () for turn, own in zip(answers, owned, strict=False))
    reading = Reading(form, marked, len(spans), groups)
    return (
        unfit(reading, spans) or missing(asked, text, spans, reading) or _leak(asked, text, spans, reading) or reading
    )


def unfit(reading: Reading, spans: Spans) -> BadRow | None:
    """Why the spans of a conversation are not those of its shape."""
    if len(spans) != reading.count:
        return BadRow("row.template_prefix")
    needed = (spans[number] for group in reading.groups for number in group)
    return next((span for span in needed if isinstance(span, BadRow)), None)


def missing(conversation: Conversation, text: str, spans: Spans, reading: Reading) -> BadRow | None:
    """What of a conversation is not where it belongs: what is trained in its spans, all else outside of them."""
    outside = _without(text, [sure(spans[number]) for group in reading.groups for number in group])
    groups = iter(reading.groups)
    for turn in conversation.turns:
        if turn.role != "assistant":
            part = lost(turn, outside)
        elif group := next(groups, ()):
            part = lost(turn, said(text, spans, group))
        else:
            part = lost(replace(turn, thinking=""), text)
        if part:
            return _lost(part)
    return None


def lost(turn: Turn, text: str) -> str | None:
    """Which part of a turn is not in a text."""
    if turn.content.strip() not in text and _escaped(turn.content.strip(), text):
        return turn.role
    if turn.thinking.strip() not in text:
        return "thinking"
    words = (word for call in turn.calls for word in (call.name, *_leaves(call.arguments)))
    return "call" if any(word not in text and _escaped(word, text) for word in words) else None


def _escaped(word: str, text: str) -> bool:
    """Whether a word is not in a text in any spelling of JSON or Python either."""
    spellings = (json.dumps(word)[1:-1], json.dumps(word, ensure_ascii=False)[1:-1], repr(word)[1:-1])
    return not any(spelling in text for spelling in spellings)


def said(text: str, spans: Spans, group: tuple[int, ...]) -> str:
    """The text of some spans."""
    return "\0".join(text[slice(*sure(spans[number]))] for number in group)


def _owned(turn: Turn, text: str, spans: Spans) -> tuple[int, ...]:
    """The spans that have a word of a turn."""
    words = [word for word in (turn.content, turn.thinking, *(call.name for call in turn.calls)) if word]
    return tuple(at for at in range(len(spans)) if any(word in said(text, spans, (at,)) for word in words))


def _leak(asked: Conversation, text: str, spans: Spans, reading: Reading) -> BadRow | None:
    """A word of another turn in the spans of one."""
    answers = [turn for turn in asked.turns if turn.role == "assistant"]
    for turn, group in zip(answers, reading.groups, strict=False):
        own = said(text, spans, group)
        if any(other.content in own for other in asked.turns if other is not turn and other.content):
            return BadRow("row.template_prefix")
    return None


def _without(text: str, spans: list[Span]) -> str:
    """A text without its spans."""
    edges = [0, *(edge for span in sorted(spans) for edge in span), len(text)]
    return "\0".join(text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True))


def sure(span: Span | BadRow) -> Span:
    """A span that is known to be found."""
    assert not isinstance(span, BadRow)
    return span


def _lost(part: str) -> BadRow:
    return BadRow("row.template_loses", part=messages.text(f"part.{part}"))


# ---- forms


def _message(turn: Turn, form: Form) -> Message:
    content: Any = turn.content
    if turn.thinking and form.inline:
        content = turn.inline or f"<think>\n{turn.thinking}\n</think>\n\n{turn.content}"
    if turn.calls and not content.strip():
        content = form.absent
    if form.parts and content is not None:
        content = [{"type": "text", "text": content}]
    extras = {
        "reasoning_content": "" if form.inline else turn.thinking,
        "tool_calls": [_as_call(call, form) for call in turn.calls],
        "tool_call_id": turn.call_id,
        "name": turn.name,
    }
    return {"role": turn.role, "content": content, **{key: value for key, value in extras.items() if value}}


def _as_call(call: Call, form: Form) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.written if form.written else call.arguments}
    made = {"type": "function", "function": function} if form.wrapped else function
    return {"id": call.id, **made} if call.id else made


def _tool(tool: dict[str, Any], form: Form) -> dict[str, Any]:
    inner = tool.get("function", tool)
    return {"type": "function", "function": inner} if form.wrapped else inner


# ---- words


def _turn_shape(turn: Turn) -> tuple[Any, ...]:
    calls = tuple((len(call.id), _kinds(call)) for call in turn.calls)
    return turn.role, bool(turn.content.strip()), bool(turn.thinking), calls, len(turn.call_id), bool(turn.name)


def _id(old: str, number: int) -> str:
    return f"{number:0{len(old)}d}"[-len(old) :] if old else ""


def _call(call: Call, known: dict[str, str], word: Iterator[str]) -> Call:
    """A call with one argument of each kind of value that the call has."""
    values = {
        "text": lambda: next(word),
        "list": lambda: [next(word)],
        "mapping": lambda: {next(word): next(word)},
        "number": lambda: 73421,
        "constant": lambda: True,
    }
    arguments = {next(word): values[kind]() for kind in _kinds(call)}
    return Call(known[call.name], arguments, json.dumps(arguments), known[call.id])


def _kinds(call: Call) -> tuple[str, ...]:
    return tuple(sorted({_kind(value) for value in call.arguments.values()}))


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "constant"
    kinds = {str: "text", list: "list", dict: "mapping", int: "number", float: "number"}
    return kinds[type(value)]


def _leaves(value: Any) -> Iterator[str]:
    """The keys and texts of a call's arguments."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    elif isinstance(value, str) and value.strip():
        yield value.strip()
