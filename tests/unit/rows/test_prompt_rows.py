"""Rows as prompts: any spelling of what is asked, without the answer; what asks nothing is a bad row."""

import pytest

from stoker.config import objectives
from stoker.config.columns import Columns
from stoker.rows import formats, prompt_rows
from stoker.rows.prompt_rows import PromptRow
from stoker.rows.row_values import BadRow
from stoker.rows.turns import Conversation

ASKED = [{"role": "user", "content": "2 + 2?"}]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "2 + 2?", "answer": "4"},
        {"question": "2 + 2?", "answer": "4"},
        {"problem": "2 + 2?"},
        {"instruction": "2 + 2?", "input": "", "output": "4"},
        {"prompt": ASKED},
        {"messages": [*ASKED, {"role": "assistant", "content": "4"}]},
        {"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]},
        {"prompt": "2 + 2?", "chosen": "4", "rejected": "5"},
    ],
)
def test_every_spelling_gives_one_prompt_without_the_answer(row: dict[str, object]) -> None:
    found = prompt_rows.read(row, has_template=True)
    is_text = not any(isinstance(value, list) for value in row.values())
    assert found.prompt == ("2 + 2?" if is_text else ASKED)  # as TRL tells a reward: text stays text
    assert isinstance(found.asked, Conversation)
    assert [(turn.role, turn.content) for turn in found.asked.turns] == [("user", "2 + 2?")]


def test_earlier_answers_and_the_system_message_stay() -> None:
    earlier = [*ASKED, {"role": "assistant", "content": "4"}, {"role": "user", "content": "and 3 + 3?"}]
    found = prompt_rows.read({"messages": earlier, "system": "Be brief."}, has_template=True).prompt
    assert found == [{"role": "system", "content": "Be brief."}, *earlier]


def test_a_history_comes_before_the_instruction() -> None:
    row = {"instruction": "and 3 + 3?", "input": "", "output": "6", "history": [["2 + 2?", "4"]]}
    found = prompt_rows.read(row, has_template=True)
    asked = [*ASKED, {"role": "assistant", "content": "4"}, {"role": "user", "content": "and 3 + 3?"}]
    assert found.prompt == asked
    with pytest.raises(BadRow) as caught:
        prompt_rows.read(row, has_template=False)
    assert caught.value.reason == "row.needs_template"
    assert prompt_rows.read({**row, "history": []}, has_template=False) == PromptRow("and 3 + 3?")


def test_without_a_template_a_prompt_is_text() -> None:
    assert prompt_rows.read({"prompt": "2 + 2?"}, has_template=False) == PromptRow("2 + 2?")
    with pytest.raises(BadRow) as caught:
        prompt_rows.read({"messages": ASKED}, has_template=False)
    assert caught.value.reason == "row.needs_template"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"answer": "4"}, "row.no_prompt"),
        ({"prompt": " "}, "row.empty"),
        ({"messages": [{"role": "assistant", "content": "4"}]}, "row.no_prompt"),
        ({"messages": [{"role": "system", "content": "Be brief."}]}, "row.no_prompt"),
        ({"messages": [{"role": "tool", "content": "4"}]}, "row.first_role"),
    ],
)
def test_a_row_that_asks_nothing_is_bad(row: dict[str, object], reason: str) -> None:
    with pytest.raises(BadRow) as caught:
        prompt_rows.read(row, has_template=True)
    assert caught.value.reason == reason


def test_a_column_by_another_name_is_the_prompt() -> None:
    row, grpo = {"task": "2 + 2?", "answer": "4"}, objectives.BUILT_IN["grpo"]
    layout = formats.layout([row], Columns(prompt="task"), grpo)
    assert formats.document(row, layout, has_template=False) == PromptRow("2 + 2?")
    assert formats.layout([row], None, grpo) is None
    asked = [{"role": "user", "content": "2 + 2?"}]
    said = formats.document({"task": asked}, layout, has_template=True)
    assert isinstance(said, PromptRow)
    assert said.prompt == asked


def test_text_is_no_prompt_and_a_prompt_fits_only_who_generates() -> None:
    asked = PromptRow("2 + 2?")
    text = formats.document({"text": "2 + 2"}, formats.forced("text"), has_template=False)
    assert formats.fitting(asked, objectives.BUILT_IN["grpo"]) is asked
    bad = formats.fitting(text, objectives.BUILT_IN["grpo"])
    assert isinstance(bad, BadRow)
    assert bad.reason == "row.no_prompt"
