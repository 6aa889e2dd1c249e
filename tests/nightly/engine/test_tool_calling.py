"""The tool-calling task without its training: rows, template and scores. The whole is `just tool-calling`."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from prepare_case import Case, make_tokenizer
from tour import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import smollm2
import tool_calling
import tool_rows
from tool_rows import Row

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(not smollm2.WORDNET.is_dir(), reason="needs Debian's wordnet-base"),
]


def sets() -> tuple[list[Row], list[Row]]:
    return tool_rows.make_sets(tool_calling.SEED, tool_calling.TRAIN, tool_calling.HELD_OUT)


def test_held_out_rows_have_requests_names_and_things_that_no_trained_row_has() -> None:
    train, held_out = sets()
    assert (train, held_out) == sets()
    assert len(tool_rows.TOOLS) >= 8
    assert len(held_out) >= 300
    assert not {row.request for row in train} & {row.request for row in held_out}
    assert tool_rows.held_out_values(held_out)
    assert not tool_rows.held_out_values(train)
    assert min(len(tool_rows.words(kind, held_out=False)) for kind in ("person", "city", "item", "title")) > 1000
    assert {name for row in held_out for name, _ in row.calls} == {tool.name for tool in tool_rows.TOOLS}
    assert sum(row.unseen_wording for row in held_out) >= 100 > sum(row.unseen_wording for row in train)


def test_every_row_is_trained_in_its_calls_and_answers_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path, monkeypatch)
    make_tokenizer(case.tokenizer, tool_calling.TEMPLATE.read_text(encoding="utf-8"))
    train, _ = sets()
    rows = [next(row for row in train if row.kind == kind) for kind in tool_rows.KINDS] + train[:40]
    found = case.prepare([row.trained for row in rows], data={"length": 2000})
    trained = [[text for text, is_trained in found.runs(part) if is_trained] for part in found.segments()]
    assert sorted(trained) == sorted(
        [said(turn) for turn in row.messages if turn["role"] == "assistant"] for row in rows
    )


def said(turn: dict[str, Any]) -> str:
    """What the template must write for a turn of the assistant."""
    calls = [one["function"] for one in turn.get("tool_calls", [])]
    written = [f'<tool_call>{{"name": "{c["name"]}", "arguments": {c["arguments"]}}}</tool_call>' for c in calls]
    return (turn["content"] or "") + "".join(written) + "<|im_end|>"


def reply(row: Row) -> dict[str, Any]:
    """The right one."""
    last = row.messages[-1]
    return {"content": last["content"] or "", "tool_calls": last.get("tool_calls", [])}


def test_right_replies_count_in_any_order_of_calls() -> None:
    _, held_out = sets()
    replies = [reply(row) for row in held_out]
    for one in replies:
        one["tool_calls"] = one["tool_calls"][::-1]
    found = tool_calling.score(held_out, replies)
    assert found["calls"]["rows"] == found["calls"]["parse"] == found["calls"]["match"] == 250
    assert found["none"]["rows"] == found["none"]["match"] == found["none"]["same_words"]
    assert found["result"]["rows"] == found["result"]["match"]


def test_wrong_replies_do_not_count() -> None:
    _, held_out = sets()
    row = next(row for row in held_out if row.calls and row.calls[0][0] == "set_alarm")
    plain = next(row for row in held_out if row.kind == "none")
    result = next(row for row in held_out if row.kind == "result")
    name, arguments = row.calls[0]
    written = [
        json.dumps({**arguments, "hour": str(arguments["hour"])}),
        json.dumps({**arguments, "extra": True}),
        json.dumps(arguments)[:-1],
        "[]",
    ]
    wrong = [{"content": "", "tool_calls": [{"function": {"name": name, "arguments": one}}]} for one in written]
    wrong += [{**reply(row), "tool_calls": reply(row)["tool_calls"] * 2}, {"content": "", "tool_calls": []}]
    assert not any(tool_calling.is_right(row, one) for one in wrong)
    assert not any(tool_calling.parsed(one) for one in wrong[2:4])
    unread = {"content": '<tool_call>{"name": ', "tool_calls": []}
    assert not any(tool_calling.is_right(one, unread) for one in (row, plain, result))
    assert not tool_calling.is_right(plain, {**reply(row), "content": "Hello."})
    assert not tool_calling.is_right(result, {"content": "Done.", "tool_calls": []})
