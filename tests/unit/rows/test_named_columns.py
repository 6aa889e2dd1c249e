"""Columns by name: rows are read as if their columns had the names of a known format."""

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.config import columns as column_names
from stoker.config import load
from stoker.config.columns import Columns, Roles
from stoker.config.objectives import ObjectiveFacts
from stoker.errors import StokerError
from stoker.launch import raw_data
from stoker.rows import formats, named_columns, row_files, token_rates
from stoker.rows.formats import Document
from stoker.rows.row_values import BadRow
from stoker.rundir import inputs, prepared


def document(row: dict[str, Any], columns: Columns, *, has_template: bool = True) -> Document | BadRow:
    return formats.document(row, formats.by_columns(columns), has_template=has_template)


def plain(row: dict[str, Any], *, has_template: bool = True) -> Document | BadRow:
    return formats.document(row, formats.detect([row]), has_template=has_template)


SPEAKERS = Columns(
    messages="dialogue",
    role="who",
    content="says",
    system="rules",
    tools="functions",
    roles=Roles(user="customer", assistant="agent", tool="result", function_call="call"),
)
CASES: list[tuple[dict[str, Any], Columns, dict[str, Any]]] = [
    ({"body": "a", "title": "b"}, Columns(text="body"), {"text": "a"}),
    ({"q": "a", "r": "b"}, Columns(prompt="q", answer="r"), {"prompt": "a", "completion": "b"}),
    # A swap must not be mistaken for the names as they are.
    ({"answer": "a", "prompt": "b"}, Columns(prompt="answer", answer="prompt"), {"prompt": "a", "completion": "b"}),
    (
        {"q": "a", "r": "b", "s": "c"},
        Columns(prompt="q", answer="r", system="s"),
        {"prompt": "a", "completion": "b", "system": "c"},
    ),
    (
        {"q": "a", "more": "x", "r": "b", "past": [["c", "d"]]},
        Columns(prompt="q", input="more", answer="r", history="past"),
        {"instruction": "a", "input": "x", "output": "b", "history": [["c", "d"]]},
    ),
    (
        {
            "dialogue": [
                {"who": "customer", "says": "Rain?"},
                {"who": "call", "says": '{"name": "weather", "arguments": {}}'},
                {"who": "result", "says": "yes"},
                {"who": "agent", "says": "Yes.", "weight": 1},
            ],
            "rules": "Be brief.",
            "functions": [{"name": "weather"}],
        },
        SPEAKERS,
        {
            "conversations": [
                {"from": "human", "value": "Rain?"},
                {"from": "function_call", "value": '{"name": "weather", "arguments": {}}'},
                {"from": "observation", "value": "yes"},
                {"from": "gpt", "value": "Yes.", "weight": 1},
            ],
            "system": "Be brief.",
            "tools": [{"name": "weather"}],
        },
    ),
    (
        {"q": "a", "good": "b", "bad": "c", "s": "d"},
        Columns(prompt="q", chosen="good", rejected="bad", system="s"),
        {"prompt": "a", "chosen": "b", "rejected": "c", "system": "d"},
    ),
    # Only the answers are called otherwise.
    (
        {"prompt": "a", "good": "b", "bad": "c", "s": "d"},
        Columns(chosen="good", rejected="bad"),
        {"prompt": "a", "chosen": "b", "rejected": "c"},
    ),
    # The worse answer of a file that calls it `chosen`.
    (
        {"prompt": "a", "chosen": "b", "rejected": "c"},
        Columns(prompt="prompt", chosen="rejected", rejected="chosen"),
        {"prompt": "a", "chosen": "c", "rejected": "b"},
    ),
    (
        {"q": "a", "more": "x", "good": "b", "bad": "c"},
        Columns(prompt="q", input="more", chosen="good", rejected="bad"),
        {"instruction": "a", "input": "x", "chosen": "b", "rejected": "c"},
    ),
    (
        {"q": [{"role": "user", "content": "a"}], "good": "b", "bad": "c"},
        Columns(prompt="q", chosen="good", rejected="bad"),
        {"prompt": "a", "chosen": "b", "rejected": "c"},
    ),
    (
        {"q": "a", "reply": "b", "liked": False},
        Columns(prompt="q", completion="reply", label="liked"),
        {"prompt": "a", "completion": "b", "label": False},
    ),
    (
        {"talk": [{"who": "customer", "says": "a"}, {"who": "assistant", "says": "b"}], "liked": True},
        Columns(messages="talk", role="who", content="says", roles=Roles(user="customer"), label="liked"),
        {"prompt": "a", "completion": "b", "label": True},
    ),
    (
        {"talk": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
        Columns(messages="talk"),
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    ),
]


@pytest.mark.parametrize(("row", "columns", "usual"), CASES)
def test_a_row_is_read_as_one_with_the_usual_names(
    row: dict[str, Any], columns: Columns, usual: dict[str, Any]
) -> None:
    assert document(row, columns) == plain(usual)


def test_without_a_template_prompts_and_answers_are_plain_text() -> None:
    row, columns, usual = CASES[1]
    assert document(row, columns, has_template=False) == plain(usual, has_template=False)


@pytest.mark.parametrize(
    ("row", "columns", "key"),
    [
        ({"q": "a"}, Columns(prompt="q", answer="r"), "r"),
        ({"dialogue": [{"says": "a"}]}, SPEAKERS, "who"),
        ({"x": 1}, Columns(text="body"), "body"),
        ({"q": "a", "good": "b"}, Columns(prompt="q", chosen="good", rejected="bad"), "bad"),
        ({"q": "a", "reply": "b"}, Columns(prompt="q", completion="reply", label="liked"), "liked"),
    ],
)
def test_a_row_without_a_column_is_bad_by_the_name_it_has_in_the_file(
    row: dict[str, Any], columns: Columns, key: str
) -> None:
    bad = document(row, columns)
    assert isinstance(bad, BadRow)
    assert (bad.reason, bad.fields["key"]) == ("row.missing_key", key)


def test_pictures_are_refused_though_no_column_names_them() -> None:
    bad = document({"q": "a", "r": "b", "images": ["x.png"]}, Columns(prompt="q", answer="r"))
    assert isinstance(bad, BadRow)
    assert bad.reason == "row.media"


def test_the_better_answers_of_a_comparison_are_trained_where_they_are_named() -> None:
    row = {"prompt": "a", "chosen": "b", "rejected": "c"}
    assert document(row, Columns(prompt="prompt", answer="chosen")) == plain({"prompt": "a", "completion": "b"})
    assert isinstance(formats.fitting(plain({**row, "completion": "b"}), ObjectiveFacts("sft")), BadRow)


@pytest.mark.parametrize(
    ("columns", "format_"),
    [
        (Columns(text="a"), "text"),
        (Columns(prompt="a", answer="b"), "prompt_completion"),
        (Columns(prompt="a", answer="b", history="c"), "alpaca"),
        (Columns(messages="a", tools="b"), "messages"),
        (Columns(), None),
        (Columns(prompt="a"), "prompt"),
        (Columns(text="a", messages="b"), None),
        (Columns(text="a", system="b"), None),
        (Columns(prompt="a", answer="b", role="c"), None),
        (Columns(chosen="a", rejected="b"), "preference"),
        (Columns(prompt="a", completion="b", label="c"), "labelled"),
        (Columns(messages="a", label="b"), "labelled"),
        (Columns(prompt="a", chosen="b"), None),
        (Columns(prompt="a", answer="b", rejected="c"), None),
        (Columns(prompt="a", completion="b"), None),
    ],
)
def test_columns_make_one_layout_or_none(columns: Columns, format_: str | None) -> None:
    assert column_names.layout_of(columns) == format_


# ---- in files


def look(folder: Path, data: str, objective: str = "sft") -> raw_data.RawRows:
    run = load.parse(f"model: m\ndata: {data}\ntrain: {{objective: {objective}, batch: 8}}\n", "run.yaml")
    return raw_data.look(run, folder, token_rates.of("qwen2", 151_936))


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_a_column_that_no_row_has_is_answered_with_the_nearest(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"question_text": "a", "reply": "b"}] * 3)
    with pytest.raises(StokerError) as caught:
        look(tmp_path, "{train: a.jsonl, columns: {prompt: question_txt, answer: reply}}")
    assert caught.value.code == "STK360"
    assert "closest: `question_text`" in caught.value.hint
    assert look(tmp_path, "{train: a.jsonl, columns: {prompt: question_text, answer: reply}}").bad == []


def test_a_column_that_a_reward_reads_is_looked_for_before_a_model_is_loaded(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"prompt": "a", "solution": "b"}] * 3)
    objective = "grpo, grpo: {{group: 2, rewards: [{{exact: {{column: {}}}}}]}}"
    with pytest.raises(StokerError) as caught:
        look(tmp_path, "{train: a.jsonl, pack: false}", objective.format("solutoin"))
    assert (caught.value.code, caught.value.where) == ("STK377", "a.jsonl")
    assert "closest: `solution`" in caught.value.hint
    assert look(tmp_path, "{train: a.jsonl, pack: false}", objective.format("solution")).bad == []


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"id": "7", "reply": "b", "question_text": "a"}, "{prompt: question_text, answer: reply}"),
        ({"left": "a", "right": "b"}, "{prompt: left, answer: right}"),
        ({"标题": "a", "答案": "b"}, "{prompt: 标题, answer: 答案}"),
        ({"id": 7, "body, all": "a"}, '{text: "body, all"}'),
        ({"talk": [{"who": "a", "says": "b"}], "id": "7"}, "{messages: talk}"),
    ],
)
def test_unknown_keys_are_answered_with_columns_of_the_row_itself(tmp_path: Path, row: Any, columns: str) -> None:
    write(tmp_path / "a.jsonl", [row])
    with pytest.raises(StokerError) as caught:
        look(tmp_path, "{train: a.jsonl}")
    assert (caught.value.code, f"`data.columns: {columns}`" in caught.value.hint) == ("STK303", True)
    load.parse(f"model: m\ndata: {{train: a.jsonl, columns: {columns}}}\n", "run.yaml")


LONG = "the engine keeps the fire going"


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"问题": LONG, "回答": LONG}, ["问题", "回答"]),
        ({"回答": LONG, "问题": LONG, "类别": "呼吸内科", "id": 7}, ["问题", "回答"]),
        ({"Question": LONG, "Answer": LONG, "split": None}, ["Question", "Answer"]),
        ({"id": "row-0017", "question_text": LONG, "reply": LONG}, ["question_text", "reply"]),
        ({"问题": LONG, "背景": "患者三天前开始发烧", "回答": LONG}, []),
        ({"question_text": LONG, "reply": LONG, "history": [[LONG, LONG]]}, []),
        ({"sentence": LONG, "label": "good", "source": "web"}, []),
        ({"review": LONG, "user_id": "u17", "target": LONG}, []),
        ({"question_id": "17", "passage": LONG, "reply": LONG}, []),
        ({"title": LONG, "ask": LONG, "answer": LONG}, []),
        ({"query": LONG, "question_text": LONG, "reply": LONG}, []),
        ({"标题": LONG, "回复": LONG}, []),
    ],
)
def test_columns_are_guessed_only_where_names_and_values_leave_no_doubt(
    row: dict[str, Any], columns: list[str]
) -> None:
    assert named_columns.guessed([row]) == columns
    assert named_columns.guessed([row, {**row, "more": LONG}]) == []


TAKEN: list[tuple[str, dict[str, Any], str, tuple[str, str]]] = [
    (
        "dpo",
        {"id": 7, "q": "a", "good": "b", "bad": "c"},
        "{prompt: q, chosen: good, rejected: bad}",
        ("need two answers, `chosen` and `rejected`", "需要两个回答 `chosen` 和 `rejected`"),
    ),
    (
        "orpo",
        {"问题": "a", "好回答": "b", "差回答": "c"},
        "{prompt: 问题, chosen: 好回答, rejected: 差回答}",
        ("need two answers, `chosen` and `rejected`", "需要两个回答 `chosen` 和 `rejected`"),
    ),
    (
        "kto",
        {"q": "a", "reply": "b", "liked": True},
        "{prompt: q, completion: reply, label: liked}",
        ("a `label` that is true or false", "值为 true 或 false 的 `label`"),
    ),
    (
        "grpo, grpo: {rewards: [{exact: {column: solution}}]}",
        {"q": "a", "solution": "b"},
        "{prompt: q}",
        ("need a prompt: `prompt`", "需要提示词：`prompt`"),
    ),
]


@pytest.mark.parametrize(("objective", "row", "columns", "needed"), TAKEN)
def test_rows_that_an_objective_cannot_take_are_answered_with_what_it_needs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    objective: str,
    row: dict[str, Any],
    columns: str,
    needed: tuple[str, str],
) -> None:
    write(tmp_path / "a.jsonl", [row] * 3)
    for language, words in zip(("en", "zh"), needed, strict=True):
        monkeypatch.setenv("STOKER_LANG", language)
        with pytest.raises(StokerError) as caught:
            look(tmp_path, "{train: a.jsonl, pack: false}", objective)
        assert (caught.value.code, caught.value.where) == ("STK376", "a.jsonl:1")
        assert words in caught.value.what
        assert all(f"`{key}`" in caught.value.what for key in row)
        assert f"`data.columns: {columns}`" in caught.value.hint
    # As the hint has it they are read: all of them, and none as something else.
    found = look(tmp_path, f"{{train: a.jsonl, columns: {columns}, pack: false}}", objective)
    assert (found.rows, found.bad) == (3, [])


def test_columns_of_another_objective_are_answered_with_what_this_one_needs(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"q": "a", "good": "b", "bad": "c"}])
    for columns, objective in (
        ("{prompt: q, answer: good}", "dpo"),
        ("{prompt: q, chosen: good, rejected: bad}", "kto"),
    ):
        with pytest.raises(StokerError) as caught:
            look(tmp_path, f"{{train: a.jsonl, columns: {columns}, pack: false}}", objective)
        assert caught.value.code == "STK376"


def test_a_row_without_an_answer_in_front_does_not_decide_for_all(tmp_path: Path) -> None:
    write(
        tmp_path / "a.jsonl",
        [{"prompt": "a", "completion": "b"}, *[{"prompt": "a", "chosen": "b", "rejected": "c"}] * 3],
    )
    found = look(tmp_path, "{train: a.jsonl, pack: false}", "dpo")
    assert [where for where, _ in found.bad] == ["a.jsonl:1"]


def test_a_column_that_some_rows_have_is_enough(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"q": "a", "r": "b"}, {"q": "a", "r": "b", "s": "c"}])
    assert look(tmp_path, "{train: a.jsonl, columns: {prompt: q, answer: r, system: s}}").bad == []


def test_each_source_has_its_own_columns_and_the_rest_those_of_all(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"q": "a", "r": "b"}])
    write(tmp_path / "b.jsonl", [{"ask": "a", "tell": "b"}])
    data = "{train: [{path: a.jsonl}, {path: b.jsonl, columns: {prompt: ask, answer: tell}}]"
    assert look(tmp_path, f"{data}, columns: {{prompt: q, answer: r}}}}").rows == 2
    with pytest.raises(StokerError) as caught:
        look(tmp_path, f"{data}}}")
    assert caught.value.code == "STK303"


def test_an_eval_file_has_the_columns_of_the_data() -> None:
    run = load.parse("model: m\ndata: {train: a, eval: b.jsonl, columns: {text: body}}\n", "run.yaml")
    source = inputs.eval_source(run)
    assert source is not None
    assert source.columns == Columns(text="body")


def test_columns_are_part_of_what_a_set_is_prepared_from() -> None:
    bare, text, other = (
        prepared.words(load.parse(f"model: m\ndata: {{train: a.jsonl{words}}}\n", "run.yaml"))
        for words in ("", ", columns: {text: body}", ", columns: {text: content}")
    )
    assert len({bare, text, other}) == 3


def test_columns_that_came_later_are_written_only_where_they_are_named() -> None:
    written = Columns(prompt="q", answer="r").model_dump()
    assert written["text"] is None  # as sets that are there already have it in their digests
    assert "chosen" not in written
    assert Columns(chosen="a", rejected="b").model_dump()["chosen"] == "a"


def test_a_set_of_a_list_is_read_with_its_list_and_an_edited_list_is_another_set(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"ask": "a", "tell": "b"}])
    listed = tmp_path / "dataset_info.json"
    entry = {"file_name": "a.jsonl", "columns": {"prompt": "ask", "response": "tell"}}
    listed.write_text(json.dumps({"mine": entry}), encoding="utf-8")
    run = load.parse("model: m\ndata: {train: 'dataset_info.json#mine'}\n", "run.yaml")
    assert [path.name for path in inputs.read_files(run, tmp_path)] == ["a.jsonl", "dataset_info.json"]
    (file,) = row_files.files(inputs.train_sources(run)[0], tmp_path)
    assert (file.label, file.source.columns) == ("a.jsonl", Columns(prompt="ask", answer="tell"))
    before = prepared.key_of(run, inputs.facts(run, tmp_path))
    entry["columns"] = {"prompt": "tell", "response": "ask"}
    listed.write_text(json.dumps({"mine": entry}), encoding="utf-8")
    assert prepared.key_of(run, inputs.facts(run, tmp_path)) != before


PAIR = {"good": "yes", "bad": "no"}
NAMED = Columns(chosen="good", rejected="bad")


@pytest.mark.parametrize(
    "asked",
    [
        {"prompt": "Rain?", "system": "Be brief."},
        {"question": "Rain?"},
        {"instruction": "Rain?", "input": "In Rome", "history": [["Hot?", "No."]]},
        {"conversations": [{"from": "human", "value": "Rain?"}], "system": "Be brief."},
        {"prompt": [{"role": "user", "content": "Rain?"}], "tools": [{"name": "weather"}]},
    ],
)
def test_of_pairs_whose_answers_alone_are_named_all_that_was_asked_is_kept(asked: dict[str, Any]) -> None:
    assert document({**PAIR, **asked}, NAMED) == plain({"chosen": "yes", "rejected": "no", **asked})


def test_more_of_a_prompt_needs_the_prompt() -> None:
    assert column_names.layout_of(Columns(chosen="good", rejected="bad", input="more")) is None
    both = Columns(chosen="good", rejected="bad", prompt="q", input="more")
    assert column_names.layout_of(both) == "preference"
    talk = [{"role": "user", "content": "Rain?"}]
    assert isinstance(document({**PAIR, "q": "Rain?", "more": "In Rome"}, both), formats.Preference)
    assert isinstance(document({**PAIR, "q": talk, "more": "In Rome"}, both), BadRow)
