"""Every trained span of every conversation shape is right, or its row is refused by name: with real chat templates."""

from pathlib import Path
from typing import Any

import pytest
import row_shapes
import tokenizers
from prepare_case import CHATML, MARKED, Case, Runs, make_tokenizer
from row_shapes import SHAPES

from stoker import messages
from stoker.engine import show
from stoker.rundir import layout, prepared

pytestmark = pytest.mark.filterwarnings("default")

USER = {"role": "user", "content": "How many wagons?"}
ANSWER = {"role": "assistant", "content": "Seven."}


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(tmp_path, monkeypatch)


def test_every_trained_span_of_real_templates_is_right_or_its_row_is_refused(case: Case) -> None:
    found = [cell for name, text in row_shapes.templates().items() for cell in row_shapes.cells(case, name, text)]
    counts = row_shapes.counted(found)
    print(counts)
    assert len({cell.template for cell in found}) >= 25
    assert counts["wrong"] == 0, "\n".join(
        f"{cell.template}, {cell.shape}: {cell.reason}" for cell in found if cell.verdict == "wrong"
    )
    assert counts["right"] > 3 * counts["refused"]
    refused = {(cell.template, cell.shape) for cell in found if cell.verdict == "refused"}
    assert not [shape for shape in SHAPES for name in ("qwen3", "qwen3_8", "glm4moe") if (name, shape) in refused]


PROMPT, END = "<|im_start|>user\nuone asks<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>"
CALL = '<tool_call>\n{"name": "fnweather", "arguments": {"keycity": "valParis"}}\n</tool_call>'
DOUBLE = '<tool_call>\n{"name": "fnweather", "arguments": "{\\"keycity\\": \\"valParis\\"}"}\n</tool_call>'
WRONG: dict[str, tuple[str, Runs]] = {
    "no end": ("plain", [(PROMPT, False), ("aone says", True), (END, False)]),
    "the question": ("plain", [("<|im_start|>user\n", False), ("uone asks", True), ("aone says" + END, True)]),
    "an empty answer": ("plain", [(PROMPT, False), (END, True)]),
    "an empty thought": ("plain", [(PROMPT, False), ("<think>\n\n</think>\n\naone says" + END, True)]),
    "another's beginning": ("plain", [(PROMPT, False), (f"aone says{END}<|im_start|>user{END}", True)]),
    "a lost call": ("call without tools", [(PROMPT, False), (END, True)]),
    "a call encoded twice": ("call without tools", [(PROMPT, False), (DOUBLE + END, True)]),
    "a lost thought": ("thinking as a field", [(PROMPT, False), ("aone says" + END, True)]),
}


@pytest.mark.parametrize(("shape", "runs"), WRONG.values(), ids=WRONG.keys())
def test_the_oracle_sees_what_is_wrong(shape: str, runs: Runs) -> None:
    assert row_shapes.fault(runs, SHAPES[shape], (END,))


@pytest.mark.parametrize(("shape", "said"), [("plain", "aone says"), ("call without tools", CALL)])
def test_the_oracle_sees_nothing_where_nothing_is_wrong(shape: str, said: str) -> None:
    assert not row_shapes.fault([(PROMPT, False), (said + END, True), ("\n", False)], SHAPES[shape], (END,))


@pytest.mark.parametrize("as_text", [True, False])
def test_arguments_are_trained_once_encoded_whatever_the_row_has(case: Case, *, as_text: bool) -> None:
    make_tokenizer(case.tokenizer, row_shapes.templates()["qwen2_5"])
    arguments: Any = '{"city": "Paris"}' if as_text else {"city": "Paris"}
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    row = {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]}
    assert case.prepare([row], data={"length": 500}).only()[1] == (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>',
        True,
    )


def refusal(case: Case, template: str, *turns: dict[str, Any], **rest: Any) -> str:
    make_tokenizer(case.tokenizer, template)
    good = {"messages": [USER, ANSWER]}
    (problem,) = case.errors([good, {"messages": [USER, *turns], **rest}])
    return problem.removeprefix("train.jsonl:2: the row cannot be used: ")


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["unmarked", "marked"])
def test_what_a_template_loses_is_a_bad_row_by_name(case: Case, template: str) -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "count", "arguments": "{}"}]}
    lost = messages.text("row.template_loses", part=messages.text("part.call"))
    assert refusal(case, template, call) == lost
    assert refusal(case, template, ANSWER, tools=[{"name": "count"}]) == f"train.jsonl:2: {messages.text('STK318')}"
    without_system = template.replace("{% for message in messages %}", "{% for message in messages[1:] %}")
    make_tokenizer(case.tokenizer, without_system)
    (problem,) = case.errors([{"messages": [{"role": "system", "content": "Be brief."}, USER, ANSWER]}])
    assert problem.endswith(messages.text("row.template_loses", part=messages.text("part.system")))


def test_words_that_a_template_changes_are_a_bad_row(case: Case) -> None:
    """The shape is kept, this row's words are not."""
    template = CHATML.replace("message['content'] +", "message['content'].replace('Seven', 'Eight') +")
    make_tokenizer(case.tokenizer, template)
    rows = [{"messages": [USER, {"role": "assistant", "content": content}]} for content in ("Six.", "Seven.")]
    (problem,) = case.errors(rows)
    lost = messages.text("row.template_loses", part=messages.text("part.assistant"))
    assert problem == f"train.jsonl:2: the row cannot be used: {lost}"


CALLS = {"role": "assistant", "content": None}
BAD_MESSAGES: dict[str, tuple[dict[str, Any], str]] = {
    "half a weight": ({**ANSWER, "weight": 0.5}, "row.mark"),
    "a mark in words": ({**ANSWER, "train": "no"}, "row.mark"),
    "nothing is trained": ({**ANSWER, "weight": 0}, "row.none_trained"),
    "a call is text": ({**CALLS, "tool_calls": ["count"]}, "row.call"),
    "a call without a name": ({**CALLS, "tool_calls": [{"function": {"arguments": {}}}]}, "row.call"),
    "two thoughts": ({"role": "assistant", "content": "<think>a</think>b", "reasoning": "c"}, "row.two_thoughts"),
    "a function call that is no JSON": ({"role": "function_call", "content": "count()"}, "row.call"),
    "an empty list of calls": ({"role": "function_call", "content": "[]"}, "row.call"),
}


@pytest.mark.parametrize(("turn", "reason"), BAD_MESSAGES.values(), ids=BAD_MESSAGES.keys())
def test_a_message_that_cannot_be_meant_is_a_bad_row(case: Case, turn: dict[str, Any], reason: str) -> None:
    fields = {"key": "train" if "train" in turn else "weight"} if reason == "row.mark" else {}
    assert refusal(case, CHATML, turn) == messages.text(reason, **fields)


def test_arguments_that_are_no_object_and_a_trained_question_are_bad_rows(case: Case) -> None:
    for arguments in ("[1]", "{city", [1]):
        call = {**CALLS, "tool_calls": [{"name": "count", "arguments": arguments}]}
        assert refusal(case, CHATML, call) == messages.text("row.arguments", name="count")
    asked = messages.text("row.mark_role", key="train", role="user")
    assert refusal(case, CHATML, ANSWER, {**USER, "train": True}, ANSWER) == asked


def test_a_thought_that_a_template_leaves_out_of_earlier_turns_makes_them_context(case: Case) -> None:
    make_tokenizer(case.tokenizer, row_shapes.templates()["qwen3"])
    thinking = {"role": "assistant", "content": "<think>\nI count.\n</think>\n\nSeven."}
    prepared = case.prepare([{"messages": [USER, thinking, USER, thinking]}], data={"length": 500})
    assert prepared.report.context_answers == 1
    assert prepared.only() == [
        (
            "<|im_start|>user\nHow many wagons?<|im_end|>\n<|im_start|>assistant\nSeven.<|im_end|>\n"
            "<|im_start|>user\nHow many wagons?<|im_end|>\n<|im_start|>assistant\n",
            False,
        ),
        ("<think>\nI count.\n</think>\n\nSeven.<|im_end|>", True),
        ("\n", False),
    ]


@pytest.mark.parametrize("thought", ["", "<think>\nI count.\n</think>\n\n"])
@pytest.mark.parametrize("template", ["qwen3", "qwen2_5"])
def test_the_indentation_of_an_answer_is_trained(case: Case, template: str, thought: str) -> None:
    make_tokenizer(case.tokenizer, row_shapes.templates()[template])
    answer = {"role": "assistant", "content": f"{thought}    return 7"}
    found = case.prepare([{"messages": [USER, answer]}], data={"length": 500}).only()
    learned = [text for text, trained in found if trained]
    assert learned == [f"{thought}    return 7<|im_end|>"]


def test_a_header_that_takes_white_space_along_is_not_trained(case: Case) -> None:
    template = (
        "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
    )
    make_tokenizer(case.tokenizer, template)
    path = case.tokenizer / "tokenizer.json"
    core = tokenizers.Tokenizer.from_file(str(path))
    core.add_special_tokens([tokenizers.AddedToken("<|assistant|>", rstrip=True, special=True)])
    core.save(str(path))
    row = {"messages": [USER, {"role": "assistant", "content": "\n    return 7"}]}
    assert [text for text, trained in case.prepare([row]).only() if trained] == ["return 7<|im_end|>"]


def test_the_header_of_the_assistant_s_next_turn_does_not_end_the_one_before(case: Case) -> None:
    row_shapes.make_tokenizer(case.tokenizer, "glm4moe", row_shapes.templates()["glm4moe"])
    good, twice = {"messages": [USER, ANSWER, USER, ANSWER]}, {"messages": [USER, ANSWER, ANSWER]}
    (problem,) = case.errors([good, twice], data={"length": 500})
    assert problem == f"train.jsonl:2: the row cannot be used: {messages.text('row.template_end')}"


def test_a_last_turn_without_an_end_of_its_own_ends_with_the_end_of_text(case: Case) -> None:
    template = "{% for m in messages %}{{ '<s>' + m['role'] + '\n' + m['content'] }}{% endfor %}"
    prompt = "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
    make_tokenizer(case.tokenizer, template + prompt)
    assert case.prepare([{"messages": [USER, ANSWER]}]).only() == [
        ("<s>user\nHow many wagons?<s>assistant\n", False),
        ("Seven.<|im_end|>", True),
    ]


def test_show_shows_a_message_of_weight_0_untrained(case: Case) -> None:
    make_tokenizer(case.tokenizer, CHATML)
    found = case.prepare([{"messages": [USER, {**ANSWER, "weight": 0}, USER, ANSWER]}])
    (row,) = show.shown_rows(found.run_dir, found.report, 1)
    assert [text for text, trained in row["segments"][0] if trained] == ["Seven.<|im_end|>"]  # type: ignore[index]


def test_a_set_of_earlier_rules_is_prepared_again_unless_it_was_trained_on(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tokenizer(case.tokenizer, CHATML)
    run_dir = case.prepare([{"messages": [USER, ANSWER]}]).run_dir
    run, folder = run_dir.run(), run_dir.folder()
    assert prepared.current_report(run_dir, run, folder)
    monkeypatch.setattr(prepared, "ROWS", prepared.ROWS + 1)
    assert prepared.current_report(run_dir, run, folder) is None
    monkeypatch.setattr(layout, "was_trained", lambda _: True)
    assert prepared.current_report(run_dir, run, folder)
