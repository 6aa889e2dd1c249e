"""Columns by name: which of the user's columns is the prompt, which the answer, the better answer, the messages."""

from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from stoker.config.section import NonEmpty, Section

_NEWER = ("chosen", "rejected", "completion", "label")
"""Where they are not named nothing is written of them: sets that were prepared before keep their digests."""


class Roles(Section):
    """What the messages of a conversation call who speaks, where it is not one of the usual names."""

    user: NonEmpty | None = None
    """The one who asks (`customer`)."""
    assistant: NonEmpty | None = None
    """The one whose messages are trained (`agent`)."""
    system: NonEmpty | None = None
    """Who gives the instructions at the beginning."""
    function_call: NonEmpty | None = None
    """The assistant where it calls a tool, with the call as JSON."""
    tool: NonEmpty | None = None
    """A tool's result."""


class Columns(Section):
    """Names of the columns: of running text `text`, of questions `prompt` and `answer`, of conversations `messages`.

    Of pairs `prompt`, `chosen` and `rejected`; of answers that are judged `prompt`, `completion` and `label`.
    """

    text: NonEmpty | None = None
    """Running text; every token of it is trained."""
    prompt: NonEmpty | None = None
    """What is asked."""
    input: NonEmpty | None = None
    """More of the prompt, which follows it in a line of its own."""
    answer: NonEmpty | None = None
    """What the model should answer; only this is trained."""
    chosen: NonEmpty | None = None
    """The better of two answers."""
    rejected: NonEmpty | None = None
    """The other one."""
    completion: NonEmpty | None = None
    """An answer that is judged by `label`."""
    label: NonEmpty | None = None
    """Whether the answer, or the last one of `messages`, is a good one: true or false."""
    history: NonEmpty | None = None
    """Earlier pairs of prompt and answer, as a list."""
    system: NonEmpty | None = None
    """The system prompt of the row."""
    messages: NonEmpty | None = None
    """The list of messages of a conversation."""
    tools: NonEmpty | None = None
    """The tools that a conversation may call."""
    role: NonEmpty | None = None
    """The key of a message that says who speaks, where it is neither `role` nor `from`."""
    content: NonEmpty | None = None
    """The key of a message that holds its text, where it is neither `content` nor `value`."""
    roles: Roles | None = None
    """Who speaks, by other names: `{user: customer, assistant: agent}`."""

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in write(self).items() if value is not None or name not in _NEWER}


_LAYOUTS = (
    ("text", {"text"}, set[str]()),
    ("prompt_completion", {"prompt", "answer"}, {"system"}),
    ("alpaca", {"prompt", "answer"}, {"input", "history", "system"}),
    ("messages", {"messages"}, {"system", "tools", "role", "content", "roles"}),
    ("prompt", {"prompt"}, {"input", "system"}),
    ("preference", {"chosen", "rejected"}, {"system", "tools"}),
    ("preference", {"prompt", "chosen", "rejected"}, {"input", "system", "tools"}),
    ("labelled", {"prompt", "completion", "label"}, {"system", "tools"}),
    ("labelled", {"messages", "label"}, {"system", "tools", "role", "content", "roles"}),
)
"""Row formats by the columns they need and may have."""


def layout_of(columns: Columns) -> str | None:
    """The row format that columns make; None where they make none, or parts of several."""
    found = _layout(columns)
    return found[0] if found else None


def of_rows(columns: Columns) -> dict[str, str]:
    """Columns of a row by the role of each; keys inside of messages are none."""
    inner = {"role", "content", "roles"}
    return {role: column for role, column in columns if column is not None and role not in inner}


def required(columns: Columns) -> set[str]:
    """Roles without which a row cannot be read."""
    found = _layout(columns)
    assert found is not None
    return found[1]


def _layout(columns: Columns) -> tuple[str, set[str]] | None:
    """The row format that columns make, and what it needs of them."""
    named = {name for name, value in columns if value is not None}
    return next(((name, needed) for name, needed, others in _LAYOUTS if needed <= named <= needed | others), None)
