"""Task files: questions with known answers, one JSON object per line; parsing and scoring.

    {"prompt": "2 + 2 =", "answer": "4"}                          exact match after stripping white space
    {"prompt": "...", "choices": ["3", "4"], "answer": 1}         multiple choice; counted from 0
`messages` may replace `prompt`. A prompt is rendered as a user message by the chat template, or used as is for a
completion model.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker import messages
from stoker.engine import generate, models
from stoker.engine.generate import Messages
from stoker.errors import StokerError, StokerErrors

EXACT, CHOICE = "exact_match", "multiple_choice"
_MOST_ERRORS = 20
_SPARE_TOKENS = 16
_AT_ONCE = 16
"""Batch size of answers on a GPU; a CPU gains nothing from more than one."""


@dataclass(frozen=True)
class Question:
    """One row."""

    number: int
    """Its line in the file, from 1."""
    messages: Messages
    choices: tuple[str, ...]
    answer: str | int

    @property
    def kind(self) -> str:
        """How it is scored."""
        return CHOICE if self.choices else EXACT


class _BadRow(Exception):
    """Why a row cannot be used, in the user's language."""


def read(path: Path) -> list[Question]:
    """All questions of a file; every bad row is named."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StokerError("STK509", path=path, reason=reason) from error
    questions: list[Question] = []
    problems: list[StokerError] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            question = _question(number, line)
            if questions and question.kind != questions[0].kind:
                raise _BadRow(messages.text("task.mixed", kind=questions[0].kind))
            questions.append(question)
        except _BadRow as error:
            problems.append(StokerError("STK508", f"{path.name}:{number}", reason=error))
    if problems:
        raise StokerErrors(problems[:_MOST_ERRORS])
    if not questions:
        raise StokerError("STK509", path=path, reason=messages.text("task.empty"))
    return questions


def _question(number: int, line: str) -> Question:
    try:
        row = json.loads(line)
    except ValueError as error:
        fields = {"problem": getattr(error, "msg", error), "column": getattr(error, "colno", 0)}
        raise _BadRow(messages.text("row.not_json", **fields)) from error
    if not isinstance(row, dict):
        raise _BadRow(messages.text("row.not_object", kind=type(row).__name__))
    choices = _choices(row)
    return Question(number, _messages(row), choices, _answer(row, choices))


def _messages(row: dict[str, Any]) -> Messages:
    if "messages" not in row:
        return [{"role": "user", "content": _text(row, "prompt")}]
    said = row["messages"]
    if not isinstance(said, list) or not all(isinstance(one, dict) for one in said):
        raise _wrong("messages", "type.list")
    taken = [{"role": _text(one, "role"), "content": _text(one, "content")} for one in said]
    if not taken or taken[-1]["role"] != "user":
        raise _BadRow(messages.text("task.last_role"))
    return taken


def _choices(row: dict[str, Any]) -> tuple[str, ...]:
    choices = row.get("choices", [])
    if not isinstance(choices, list) or not all(isinstance(choice, str) and choice for choice in choices):
        raise _wrong("choices", "type.list")
    if "choices" in row and len(choices) < 2:
        raise _BadRow(messages.text("task.few_choices"))
    return tuple(choices)


def _answer(row: dict[str, Any], choices: tuple[str, ...]) -> str | int:
    if not choices:
        return _text(row, "answer")
    answer = row.get("answer")
    if not isinstance(answer, int) or isinstance(answer, bool):
        raise _wrong("answer", "type.whole") if "answer" in row else _missing("answer")
    if not 0 <= answer < len(choices):
        raise _BadRow(messages.text("task.answer_range", answer=answer, last=len(choices) - 1))
    return answer


def _text(row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        raise _wrong(key, "type.text") if key in row else _missing(key)
    return value


def _wrong(key: str, expected: str) -> _BadRow:
    return _BadRow(messages.text("row.wrong_type", key=key, expected=messages.text(expected)))


def _missing(key: str) -> _BadRow:
    return _BadRow(messages.text("row.missing_key", key=key))


# ---- answering


def judge(model: Any, tokenizer: Any, questions: list[Question], *, plain: bool) -> Iterator[dict[str, Any]]:
    """The model's answer to each question, and whether it is right."""
    at_once = _AT_ONCE if model.device.type == "cuda" else 1
    for first in range(0, len(questions), at_once):
        some = questions[first : first + at_once]
        found = (_choose if some[0].choices else _write)(model, tokenizer, some, plain=plain)
        for question, judged in zip(some, found, strict=True):
            yield {"row": question.number, "wanted": question.answer, **judged}


def _write(model: Any, tokenizer: Any, questions: list[Question], *, plain: bool) -> Iterator[dict[str, Any]]:
    """Greedy answers, as long as right ones can be."""
    wanted = [str(question.answer).strip() for question in questions]
    longest = max(len(tokenizer(answer, add_special_tokens=False).input_ids) for answer in wanted)
    prompts = [generate.prompt_ids(tokenizer, question.messages, plain=plain) for question in questions]
    said = generate.answers(model, tokenizer, prompts, 2 * longest + _SPARE_TOKENS)
    for answer, right in zip((text.strip() for text in said), wanted, strict=True):
        yield {"answer": answer, "right": answer == right}


def _choose(model: Any, tokenizer: Any, questions: list[Question], *, plain: bool) -> Iterator[dict[str, Any]]:
    """The choices of the highest log-probability per byte; by the sum, which favours short ones, beside it."""
    for question in questions:
        summed = choice_logprobs(model, tokenizer, question, plain=plain)
        per_byte = [value / len(choice.encode()) for value, choice in zip(summed, question.choices, strict=True)]
        answer, by_sum = (max(range(len(values)), key=values.__getitem__) for values in (per_byte, summed))
        yield {"answer": answer, "right": answer == question.answer, "right_by_sum": by_sum == question.answer}


def choice_logprobs(model: Any, tokenizer: Any, question: Question, *, plain: bool) -> list[float]:
    """Summed log-probability of each choice's tokens behind the prompt."""
    head = generate.prompt_text(tokenizer, question.messages, plain=plain)
    start = generate.text_ids(tokenizer, head, plain=plain).shape[1]
    sums = []
    with models.evaluating(model):
        for choice in question.choices:
            ids = generate.text_ids(tokenizer, head + choice, plain=plain).to(model.device)
            logprobs = model(input_ids=ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
            own = logprobs.gather(1, ids[0, 1:, None])[start - 1 :]
            sums.append(own.cpu().double().sum().item())
    return sums
