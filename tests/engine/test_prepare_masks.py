"""Which tokens are trained, exactly, for every layout of rows and kind of template."""

from pathlib import Path
from typing import Any

import pytest
from prepare_case import CHATML, MARKED, Case, make_tokenizer

pytestmark = pytest.mark.filterwarnings("default")

TURN = [{"role": "user", "content": "How many wagons?"}, {"role": "assistant", "content": "Seven."}]
TURN_RUNS = [
    ("<|im_start|>user\nHow many wagons?<|im_end|>\n<|im_start|>assistant\n", False),
    ("Seven.<|im_end|>", True),
    ("\n", False),
]
CHINESE = [{"role": "user", "content": "你好，世界 👋🏽"}, {"role": "assistant", "content": "七节车厢 👨‍👩‍👧🎉"}]


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(tmp_path, monkeypatch)


def plain_ids(case: Case, messages: list[dict[str, str]]) -> list[int]:
    """The whole conversation as transformers renders and tokenises it."""
    from transformers import AutoTokenizer

    ids: list[int] = AutoTokenizer.from_pretrained(case.tokenizer).apply_chat_template(messages)["input_ids"]
    return ids


LAYOUTS: dict[str, dict[str, Any]] = {
    "messages": {"messages": TURN},
    "sharegpt human/gpt": {
        "conversations": [{"from": "human", "value": "How many wagons?"}, {"from": "gpt", "value": "Seven."}]
    },
    "sharegpt user/assistant": {
        "conversations": [{"from": "user", "value": "How many wagons?"}, {"from": "assistant", "value": "Seven."}]
    },
    "alpaca": {"instruction": "How many wagons?", "input": "", "output": "Seven."},
    "prompt/completion": {"prompt": "How many wagons?", "completion": "Seven."},
    "question/answer": {"question": "How many wagons?", "answer": "Seven."},
    "query/response": {"query": "How many wagons?", "response": "Seven."},
}


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["unmarked", "marked"])
@pytest.mark.parametrize("row", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_layout_trains_the_answer_and_its_end_also_where_pad_is_eos(
    case: Case, row: dict[str, Any], template: str
) -> None:
    make_tokenizer(case.tokenizer, template)
    prepared = case.prepare([row])
    assert prepared.only() == TURN_RUNS
    assert prepared.ids(prepared.segments()[0]) == plain_ids(case, TURN)


def test_alpaca_with_input_puts_it_below_the_instruction(case: Case) -> None:
    make_tokenizer(case.tokenizer)
    prepared = case.prepare([{"instruction": "Count", "input": "wagons", "output": "Seven."}])
    assert prepared.only()[0][0] == "<|im_start|>user\nCount\nwagons<|im_end|>\n<|im_start|>assistant\n"


def test_alpaca_history_and_system_become_turns_and_each_answer_is_trained(case: Case) -> None:
    make_tokenizer(case.tokenizer)
    row = {"system": "Be brief", "history": [["a?", "b"]], "instruction": "c?", "output": "d"}
    assert case.prepare([row]).only() == [
        ("<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\n", False),
        ("b<|im_end|>", True),
        ("\n<|im_start|>user\nc?<|im_end|>\n<|im_start|>assistant\n", False),
        ("d<|im_end|>", True),
        ("\n", False),
    ]


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["unmarked", "marked"])
@pytest.mark.parametrize("trim", [False, True], ids=["whole offsets", "trimmed offsets"])
def test_chinese_and_emoji_of_several_turns_are_cut_at_the_right_token(
    case: Case, template: str, *, trim: bool
) -> None:
    make_tokenizer(case.tokenizer, template, trim=trim)
    messages = [*CHINESE, {"role": "user", "content": " 再 "}, {"role": "assistant", "content": "  好\n\n "}]
    prepared = case.prepare([{"messages": messages}])
    assert prepared.only() == [
        ("<|im_start|>user\n你好，世界 👋🏽<|im_end|>\n<|im_start|>assistant\n", False),
        ("七节车厢 👨‍👩‍👧🎉<|im_end|>", True),
        ("\n<|im_start|>user\n 再 <|im_end|>\n<|im_start|>assistant\n", False),
        ("  好\n\n <|im_end|>", True),
        ("\n", False),
    ]
    assert prepared.ids(prepared.segments()[0]) == plain_ids(case, messages)


def test_content_in_parts_is_joined(case: Case) -> None:
    make_tokenizer(case.tokenizer)
    parts = [{"type": "text", "text": "How many "}, {"type": "text", "text": "wagons?"}]
    assert case.prepare([{"messages": [{"role": "user", "content": parts}, TURN[1]]}]).only() == TURN_RUNS


def test_a_turn_that_ends_with_eos_of_its_own_trains_it(case: Case) -> None:
    template = (
        "{% for m in messages %}{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + m['content'] + ' [/INST]' }}"
        "{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
    )
    make_tokenizer(case.tokenizer, template, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    prepared = case.prepare([{"messages": [*TURN, *TURN]}])
    prompt, answer = ("<s>[INST] How many wagons? [/INST]", False), (" Seven.</s>", True)
    assert prepared.only() == [prompt, answer, prompt, answer]


def test_a_template_that_marks_only_the_words_still_trains_the_end_of_turn(case: Case) -> None:
    template = MARKED.replace(
        "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}",
        "{{ message['content'] }}{% endgeneration %}{{ '<|im_end|>' }}",
    )
    make_tokenizer(case.tokenizer, template)
    assert case.prepare([{"messages": TURN}]).only() == TURN_RUNS


def test_a_template_that_writes_the_last_turn_another_way_is_followed(case: Case) -> None:
    """As reasoning models do: empty thoughts before the last answer only, though the earlier one was last once."""
    thoughts = "('<think></think>' if loop.last and message['role'] == 'assistant' else '')"
    template = CHATML.replace("message['content'] +", f"{thoughts} + message['content'] +")
    make_tokenizer(case.tokenizer, template)
    prepared = case.prepare([{"messages": [*TURN, *TURN]}])
    assert prepared.only() == [
        *TURN_RUNS[:2],
        ("\n" + TURN_RUNS[0][0] + "<think></think>", False),
        ("Seven.<|im_end|>", True),
        ("\n", False),
    ]
    assert prepared.ids(prepared.segments()[0]) == plain_ids(case, [*TURN, *TURN])


def test_a_template_that_always_appends_a_prompt_does_not_train_it(case: Case) -> None:
    template = CHATML.split("{% if add_generation_prompt", maxsplit=1)[0] + "{{ '<|im_start|>assistant\n' }}"
    make_tokenizer(case.tokenizer, template)
    prompt, answer, _ = TURN_RUNS
    assert case.prepare([{"messages": TURN}]).only() == [prompt, answer, ("\n<|im_start|>assistant\n", False)]


def test_a_template_whose_prompt_is_not_in_the_rendering_is_refused(case: Case) -> None:
    make_tokenizer(case.tokenizer, CHATML.replace("assistant\n' }}{% endif", "assistant\n<think>' }}{% endif"))
    (problem,) = case.errors([{"messages": TURN}])
    assert problem.startswith("train.jsonl:1: the row cannot be used: the chat template rewrites earlier text")


def test_answers_that_repeat_are_not_confused_where_turns_have_no_end_of_their_own(case: Case) -> None:
    template = (
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% else %}{{ eos_token }}{% endif %}"
    )
    make_tokenizer(case.tokenizer, template)
    (problem,) = case.errors([{"messages": [*TURN, *TURN]}])
    assert "the chat template rewrites earlier text" in problem


def test_tools_and_tool_calls_reach_the_template(case: Case) -> None:
    template = (
        "{% if tools %}{{ 'tools: ' + tools[0]['name'] + '\n' }}{% endif %}"
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
        "{% for c in m['tool_calls'] or [] %}{{ 'call ' + c['name'] }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    make_tokenizer(case.tokenizer, template)
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "count"}]}
    messages = [TURN[0], call, {"role": "tool", "content": "7"}, TURN[1]]
    assert case.prepare([{"messages": messages, "tools": [{"name": "count"}]}]).only() == [
        ("tools: count\n<|im_start|>user\nHow many wagons?<|im_end|>\n<|im_start|>assistant\n", False),
        ("call count<|im_end|>", True),
        ("\n<|im_start|>tool\n7<|im_end|>\n<|im_start|>assistant\n", False),
        ("Seven.<|im_end|>", True),
        ("\n", False),
    ]


# ---- without a template


def test_prompt_and_completion_without_a_template_train_the_completion_and_eos(case: Case) -> None:
    make_tokenizer(case.tokenizer, None, eos_token="<|endoftext|>")
    assert case.prepare([{"prompt": "列车：", "completion": "七节 🎉"}]).only() == [
        ("列车：", False),
        ("七节 🎉<|endoftext|>", True),
    ]


def test_alpaca_without_a_template_has_its_own_plain_layout(case: Case) -> None:
    make_tokenizer(case.tokenizer, None)
    rows = [
        {"instruction": "Count", "input": "wagons", "output": "Seven."},
        {"instruction": "Count", "output": "Seven."},
    ]
    first, second = (prepared := case.prepare(rows)).segments()
    answer = ("Seven.<|im_end|>", True)
    assert prepared.runs(first) == [
        ("### Instruction:\nCount\n\n### Input:\nwagons\n\n### Response:\n", False),
        answer,
    ]
    assert prepared.runs(second) == [("### Instruction:\nCount\n\n### Response:\n", False), answer]


def test_conversations_without_a_template_are_refused_by_name(case: Case) -> None:
    from stoker.errors import StokerError

    make_tokenizer(case.tokenizer, None)
    with pytest.raises(StokerError) as caught:
        case.prepare([{"messages": TURN}])
    assert (caught.value.code, caught.value.where) == ("STK306", "train.jsonl")


# ---- text and pretraining


@pytest.mark.parametrize("objective", ["sft", "pretrain"])
def test_text_is_trained_whole_but_for_its_first_token(case: Case, objective: str) -> None:
    make_tokenizer(case.tokenizer)
    prepared = case.prepare([{"text": "The train never stops."}], train={"objective": objective})
    (segment,) = prepared.segments()
    assert "".join(text for text, _ in prepared.runs(segment)) == "The train never stops.<|im_end|>"
    assert (segment < 0).tolist() == [True] + [False] * (len(segment) - 1)


def test_a_tokenizer_that_adds_bos_puts_it_before_plain_text_only(case: Case) -> None:
    from tokenizers import Tokenizer, processors

    make_tokenizer(case.tokenizer, bos_token="<s>")
    path = str(case.tokenizer / "tokenizer.json")
    core = Tokenizer.from_file(path)
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 3)])
    core.save(path)
    prepared = case.prepare([{"text": "stop"}, {"text": "go"}])
    assert prepared.texts() == ["<s>stop<|im_end|>", "<s>go<|im_end|>"]
    assert prepared.runs(prepared.segments()[0])[0] == ("<s>", False)
    assert case.prepare([{"messages": TURN}], name="chat").only() == TURN_RUNS


def test_pretraining_on_conversations_trains_every_token_of_the_rendering(case: Case) -> None:
    make_tokenizer(case.tokenizer)
    prepared = case.prepare([{"messages": TURN}], train={"objective": "pretrain"})
    (segment,) = prepared.segments()
    assert prepared.ids(segment) == plain_ids(case, TURN)
    assert (segment < 0).tolist() == [True] + [False] * (len(segment) - 1)


def test_long_text_is_split_and_every_token_is_there_once(case: Case) -> None:
    make_tokenizer(case.tokenizer)
    text = " ".join(f"wagon {i}" for i in range(200))
    prepared = case.prepare([{"text": text}], data={"length": 16})
    assert "".join(prepared.texts()) == text + "<|im_end|>"
    assert prepared.report.truncated_rows == 0
    assert {len(segment) for segment in prepared.segments()[:-1]} <= {15, 16}
    assert all((segment >= 0).any() for segment in prepared.segments())


def test_a_long_answer_is_cut_at_the_length_and_counted(case: Case) -> None:
    make_tokenizer(case.tokenizer)
    rows = [{"prompt": "Count", "completion": "seven " * 50}, {"prompt": "Count", "completion": "7"}]
    prepared = case.prepare(rows, data={"length": 40})
    assert len(prepared.segments()[0]) == 40
    assert prepared.report.truncated_rows == 1
