"""Rows that compare two answers to one prompt (`chosen`, `rejected`), or judge one (`completion` and `label`).

Spellings: a prompt as text (`prompt`, `question`, `instruction` with `input`, `history`) or as messages (`prompt`;
`conversations` of LLaMA-Factory), answers as text, as one message or as several (TRL); OpenAI's (`preferred_output`);
or whole conversations: two that begin alike, or one of which the last answer is judged.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stoker.rows import row_values, turns
from stoker.rows.row_values import BadRow, Row
from stoker.rows.turns import Conversation, Turn

_ANSWERS = ("chosen", "rejected")
_TEXTS = ("prompt", "question", "instruction")
"""Keys of a prompt that is text."""
_MESSAGES = ("prompt", "conversations", "messages")
"""Keys of a prompt that is messages."""
ASKED = (*_TEXTS, "input", "history", *_MESSAGES[1:], "system", "tools")
"""All keys of what comes before an answer."""


def texts(row: Row) -> tuple[str, str, str]:
    """Prompt, chosen and rejected of a row for a model without a chat template."""
    row = _named_as_ours(row)
    key = next((key for key in _TEXTS if isinstance(row.get(key), str)), None)
    told = row.get("system") or (key == "instruction" and row.get("history"))
    if key is None or not all(isinstance(row.get(answer), str) for answer in _ANSWERS) or told:
        for answer in _ANSWERS:
            _require(row, answer)
        raise BadRow("row.needs_template")
    chosen, rejected = (row_values.text(row, answer) for answer in _ANSWERS)
    if chosen == rejected:
        raise BadRow("row.same_answers")
    return _prompt_text(row, key), chosen, rejected


def conversations(row: Row) -> tuple[Conversation, Conversation]:
    """Two conversations that differ in how they end; only that is trained."""
    row = _named_as_ours(row)
    given = [_answer(row, key) for key in _ANSWERS]
    prompt = _prompt(row)
    whole = [key for key, answer in zip(_ANSWERS, given, strict=True) if _is_whole(answer)]
    if len(whole) == 1:
        raise BadRow("row.whole_answer", key=whole[0])
    if whole:
        prompt = _common(given, prompt)
        given = [answer[len(prompt) :] for answer in given]
    elif not prompt:
        raise BadRow("row.missing_key", key="prompt")
    tools = row.get("tools")
    chosen, rejected = (_ended(turns.conversation([*prompt, *end], tools, row.get("system")), end) for end in given)
    if chosen == rejected:
        raise BadRow("row.same_answers")
    return chosen, rejected


def judged_text(row: Row) -> tuple[str, str]:
    """Prompt and answer of a judged row for a model without a chat template."""
    if not isinstance(row.get("prompt"), str) or not isinstance(row.get("completion"), str) or row.get("system"):
        _require(row, "completion")
        raise BadRow("row.needs_template")
    return row_values.text(row, "prompt"), row_values.text(row, "completion")


def judged_conversation(row: Row) -> Conversation:
    """The conversation of which the last answer is judged; only that is trained."""
    if "completion" in row:
        end, prompt = _answer(row, "completion"), _prompt(row)
        if _is_whole(end):
            raise BadRow("row.whole_answer", key="completion")
        if not prompt:
            raise BadRow("row.missing_key", key="prompt")
    else:
        said: list[Any] = next((row[key] for key in _MESSAGES if isinstance(row.get(key), list)), [])
        prompt, end = said[:-1], said[-1:]
        if not prompt:
            raise BadRow("row.no_assistant")
    return _ended(turns.conversation([*prompt, *end], row.get("tools"), row.get("system")), end)


def _named_as_ours(row: Row) -> Row:
    """A pair as OpenAI writes it in the usual keys; others as they are."""
    asked = row.get("input")
    if not isinstance(asked, dict) or "preferred_output" not in row:
        return row
    answers = {"chosen": row["preferred_output"], "rejected": row.get("non_preferred_output")}
    return {**answers, "messages": asked.get("messages"), "tools": asked.get("tools")}


def _require(row: Row, key: str) -> Any:
    if row.get(key) in (None, "", [], {}):
        raise BadRow("row.missing_key" if key not in row else "row.empty", key=key)
    return row[key]


def _answer(row: Row, key: str) -> list[Any]:
    """An answer as messages."""
    given = _require(row, key)
    if isinstance(given, str):
        return [{"role": "assistant", "content": row_values.filled(key, given)}]
    if isinstance(given, dict):
        return [given]
    if not isinstance(given, list):
        raise row_values.wrong_type(key, "list")
    return given


def _prompt(row: Row) -> list[Any]:
    """The prompt as messages; empty where the row has none."""
    for key in _TEXTS:
        if isinstance(row.get(key), str):
            earlier = turns.earlier(row) if key == "instruction" else []
            return [*earlier, {"role": "user", "content": _prompt_text(row, key)}]
    return next((row[key] for key in _MESSAGES if isinstance(row.get(key), list)), [])


def _prompt_text(row: Row, key: str) -> str:
    extra = row_values.checked("input", row.get("input") or "") if key == "instruction" else ""
    prompt = row_values.text(row, key)
    return f"{prompt}\n{extra}" if extra.strip() else prompt


def _is_whole(answer: Sequence[Any]) -> bool:
    """Whether an answer is a conversation from its beginning."""
    return turns.speaker(answer[0]) in ("system", "user")


def _common(given: Sequence[Sequence[Any]], prompt: Sequence[Any]) -> list[Any]:
    """The messages with which both conversations begin. A prompt beside them must be the last they share."""
    shared: list[Any] = []
    for one, other in zip(*given, strict=False):
        if one != other:
            break
        shared.append(one)
    if min(map(len, given)) == len(shared):
        raise BadRow("row.same_answers")
    if any(turns.speaker(answer[len(shared)]) in ("system", "user", "tool") for answer in given):
        raise BadRow("row.other_prompt")
    said = prompt[-1].get("content", prompt[-1].get("value")) if prompt and isinstance(prompt[-1], dict) else None
    if said is not None and not any(message.get("content", message.get("value")) == said for message in shared):
        raise BadRow("row.differ", first="prompt", second="chosen")
    return shared


def _ended(whole: Conversation, end: Sequence[Any]) -> Conversation:
    """The conversation, with nothing trained before its end."""
    first = len(whole.turns) - len(end)
    told = tuple(_context(turn) if at < first else turn for at, turn in enumerate(whole.turns))
    if not any(turn.role == "assistant" and turn.trained for turn in told[first:]):
        raise BadRow("row.no_assistant")
    return replace(whole, turns=told)


def _context(turn: Turn) -> Turn:
    return replace(turn, trained=False)
