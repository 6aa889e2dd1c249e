"""Rows that compare or judge answers: every spelling, what is trained of them, and what makes such a row bad."""

import json
from typing import Any

import pytest

from stoker.config import layouts, objectives
from stoker.rows import formats, row_values
from stoker.rows.formats import Judged, Pair, Preference
from stoker.rows.row_values import BadRow
from stoker.rows.turns import Conversation

ASKED, GOOD, BAD = "Hi", "Hello.", "What?"
USER = {"role": "user", "content": ASKED}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


SPELLINGS: dict[str, dict[str, Any]] = {
    "texts": {"prompt": ASKED, "chosen": GOOD, "rejected": BAD},
    "a question": {"question": ASKED, "chosen": GOOD, "rejected": BAD},
    "alpaca": {"instruction": ASKED, "input": "", "chosen": GOOD, "rejected": BAD},
    "messages": {"prompt": [USER], "chosen": [said(GOOD)], "rejected": [said(BAD)]},
    "whole conversations": {"chosen": [USER, said(GOOD)], "rejected": [USER, said(BAD)]},
    "both": {"prompt": ASKED, "messages": [], "chosen": [USER, said(GOOD)], "rejected": [USER, said(BAD)]},
    "sharegpt": {
        "conversations": [{"from": "human", "value": ASKED}],
        "chosen": {"from": "gpt", "value": GOOD},
        "rejected": {"from": "gpt", "value": BAD},
    },
    "openai": {
        "input": {"messages": [USER], "tools": [], "parallel_tool_calls": True},
        "preferred_output": [said(GOOD)],
        "non_preferred_output": [said(BAD)],
    },
}


@pytest.mark.parametrize("row", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_every_spelling_is_recognised_and_means_the_same(row: dict[str, Any]) -> None:
    found = layouts.recognise(row)
    assert found is not None
    assert found[0].name == "preference"
    read = formats.parse(row, "preference", has_template=True)
    assert isinstance(read, Preference)
    for conversation, answer in ((read.chosen, GOOD), (read.rejected, BAD)):
        assert [(turn.role, turn.content) for turn in conversation.turns] == [("user", ASKED), ("assistant", answer)]


def test_of_a_conversation_only_the_answers_that_differ_are_trained() -> None:
    prompt = [{"role": "system", "content": "Be brief."}, USER, said("Yes?"), {"role": "user", "content": "Again"}]
    for row in (
        {"prompt": prompt, "chosen": [said(GOOD)], "rejected": [said(BAD)]},
        {"chosen": [*prompt, said(GOOD)], "rejected": [*prompt, said(BAD)]},
        {"system": "Be brief.", "conversations": prompt[1:], "chosen": said(GOOD), "rejected": said(BAD)},
    ):
        read = formats.parse(row, "preference", has_template=True)
        assert isinstance(read, Preference)
        trained = [[turn.content for turn in one.turns if turn.trained] for one in (read.chosen, read.rejected)]
        assert trained == [[GOOD], [BAD]]
        assert len(read.chosen.turns) == 5


def test_without_a_template_texts_are_joined() -> None:
    read = formats.parse(SPELLINGS["texts"], "preference", has_template=False)
    assert read == Preference(Pair(ASKED, GOOD), Pair(ASKED, BAD))


@pytest.mark.parametrize(
    ("row", "reason"),
    {
        "no rejected": ({"prompt": ASKED, "chosen": GOOD}, "row.missing_key"),
        "an empty answer": ({"prompt": ASKED, "chosen": GOOD, "rejected": ""}, "row.empty"),
        "blanks": ({"prompt": ASKED, "chosen": GOOD, "rejected": "  "}, "row.empty"),
        "no prompt": ({"chosen": GOOD, "rejected": BAD}, "row.missing_key"),
        "the same twice": ({"prompt": ASKED, "chosen": GOOD, "rejected": GOOD}, "row.same_answers"),
        "one conversation twice": ({"chosen": [USER, said(GOOD)], "rejected": [USER, said(GOOD)]}, "row.same_answers"),
        "a number": ({"prompt": ASKED, "chosen": 1, "rejected": BAD}, "row.wrong_type"),
        "no answer": (
            {"prompt": [USER], "chosen": [{"role": "tool", "content": GOOD}], "rejected": [said(BAD)]},
            "row.no_assistant",
        ),
        "another prompt": (
            {"prompt": "Bye", "chosen": [USER, said(GOOD)], "rejected": [USER, said(BAD)]},
            "row.differ",
        ),
        "different questions": (
            {"chosen": [USER, said(GOOD)], "rejected": [{"role": "user", "content": "Who are you?"}, said(BAD)]},
            "row.other_prompt",
        ),
        "a system prompt on one side": (
            {"chosen": [{"role": "system", "content": "Be kind."}, USER, said(GOOD)], "rejected": [USER, said(BAD)]},
            "row.other_prompt",
        ),
        "different second questions": (
            {
                "chosen": [USER, said("Yes?"), {"role": "user", "content": "Again"}, said(GOOD)],
                "rejected": [USER, said("Yes?"), {"role": "user", "content": "Louder"}, said(BAD)],
            },
            "row.other_prompt",
        ),
        "an unknown speaker": (
            {"chosen": [USER, {"role": "bot", "content": GOOD}], "rejected": [USER, {"role": "bot", "content": BAD}]},
            "row.unknown_role",
        ),
        "the prompt again in one answer": (
            {"prompt": ASKED, "chosen": [USER, said(GOOD)], "rejected": BAD},
            "row.whole_answer",
        ),
        "one whole conversation": ({"chosen": [said(GOOD)], "rejected": [USER, said(BAD)]}, "row.whole_answer"),
        "an image": ({"prompt": ASKED, "chosen": GOOD, "rejected": BAD, "images": ["a.png"]}, "row.media"),
    }.values(),
)
def test_a_bad_row_says_why(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRow) as bad:
        formats.parse(row, "preference", has_template=True)
    assert bad.value.reason == reason


def test_a_history_comes_before_the_instruction_and_is_not_trained() -> None:
    turns = [ASKED, "Yes?", "Who are you?\nBriefly"]
    asked = {"instruction": "Who are you?", "input": "Briefly", "history": [[ASKED, "Yes?"]]}
    pair = formats.parse({**asked, "chosen": GOOD, "rejected": BAD}, "preference", has_template=True)
    judged = formats.parse({**asked, "completion": GOOD, "label": True}, "labelled", has_template=True)
    assert isinstance(pair, Preference)
    assert isinstance(judged, Judged)
    for conversation, answer in ((pair.chosen, GOOD), (pair.rejected, BAD), (judged.answer, GOOD)):
        assert isinstance(conversation, Conversation)
        assert [turn.content for turn in conversation.turns] == [*turns, answer]
        assert [turn.content for turn in conversation.turns if turn.role == "assistant" and turn.trained] == [answer]
    with pytest.raises(BadRow) as bad:
        formats.parse({**asked, "chosen": GOOD, "rejected": BAD}, "preference", has_template=False)
    assert bad.value.reason == "row.needs_template"


@pytest.mark.parametrize("history", ["Hi", 5, [["Hi"]], [["Hi", 1]]])
def test_a_history_that_is_no_list_of_pairs_makes_a_bad_row(history: Any) -> None:
    row = {"instruction": ASKED, "history": history}
    for given, format_ in (
        ({**row, "chosen": GOOD, "rejected": BAD}, "preference"),
        ({**row, "output": GOOD}, "alpaca"),
        (row, "prompt"),
    ):
        with pytest.raises(BadRow) as bad:
            formats.parse(given, format_, has_template=True)
        assert bad.value.reason == "row.wrong_type"


def test_messages_need_a_template() -> None:
    with pytest.raises(BadRow) as bad:
        formats.parse(SPELLINGS["messages"], "preference", has_template=False)
    assert bad.value.reason == "row.needs_template"


def test_rows_fit_their_objective_or_are_bad() -> None:
    pair, judged, text = (
        Preference(Pair("a", "b"), Pair("a", "c")),
        Judged(Pair("a", "b"), good=True),
        formats.Text("a"),
    )
    for document, name in ((pair, "dpo"), (pair, "reward"), (judged, "kto"), (text, "sft")):
        assert formats.fitting(document, objectives.facts(name)) is document
    for document, name, reason in (
        (pair, "sft", "row.preference"),
        (judged, "sft", "row.preference"),
        (text, "dpo", "row.no_preference"),
        (judged, "orpo", "row.no_preference"),
        (pair, "kto", "row.no_label"),
    ):
        bad = formats.fitting(document, objectives.facts(name))
        assert isinstance(bad, BadRow)
        assert bad.reason == reason


# ---- one answer with a label

JUDGED: dict[str, dict[str, Any]] = {
    "texts": {"prompt": ASKED, "completion": GOOD, "label": True},
    "messages": {"prompt": [USER], "completion": [said(GOOD)], "label": True},
    "a whole conversation": {"messages": [USER, said(GOOD)], "label": True},
    "sharegpt": {
        "conversations": [{"from": "human", "value": ASKED}, {"from": "gpt", "value": GOOD}],
        "label": True,
    },
}


@pytest.mark.parametrize("row", JUDGED.values(), ids=JUDGED.keys())
def test_every_spelling_of_a_judged_answer_is_recognised_and_means_the_same(row: dict[str, Any]) -> None:
    for label in (True, False):
        layout = formats.detect([{**row, "label": label}])
        assert layout is not None
        assert layout.format == "labelled"
        assert layout.keys[-1] == "label"
        read = formats.parse({**row, "label": label}, "labelled", has_template=True)
        assert isinstance(read, Judged)
        assert read.good is label
        assert [(turn.role, turn.content) for turn in read.answer.turns] == [("user", ASKED), ("assistant", GOOD)]


@pytest.mark.parametrize(("label", "good"), [("true", True), ("True", True), ("FALSE ", False)])
def test_a_table_has_its_verdicts_as_text(label: str, good: bool) -> None:
    read = formats.parse({**JUDGED["texts"], "label": label}, "labelled", has_template=True)
    assert isinstance(read, Judged)
    assert read.good is good


@pytest.mark.parametrize(
    "row",
    [
        {"question": ASKED, "answer": BAD},
        {"query": ASKED, "response": BAD},
        {"prompt": ASKED, "response": BAD},
        {"instruction": ASKED, "output": BAD},
        {"messages": [USER, said(BAD)]},
        {"conversations": [{"from": "human", "value": ASKED}, {"from": "gpt", "value": BAD}]},
    ],
    ids=lambda row: "-".join(row),
)
def test_no_spelling_of_a_judged_answer_is_trained_as_a_good_one(row: dict[str, Any]) -> None:
    layout = formats.detect([row])
    assert layout is not None
    for label in ("greeting", 0, 1, 2, "1", None):
        assert formats.detect([{**row, "label": label}]) == layout
        formats.parse({**row, "label": label}, layout.format, has_template=True)
    for label in (True, False, "false"):
        with pytest.raises(BadRow) as bad:
            formats.parse({**row, "label": label}, layout.format, has_template=True)
        assert (bad.value.reason, bad.value.fields) == ("row.preference", {"key": "label"})
    for label in ("bad", "Good ", "no", "rejected", "坏"):
        assert formats.detect([{**row, "label": label}]) == layout
        with pytest.raises(BadRow) as bad:
            formats.parse({**row, "label": label}, layout.format, has_template=True)
        assert bad.value.reason == "row.label_word"
        assert json.dumps(label, ensure_ascii=False) in bad.value.text


def test_a_label_that_is_not_true_or_false_is_another_column() -> None:
    for row, format_ in ((JUDGED["texts"], "prompt_completion"), (JUDGED["a whole conversation"], "messages")):
        layout = formats.detect([{**row, "label": "greeting"}])
        assert layout is not None
        assert layout.format == format_


@pytest.mark.parametrize("label", [1, 0, -1, 1.0, "good", "Bad ", "no", "好"])
def test_a_verdict_in_other_words_is_named_and_never_trained_as_an_answer(label: Any) -> None:
    row = {**JUDGED["texts"], "label": label}
    layout = formats.detect([row])
    assert layout is not None
    assert layout.format == "labelled"
    with pytest.raises(BadRow) as refused:
        row_values.refuse_preferences(row)
    read = formats.document(row, layout, has_template=True)
    asked = {name: formats.fitting(read, objectives.facts(name)) for name in ("kto", "sft")}
    for bad, reason in ((refused.value, "label_word"), (asked["sft"], "label_word"), (asked["kto"], "label_value")):
        assert isinstance(bad, BadRow)
        assert bad.reason == f"row.{reason}"
        assert json.dumps(label, ensure_ascii=False) in bad.text
        assert ("train.objective" in bad.text) == (reason == "label_word")


def test_of_a_judged_conversation_only_the_last_answer_is_trained() -> None:
    row = {"messages": [USER, said("Yes?"), {"role": "user", "content": "Again"}, said(BAD)], "label": False}
    read = formats.parse(row, "labelled", has_template=True)
    assert isinstance(read, Judged)
    assert [turn.content for turn in read.answer.turns if turn.trained] == [BAD]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": ASKED, "completion": GOOD}, "row.no_label"),
        ({"prompt": ASKED, "completion": GOOD, "label": 1}, "row.label_value"),
        ({"prompt": ASKED, "completion": GOOD, "label": "good"}, "row.label_value"),
        ({"prompt": ASKED, "completion": GOOD, "label": "greeting"}, "row.no_label"),
        ({"prompt": ASKED, "completion": "", "label": True}, "row.empty"),
        ({"completion": GOOD, "label": True}, "row.missing_key"),
        ({"prompt": ASKED, "completion": [USER, said(GOOD)], "label": True}, "row.whole_answer"),
        ({"messages": [USER], "label": True}, "row.no_assistant"),
        ({"messages": [USER, said(GOOD), USER], "label": True}, "row.no_assistant"),
    ],
)
def test_a_judged_row_that_says_nothing_is_bad(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRow) as bad:
        formats.parse(row, "labelled", has_template=True)
    assert bad.value.reason == reason


def test_without_a_template_a_judged_answer_is_text() -> None:
    assert formats.parse(JUDGED["texts"], "labelled", has_template=False) == Judged(Pair(ASKED, GOOD), good=True)
    with pytest.raises(BadRow) as bad:
        formats.parse(JUDGED["messages"], "labelled", has_template=False)
    assert bad.value.reason == "row.needs_template"
