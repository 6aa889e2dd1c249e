"""LLaMA-Factory's list of sets: what an entry names is read, what it asks beyond that is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.config import dataset_info
from stoker.config.columns import Columns, Roles
from stoker.config.data_section import Source
from stoker.errors import StokerError

TAGS = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}


def resolve(folder: Path, entry: dict[str, Any], name: str = "mine", **words: Any) -> Source:
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "dataset_info.json").write_text(json.dumps({"mine": entry}), encoding="utf-8")
    return dataset_info.resolve(Source(path=f"data/dataset_info.json#{name}", **words), folder)


@pytest.mark.parametrize(
    ("entry", "columns"),
    [
        ({}, None),
        ({"formatting": "sharegpt"}, None),
        (
            {"columns": {"prompt": "ask", "query": "more", "response": "reply", "system": "sys", "history": "past"}},
            Columns(prompt="ask", input="more", answer="reply", system="sys", history="past"),
        ),
        ({"columns": {"prompt": "body"}}, Columns(text="body")),
        ({"formatting": "sharegpt", "columns": {"messages": "talk"}}, Columns(messages="talk")),
        (
            {"formatting": "sharegpt", "columns": {"messages": "messages", "tools": "tools"}, "tags": TAGS},
            Columns(
                messages="messages",
                tools="tools",
                role="role",
                content="content",
                roles=Roles(user="user", assistant="assistant"),
            ),
        ),
        (
            {"formatting": "sharegpt", "tags": {"observation_tag": "seen", "function_tag": "calls"}},
            Columns(messages="conversations", roles=Roles(tool="seen", function_call="calls")),
        ),
    ],
)
def test_an_entry_is_a_file_and_its_columns(tmp_path: Path, entry: dict[str, Any], columns: Columns | None) -> None:
    found = resolve(tmp_path, {"file_name": "set/a.json", **entry})
    assert (found.path, found.columns) == ("data/set/a.json", columns)


def test_what_the_run_file_says_of_the_columns_wins(tmp_path: Path) -> None:
    own = Columns(prompt="a", answer="b")
    found = resolve(tmp_path, {"file_name": "a.json", "columns": {"prompt": "x", "response": "y"}}, columns=own)
    assert found.columns == own
    with pytest.raises(StokerError, match="STK362"):
        resolve(tmp_path, {"file_name": "a.json", "ranking": True}, columns=own)


@pytest.mark.parametrize(
    "entry",
    [
        {"ranking": True},
        {"ranking": True, "columns": {"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"}},
        {"ranking": True, "formatting": "sharegpt", "columns": {"messages": "conversations", "chosen": "chosen"}},
        {"formatting": "sharegpt", "columns": {"messages": "messages", "kto_tag": "label"}},
    ],
)
def test_rows_that_compare_or_judge_answers_are_recognised_by_their_keys(tmp_path: Path, entry: dict[str, Any]) -> None:
    assert resolve(tmp_path, {"file_name": "a.json", **entry}).columns is None


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"file_name": "a.json", "ranking": True, "columns": {"chosen": "better"}}, "`columns.chosen: better`"),
        ({"file_name": "a.json", "ranking": True, "tags": {"user_tag": "customer"}}, "`tags.user_tag: customer`"),
        ({"hf_hub_url": "owner/name"}, "hub:owner/name"),
        ({"ms_hub_url": "owner/name"}, "modelscope:owner/name"),
        ({"script_url": "folder"}, "`script_url`"),
        ({"file_name": "a.json", "num_samples": 10}, "`num_samples`"),
        ({"file_name": "a.json", "columns": {"prompt": "a", "response": "b", "images": "c"}}, "`columns.images`"),
        ({"file_name": "a.json", "columns": {"prompt": "a", "response": "b", "kto_tag": "c"}}, "`columns.kto_tag: c`"),
        ({"file_name": "a.json", "columns": {"response": "b"}}, "`prompt` and `response`"),
        ({"file_name": "a.json", "formatting": "sharegpt", "tags": {"robot_tag": "r"}}, "`tags.robot_tag`"),
        ({"file_name": "a.json", "formatting": "parrot"}, "parrot"),
        ({"file_name": "a.json", "columns": ["prompt"]}, "`columns`"),
        ({}, "`file_name`"),
    ],
)
def test_what_would_not_be_done_is_named(tmp_path: Path, entry: dict[str, Any], said: str) -> None:
    with pytest.raises(StokerError) as caught:
        resolve(tmp_path, entry)
    assert caught.value.code == "STK362"
    assert said in caught.value.what


def test_a_set_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(StokerError) as caught:
        resolve(tmp_path, {"file_name": "a.json"}, "mone")
    assert caught.value.code == "STK361"
    assert "closest: `mine`" in caught.value.hint


@pytest.mark.parametrize("text", ["[]", "{", '{"a": 1}'])
def test_another_file_of_the_name_is_no_list(tmp_path: Path, text: str) -> None:
    (tmp_path / "dataset_info.json").write_text(text, encoding="utf-8")
    with pytest.raises(StokerError) as caught:
        dataset_info.resolve(Source(path="dataset_info.json#a"), tmp_path)
    assert caught.value.code == "STK363"


@pytest.mark.parametrize("path", ["a#b.jsonl", "data/my_dataset_info.json#a", "dataset_info.json", "hub:a/b"])
def test_other_paths_are_left_alone(tmp_path: Path, path: str) -> None:
    source = Source(path=path)
    assert dataset_info.resolve(source, tmp_path) is source
