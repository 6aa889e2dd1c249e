"""Reading: every kind of file, what is detected in it, and every way a row can be bad."""

import csv
import gzip
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prepare_case import CHATML, Case, make_tokenizer, write_jsonl

from stoker import messages
from stoker.config.columns import Columns, Roles
from stoker.config.data_section import Source
from stoker.engine import prepare
from stoker.errors import StokerError, StokerErrors
from stoker.rows import formats, row_files
from stoker.rundir import events
from stoker.rundir.events import EventLog

pytestmark = pytest.mark.filterwarnings("default")

REFUSING = "{% if messages[0]['content'] == 'no' %}{{ raise_exception('not that') }}{% endif %}" + CHATML
GOOD = {"prompt": "How many wagons?", "completion": "Seven."}
PAIRS = [GOOD, {"prompt": "车厢？", "completion": "七节，🎉"}, {"prompt": 'a "quoted"\nline', "completion": "b, c"}]


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    case = Case(tmp_path, monkeypatch)
    make_tokenizer(case.tokenizer, REFUSING)
    return case


def user(text: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def chat(*turns: Any) -> dict[str, Any]:
    return {"messages": list(turns)}


def call(arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": arguments}]}


ANSWER = user("ok", "assistant")

BAD_ROWS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "not JSON": (
        '{"prompt": "a"',
        "row.not_json",
        {"problem": "a comma or a closing bracket is missing", "column": 15},
    ),
    "a number too long for Python": ('{"prompt": ' + "1" * 5000 + "}", "row.not_json", {}),
    "nested without end": ("[" * 100_000, "row.not_json", {}),
    "a list": ("[1, 2]", "row.not_object", {"kind": "list"}),
    "null": ("null", "row.not_object", {"kind": "NoneType"}),
    "no completion": ({"prompt": "a"}, "row.missing_key", {"key": "completion"}),
    "a number for text": ({"prompt": 3, "completion": "b"}, "row.wrong_type", {"key": "prompt", "expected": "text"}),
    "an empty answer": ({"prompt": "a", "completion": " "}, "row.empty", {"key": "completion"}),
    "half a character": ('{"prompt": "a", "completion": "\\ud83d"}', "row.not_unicode", {"key": "completion"}),
    "answer beyond the length": (
        {"prompt": "wagon " * 200, "completion": "b"},
        "row.no_trained",
        {"length": 128},
    ),
    "preferences": ({**GOOD, "chosen": "a", "rejected": "b"}, "row.preference", {"key": "chosen"}),
    "a good answer judged": ({**GOOD, "label": True}, "row.preference", {"key": "label"}),
    "a bad answer judged": ({**GOOD, "label": False}, "row.preference", {"key": "label"}),
    "refused by the template": ({"prompt": "no", "completion": "b"}, "row.template", {"problem": "not that"}),
}
BAD_CHATS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "no messages": ({"other": 1}, "row.missing_key", {"key": "messages"}),
    "messages are text": ({"messages": "hi"}, "row.wrong_type", {"key": "messages", "expected": "a list"}),
    "messages are empty": (chat(), "row.empty", {"key": "messages"}),
    "a message is text": (chat("hi"), "row.wrong_type", {"key": "messages[]", "expected": "a mapping"}),
    "no role": (chat({"content": "hi"}), "row.missing_key", {"key": "role"}),
    "no content": (chat({"role": "user"}), "row.missing_key", {"key": "content"}),
    "unknown role": (chat(user("a", "robot"), ANSWER), "row.unknown_role", {"role": "robot"}),
    "an empty question": (chat(user(""), ANSWER), "row.empty", {"key": "user: content"}),
    "an empty reply": (chat(user("a"), user("", "assistant")), "row.empty", {"key": "assistant: content"}),
    "an image": (
        chat(user([{"type": "image_url", "image_url": "x"}]), ANSWER),
        "row.media",
        {"key": "content[].type: image_url"},
    ),
    "nobody answers": (chat(user("a")), "row.no_assistant", {}),
    "only a system prompt": (chat(user("a", "system")), "row.no_assistant", {}),
    "the assistant speaks first": (chat(ANSWER, user("a"), ANSWER), "row.first_role", {"role": "assistant"}),
    "two system prompts": (
        {**chat(user("a", "system"), user("b"), ANSWER), "system": "c"},
        "row.differ",
        {"first": "system", "second": "messages[0]"},
    ),
    "two lists of tools": (
        {**chat(user("a"), ANSWER), "tools": [{"name": "f"}], "functions": [{"name": "g"}]},
        "row.differ",
        {"first": "tools", "second": "functions"},
    ),
    "half a character in arguments": (
        json.dumps(chat(user("a"), call({"a": "\ud83d"}))),
        "row.not_unicode",
        {"key": "arguments"},
    ),
    "half a character in arguments as text": (
        chat(user("a"), call('{"a": "\\ud83d"}')),
        "row.not_unicode",
        {"key": "arguments"},
    ),
    "half a character in tools": (
        json.dumps({**chat(user("a"), ANSWER), "tools": [{"name": "f", "description": "\ud83d"}]}),
        "row.not_unicode",
        {"key": "tools"},
    ),
    "arguments without end": (chat(user("a"), call("[" * 5000)), "row.too_deep", {"key": "arguments", "count": 100}),
    "deep arguments": (
        chat(user("a"), call('{"a": ' * 500 + "1" + "}" * 500)),
        "row.too_deep",
        {"key": "arguments", "count": 100},
    ),
    "tools without end": (
        {**chat(user("a"), ANSWER), "tools": "[" * 5000},
        "row.too_deep",
        {"key": "tools", "count": 100},
    ),
    "a call without end": (
        chat(user("a"), user("[" * 5000, "function_call")),
        "row.too_deep",
        {"key": "function_call", "count": 100},
    ),
    "tools are text": (
        {**chat(user("a"), ANSWER), "tools": "x"},
        "row.wrong_type",
        {"key": "tools", "expected": "a list"},
    ),
}


@pytest.mark.parametrize(("row", "reason", "fields"), BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_a_bad_row_is_named_with_file_line_and_reason(
    case: Case, row: Any, reason: str, fields: dict[str, Any]
) -> None:
    check_bad(case, [GOOD, row, GOOD], reason, fields)


@pytest.mark.parametrize(("row", "reason", "fields"), BAD_CHATS.values(), ids=BAD_CHATS.keys())
def test_a_bad_conversation_is_named_with_file_line_and_reason(
    case: Case, row: Any, reason: str, fields: dict[str, Any]
) -> None:
    good = chat(user("a"), ANSWER)
    check_bad(case, [good, row, good], reason, fields)


def check_bad(case: Case, rows: list[Any], reason: str, fields: dict[str, Any]) -> None:
    write_jsonl(case.folder / "train.jsonl", rows)
    with pytest.raises(StokerErrors) as caught:
        case.prepare()
    (error,) = caught.value.errors
    assert (error.code, error.where) == ("STK302", "train.jsonl:2")
    listed = [json.loads(line) for line in (case.folder / "runs/run/data/bad_rows.jsonl").read_text().splitlines()]
    assert [(entry["file"], entry["row"], entry["reason"]) for entry in listed] == [("train.jsonl", 2, reason)]
    if fields:
        assert error.fields["reason"] == messages.text(reason, **fields)


def test_reasons_are_said_in_chinese_too(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", "zh")
    assert case.errors([GOOD, {"prompt": "a"}]) == ["train.jsonl:2: 这一行不能使用：缺少 `completion`"]


def test_bad_rows_of_a_file_are_named_at_once_by_their_reasons(case: Case) -> None:
    problems = case.errors([GOOD, *["oops"] * 23, {"prompt": "a"}, GOOD])
    assert len(problems) == 2
    assert problems[0].startswith("train.jsonl:2: 23 rows ")
    assert problems[1].startswith("train.jsonl:25: the row ")


def test_more_than_twenty_reasons_are_counted(case: Case) -> None:
    roles = [chat(user("a", role=chr(ord("a") + number))) for number in range(23)]
    problems = case.errors([chat(user("a"), ANSWER), *roles])
    assert len(problems) == 21
    assert problems[20] == ": 3 more bad rows"


def test_skipped_rows_are_counted_and_listed_and_the_rest_is_prepared(case: Case) -> None:
    prepared = case.prepare([GOOD, "oops", {"prompt": "a"}, GOOD], data={"on_bad_row": "skip"})
    assert (prepared.report.rows_read, prepared.report.bad_rows, prepared.report.train.segments) == (4, 2, 2)
    assert prepared.report.detected == [
        {
            "path": "train.jsonl",
            "format": "prompt_completion",
            "reason": "detect.keys",
            "keys": ["prompt", "completion"],
            "files": 1,
            "rows": 4,
            "bad_rows": 2,
        }
    ]
    lines = (prepared.run_dir.data / "bad_rows.jsonl").read_text(encoding="utf-8").splitlines()
    assert [(json.loads(line)["row"], json.loads(line)["reason"]) for line in lines] == [
        (2, "row.not_json"),
        (3, "row.missing_key"),
    ]


def test_nothing_but_bad_rows_is_an_error_that_says_where_they_are_listed(case: Case) -> None:
    error = raised(case, ["oops"], data={"on_bad_row": "skip"})
    assert error.code == "STK304"
    assert Path(error.hint.split()[-1]).is_file()


def test_an_empty_file_is_called_empty(case: Case) -> None:
    error = raised(case, [], data={"on_bad_row": "skip"})
    assert error.code == "STK364"
    assert "bad_rows" not in error.hint


@pytest.mark.parametrize("template", [CHATML, None])
def test_rows_that_are_laid_out_without_a_template_are_marked(case: Case, template: str | None) -> None:
    (case.tokenizer / "chat_template.jinja").unlink()
    make_tokenizer(case.tokenizer, template)
    prepared = case.prepare([{"question": "What is 0 plus 0?", "answer": "It is 0"}])
    (entry,) = prepared.report.detected
    assert entry.get("plain", False) == (template is None)
    assert ("0?It" in prepared.texts()[0]) == (template is None)


def test_answers_that_are_all_beyond_the_length_are_said_so(case: Case) -> None:
    rows = [{"prompt": "wagon " * 200, "completion": "b"}] * 3
    assert raised(case, rows, data={"on_bad_row": "skip"}).code == "STK305"


def raised(case: Case, rows: list[Any] | None = None, **words: Any) -> StokerError:
    with pytest.raises(StokerError) as caught:
        case.prepare(rows, **words)
    return caught.value


# ---- kinds of files


def write_csv(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(path: Path, rows: list[dict[str, str]]) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def write_gzip(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


KINDS: dict[str, Any] = {
    "data.csv": write_csv,
    "data.parquet": write_parquet,
    "data.jsonl.gz": write_gzip,
    "data.json": write_json,
    "wrapped.json": lambda path, rows: write_json(path, {"data": rows}),
    "lines.json": write_jsonl,
}


@pytest.mark.parametrize("name", KINDS)
def test_the_same_rows_give_the_same_digest_whatever_the_file(case: Case, name: str) -> None:
    KINDS[name](case.folder / name, PAIRS)
    assert case.prepare(data={"train": name}, name="other").report.digest == case.prepare(PAIRS).report.digest


ASKED = [{"ask": row["prompt"], "tell": row["completion"]} for row in PAIRS]
COLUMNS = {"prompt": "ask", "answer": "tell"}


@pytest.mark.parametrize("name", KINDS)
def test_columns_by_name_give_the_digest_of_the_usual_names(case: Case, name: str) -> None:
    KINDS[name](case.folder / name, ASKED)
    found = case.prepare(data={"train": name, "columns": COLUMNS}, name="other").report
    assert found.digest == case.prepare(PAIRS).report.digest
    assert found.detected[0]["reason"] == "detect.columns"


def test_a_set_of_a_list_has_the_digest_of_the_usual_names(case: Case) -> None:
    write_json(case.folder / "asked.json", ASKED)
    entry = {"file_name": "asked.json", "columns": {"prompt": "ask", "response": "tell"}}
    write_json(case.folder / "dataset_info.json", {"mine": entry})
    found = case.prepare(data={"train": "dataset_info.json#mine"}, name="other").report
    assert found.digest == case.prepare(PAIRS).report.digest


def test_a_pass_that_was_killed_remembers_the_columns() -> None:
    columns = Columns(messages="talk", role="who", roles=Roles(user="customer"))
    layout = formats.by_columns(columns)
    state = prepare.PassState(key="a", layout=asdict(layout))
    remembered = json.loads(json.dumps(state.model_dump()))["layout"]
    assert formats.stored(remembered) == layout
    assert formats.stored(asdict(formats.forced("text"))) == formats.forced("text")


def test_a_column_that_a_later_file_lacks_is_said_before_anything_is_tokenised(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(case.folder / "a.jsonl", ASKED)
    write_jsonl(case.folder / "b.jsonl", PAIRS)
    monkeypatch.setattr(prepare.tokenise, "in_order", lambda *_: pytest.fail("it was tokenised"))
    error = raised(case, data={"train": "*.jsonl", "columns": COLUMNS})
    assert (error.code, error.where, error.fields["column"]) == ("STK360", "b.jsonl", "ask")


def test_a_question_with_a_context_is_a_bad_row(case: Case) -> None:
    asked = {"question": "a", "answer": "b"}
    check_bad(case, [asked, {**asked, "context": "c"}, {**asked, "context": ""}], "row.context", {"key": "context"})


@pytest.mark.parametrize("template", [CHATML, None])
def test_the_system_prompt_of_a_pair_is_kept_or_its_row_is_refused(case: Case, template: str | None) -> None:
    (case.tokenizer / "chat_template.jinja").unlink()
    make_tokenizer(case.tokenizer, template)
    row = {**GOOD, "system": "Be brief."}
    if template:
        assert case.prepare([row]).texts()[0].startswith("<|im_start|>system\nBe brief.<|im_end|>")
    else:
        assert case.errors([row])[0].endswith(messages.text("row.needs_template"))


CALLED = "{% for m in messages %}{{ '<s>' + m.role + (m.content or '') + (m.tool_calls or '') | string + '</s>' }}"
TOOLS = "{{ (tools or '') | string }}" + CALLED + "{% endfor %}{% if add_generation_prompt %}<s>assistant{% endif %}"


def test_the_keys_of_other_rows_are_not_trained_out_of_parquet(case: Case) -> None:
    make_tokenizer(case.tokenizer, TOOLS)
    keys = ({"city": "Paris"}, {"to": "Bob", "cc": ["Al"]})
    tools = [[{"name": "f", "parameters": {"properties": given}}] for given in keys]
    rows = [{**chat(user("a"), call(given)), "tools": own} for given, own in zip(keys, tools, strict=True)]
    write_parquet(case.folder / "calls.parquet", rows)
    found = case.prepare(data={"train": "calls.parquet", "length": 1000}, name="other")
    assert "None" not in "".join(found.texts())
    assert found.report.digest == case.prepare(rows, data={"length": 1000}).report.digest


def test_functions_as_openai_had_them_are_read_as_tools(case: Case) -> None:
    make_tokenizer(case.tokenizer, TOOLS)
    asks = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    result = {"role": "function", "name": "f", "content": "seven"}
    row = {**chat(user("a"), asks, result, ANSWER), "functions": [{"name": "f", "description": "counts"}]}
    (text,) = case.prepare([row], data={"length": 1000}).texts()
    assert "counts" in text
    assert "<s>toolseven</s>" in text


QUOTES = {
    "not closed": ('a,b\n"c,d\ne,f\n', 3, 4),
    "closed by the next one": ('a,b\na,"b\ne,"f"\n', 3, 4),
    "inside": ('"a" c,d\ne,f\n', 2, 2),
}


@pytest.mark.parametrize(("lines", "bad", "last"), QUOTES.values(), ids=QUOTES.keys())
def test_a_stray_quote_is_named_where_it_began(case: Case, lines: str, bad: int, last: int) -> None:
    (case.folder / "a.csv").write_text("prompt,completion\n" + lines)
    run_dir = case.make(data={"train": "a.csv", "on_bad_row": "skip"})
    used, refused = case.read_rows(run_dir)
    assert len(used) == 1
    assert list(refused) == [bad]
    assert refused[bad].endswith(f"line {last}")


def test_a_header_with_a_name_twice_is_refused(case: Case) -> None:
    (case.folder / "a.csv").write_text("prompt,completion,prompt\na,b,c\n")
    (problem,) = case.errors(data={"train": "a.csv"})
    assert problem == f"a.csv:1: no row of the file can be used: {messages.text('row.header', key='prompt')}"


def test_a_json_file_without_end_is_a_bad_row(case: Case) -> None:
    (case.folder / "a.json").write_text("[" * 100_000)
    assert case.errors(data={"train": "a.json"})[0].startswith(
        "a.json:1: no row of the file can be used: its list is not JSON"
    )


def test_a_tokenizer_whose_templates_have_no_default_is_refused(case: Case) -> None:
    (case.tokenizer / "chat_template.jinja").unlink()
    path = case.tokenizer / "tokenizer_config.json"
    named = [{"name": name, "template": CHATML} for name in ("tool_use", "rag")]
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": named}))
    assert raised(case, [GOOD]).code == "STK312"


def test_a_text_file_is_one_document(case: Case) -> None:
    text = "The train never stops.\n\n列车不会停下 🎉\n" * 5
    (case.folder / "text.txt").write_text(text, encoding="utf-8")
    from_text = case.prepare(data={"train": "text.txt", "length": 32}, name="text").report
    from_row = case.prepare([{"text": text}], data={"length": 32}).report
    assert from_text.digest == from_row.digest
    assert from_text.rows_read == 1


def test_a_text_file_of_many_blocks_loses_and_repeats_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.engine import sources
    from stoker.rows import row_files

    monkeypatch.setattr(row_files, "_BLOCK_CHARACTERS", 300)
    monkeypatch.setattr(sources, "_BATCH_CHARACTERS", 1000)
    text = "".join(f"line {i} of the train\n" for i in range(300)) + "x" * 1500
    (case.folder / "text.txt").write_text(text, encoding="utf-8")
    prepared = case.prepare(data={"train": "text.txt", "length": 16})
    assert "".join(prepared.texts()) == text + "<|im_end|>"


def test_rows_of_a_csv_file_are_numbered_by_the_line_they_start_on(case: Case) -> None:
    text = 'prompt,completion\n"two\nlines",b\n\na\na,b,c\n'
    (case.folder / "data.csv").write_text(text, encoding="utf-8")
    assert case.errors(data={"train": "data.csv"}) == [
        "data.csv:5: the row cannot be used: 1 column, but the header has 2",
        "data.csv:6: the row cannot be used: 3 columns, but the header has 2",
    ]


def test_a_json_file_that_is_not_a_list_says_so(case: Case) -> None:
    write_json(case.folder / "data.json", {"rows": PAIRS})
    (problem,) = case.errors(data={"train": "data.json"})
    assert problem == f"data.json:1: no row of the file can be used: {messages.text('row.json_layout')}"


@pytest.mark.parametrize("name", ["data.parquet", "data.jsonl.gz"])
def test_a_broken_container_is_named(case: Case, name: str) -> None:
    (case.folder / name).write_bytes(b"neither parquet nor gzip")
    error = raised(case, data={"train": name})
    assert (error.code, error.where) == ("STK353", name)


@pytest.mark.parametrize("policy", ["stop", "skip"])
@pytest.mark.parametrize(("name", "how"), [("a.jsonl.gz", "cut"), ("a.jsonl.gz", "changed"), ("a.parquet", "changed")])
def test_no_part_of_a_damaged_file_is_used(case: Case, name: str, how: str, policy: str) -> None:
    rows = [{"text": hashlib.sha256(str(number).encode()).hexdigest()} for number in range(20_000)]
    path = case.folder / name
    KINDS[f"data.{name.partition('.')[2]}"](path, rows)
    whole = bytearray(path.read_bytes())
    middle = len(whole) // 2
    whole[middle : middle + 500] = bytes(500)
    path.write_bytes(whole[:middle] if how == "cut" else whole)
    error = raised(case, data={"train": name, "on_bad_row": policy})
    assert (error.code, error.where) == ("STK353", name)


@pytest.mark.parametrize("name", ["data.jsonl", "data.csv", "data.txt", "data.json"])
def test_a_file_that_is_not_utf8_is_named_with_the_byte(case: Case, name: str) -> None:
    before = b'{"text": "ok"}\n' * 2000
    (case.folder / name).write_bytes(before + "列车".encode("gbk"))
    error = raised(case, data={"train": name})
    assert (error.code, error.where, error.fields["byte"]) == ("STK314", name, len(before) + 1)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_cut_character_in_a_file_of_utf8_is_no_other_encoding(case: Case, mark: bytes) -> None:
    good = '{"text": "列车"}\n'.encode()
    (case.folder / "data.jsonl").write_bytes(mark + good * 3 + good.replace("车".encode(), "车".encode()[:2]) + good)
    error = raised(case, data={"train": "data.jsonl"})
    assert (error.code, error.where) == ("STK314", "data.jsonl:4")
    assert "GBK" not in error.hint
    (case.folder / "data.jsonl").write_bytes(mark + b'{"text": "ok"}\n' * 3 + '{"text": "列车"}'.encode("gbk"))
    assert "GBK" in raised(case, data={"train": "data.jsonl"}).hint


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_a_utf16_file_is_called_so_with_the_command_that_converts_it(case: Case, codec: str) -> None:
    (case.folder / "data.csv").write_bytes("\ufeffprompt,completion\n列车,b\n".encode(codec))
    error = raised(case, data={"train": "data.csv"})
    assert error.code == "STK314"
    old, new = case.folder / "data.csv", case.folder / "data-utf8.csv"
    assert f"`iconv -f UTF-16 -t UTF-8 {old} > {new}`" in error.hint
    assert "GBK" not in error.hint


@pytest.mark.parametrize(("mark", "said"), [(";", "`;`"), ("\t", "Tab")])
def test_a_csv_file_with_another_separator_says_which(case: Case, mark: str, said: str) -> None:
    (case.folder / "a.csv").write_text(f"prompt{mark}completion\na{mark}b\n")
    (problem,) = case.errors(data={"train": "a.csv"})
    assert problem == f"a.csv:1: no row of the file can be used: {messages.text('row.separator', separator=said)}"


def test_a_row_of_a_json_list_is_named_by_its_number_in_the_list(case: Case) -> None:
    (case.folder / "a.json").write_text(json.dumps([GOOD, {"prompt": "a"}], indent=2))
    (problem,) = case.errors(data={"train": "a.json"})
    assert problem.startswith("a.json: record 2: the row cannot be used")


def test_rows_that_compare_answers_are_refused_with_that_reason(case: Case) -> None:
    error = raised(case, [{"instruction": "a", "input": "", "chosen": "b"}])
    assert (error.code, error.where) == ("STK317", "train.jsonl:1")
    assert error.fields["reason"] == messages.text("row.preference", key="chosen")


def test_a_byte_order_mark_is_read_over(case: Case) -> None:
    (case.folder / "data.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert case.prepare(data={"train": "data.jsonl"}).report.bad_rows == 0


# ---- detection


@pytest.mark.parametrize(
    ("row", "format_", "keys"),
    [
        (chat(user("a"), ANSWER), "messages", ["messages"]),
        ({"conversations": [user("a"), ANSWER], "text": "x"}, "sharegpt", ["conversations"]),
        ({"instruction": "a", "output": "b", "text": "x"}, "alpaca", ["instruction", "output"]),
        ({"question": "a", "answer": "b"}, "prompt_completion", ["question", "answer"]),
        ({"text": "a b c", "url": "x"}, "text", ["text"]),
    ],
    ids=["messages", "sharegpt", "alpaca", "question/answer", "text"],
)
def test_the_layout_is_told_from_the_keys(case: Case, row: Any, format_: str, keys: list[str]) -> None:
    (found,) = case.prepare([row]).report.detected
    assert (found["format"], found["reason"], found["keys"]) == (format_, "detect.keys", keys)


def test_a_layout_that_is_not_known_names_the_keys(case: Case) -> None:
    error = raised(case, [{"input_text": "a", "target": "b"}])
    assert (error.code, error.where, error.fields["keys"]) == ("STK303", "train.jsonl:1", ["input_text", "target"])


def test_a_forced_format_is_used_and_said(case: Case) -> None:
    prepared = case.prepare([{"text": "whole", "prompt": "a", "completion": "b"}], data={"format": "text"})
    assert prepared.texts() == ["whole<|im_end|>"]
    assert prepared.report.detected[0]["reason"] == "detect.forced"


def test_files_of_a_folder_may_have_different_layouts(case: Case) -> None:
    (case.folder / "mixed/inner").mkdir(parents=True)
    write_jsonl(case.folder / "mixed/b.jsonl", [GOOD])
    write_jsonl(case.folder / "mixed/inner/a.jsonl", [{"text": "running text"}])
    (case.folder / "mixed/readme.md").write_text("not data")
    found = case.prepare(data={"train": "mixed"}).report.detected
    assert [(entry["path"], entry["format"], entry["files"], entry["file"]) for entry in found] == [
        ("mixed", "prompt_completion", 1, "mixed/b.jsonl"),
        ("mixed", "text", 1, "mixed/inner/a.jsonl"),
    ]


# ---- hubs


def test_a_hub_dataset_is_read_through_datasets(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` takes a local folder for a dataset's name: the same call as for a hub id."""
    monkeypatch.chdir(case.folder)
    monkeypatch.setenv("HF_HOME", str(case.folder / "cache"))
    (case.folder / "owner/name").mkdir(parents=True)
    write_jsonl(case.folder / "owner/name/train.jsonl", PAIRS)
    from_hub = case.prepare(data={"train": "hub:owner/name"}, name="hub")
    assert from_hub.report.digest == case.prepare(PAIRS).report.digest
    assert from_hub.report.detected[0]["path"] == "hub:owner/name"


def test_a_hub_dataset_that_cannot_be_had_is_an_error(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(case.folder)
    assert raised(case, data={"train": "hub:no-one/nothing"}).code == "STK310"


def test_modelscope_without_its_package_names_the_package(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "modelscope.msdatasets", None)
    error = raised(case, data={"train": "modelscope:owner/name"})
    assert (error.code, error.fields["package"]) == ("STK309", "modelscope")


@pytest.mark.parametrize(("suffix", "rows"), [("txt", 3), ("jsonl", 2)])
def test_of_text_files_the_number_of_rows_is_known(tmp_path: Path, suffix: str, rows: int) -> None:
    """Half of the first of three files was read; a file of text is one row, however large."""
    paths = [tmp_path / f"{name}.{suffix}" for name in "abc"]
    files = [
        row_files.File(path.name, path, Source(path=path.name), size)
        for path, size in zip(paths, (2, 1, 1), strict=True)
    ]
    state = SimpleNamespace(source=0, file=0, rows_read=1)
    job = SimpleNamespace(inputs=[SimpleNamespace(files=files)], state=state, writers={})
    log = EventLog(tmp_path / "events.jsonl")
    prepare.PassProgress(log, 2).show(job, files[0], SimpleNamespace(read_share=0.5))  # type: ignore[arg-type]  # parts
    log.close()
    (event,) = events.skim(tmp_path / "events.jsonl")
    assert event["rows"] == rows
