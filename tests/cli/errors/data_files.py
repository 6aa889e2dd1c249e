"""Broken rows and data files, each with everything that must be said about it."""

import dataclasses
import gzip
import json
import os
import sys
from typing import Any

from errors.expected import Expected, err

GOOD = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}]}


def talk(*turns: tuple[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


ROW_CASES: dict[str, tuple[str | dict[str, Any], str]] = {
    "cut off": ('{"messages": [{"role": "us', "not JSON"),
    "single quotes": ("{'messages': []}", "not JSON"),
    "a list": ("[1, 2]", "expected an object"),
    "a number": ("5", "expected an object"),
    "another layout": ({"text": "a"}, "`messages` is missing"),
    "messages as text": ({"messages": "hello"}, "`messages` is not a list"),
    "a message as text": ({"messages": ["hello"]}, "is not a mapping"),
    "no messages": ({"messages": []}, "is empty"),
    "a message without a role": ({"messages": [{"content": "a"}]}, "`role` is missing"),
    "a message without content": ({"messages": [{"role": "user"}]}, "`content` is missing"),
    "content that is a number": (talk(("user", 5), ("assistant", "a")), "`content` is not text"),
    "an empty answer": (talk(("user", "a"), ("assistant", " ")), "is empty"),
    "a role nobody has": (talk(("user", "a"), ("bot", "a")), "unknown role `bot`"),
    "an assistant who starts": (talk(("assistant", "a"), ("user", "a")), "starts with `assistant`"),
    "no assistant": (talk(("user", "a")), "no assistant message"),
    "half a character": ('{"messages": [{"role": "user", "content": "\\ud83d"}]}', "surrogate"),
    "what the template refuses": (
        talk(("user", "a"), ("tool", "a"), ("assistant", "a")),
        "template rejects it: no tools",
    ),
}


@dataclasses.dataclass(frozen=True)
class DataCase:
    """A run file's `data` section, the files beside it, and what must be said."""

    data: str
    files: dict[str, bytes]
    expected: list[Expected]
    tokenizer: str = "chat"


def jsonl(*rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


SETS = json.dumps(
    {
        "medical": {"file_name": "a.json"},
        "ranked": {"file_name": "b.json", "ranking": True, "columns": {"chosen": "better"}},
    }
).encode()
"""A list of sets as LLaMA-Factory has it."""

DATA_CASES: dict[str, DataCase] = {
    "no such file": DataCase(
        "train: tain.jsonl", {"train.jsonl": jsonl(GOOD)}, [err("STK301", "run.yaml:4: data.train", "`tain.jsonl`")]
    ),
    "no such file among several": DataCase(
        "train: [{path: a.jsonl}, {path: b.jsonl}]",
        {"a.jsonl": jsonl(GOOD)},
        [err("STK301", "run.yaml:4: data.train[1].path", "`b.jsonl`")],
    ),
    "no such eval file": DataCase(
        "{train: a.jsonl, eval: b.jsonl}",
        {"a.jsonl": jsonl(GOOD)},
        [err("STK301", "run.yaml:4: data.eval", "`b.jsonl`")],
    ),
    "a glob that matches nothing": DataCase(
        "train: 'data/*.jsonl'", {}, [err("STK301", "run.yaml:4: data.train", "`data/*.jsonl`")]
    ),
    "a folder without data": DataCase(
        "train: data", {"data/.hidden": b""}, [err("STK301", "run.yaml:4: data.train", "`data`")]
    ),
    "a spreadsheet": DataCase("train: a.xlsx", {"a.xlsx": b"PK"}, [err("STK308", "a.xlsx", "`.xlsx`", "csv")]),
    "a glob of spreadsheets": DataCase("train: '*.xlsx'", {"a.xlsx": b"PK"}, [err("STK308", "*.xlsx", "`.xlsx`")]),
    "blanks for a path": DataCase("train: '  '", {}, [err("STK315", "run.yaml:4: data.train", "folder")]),
    "unknown keys": DataCase(
        "train: a.jsonl",
        {"a.jsonl": jsonl({"q": "a", "a": "b"})},
        [err("STK303", "a.jsonl:1", "q, a", "`messages`", "{prompt: q, answer: a}")],
    ),
    "answers that are compared": DataCase(
        "train: a.jsonl",
        {"a.jsonl": jsonl({"instruction": "a", "input": "", "chosen": "b"})},
        [err("STK317", "a.jsonl:1", "`chosen`", "`output`")],
    ),
    "pairs of answers for another objective": DataCase(
        "train: a.jsonl",
        {"a.jsonl": jsonl({"instruction": "a", "input": "", "chosen": "b", "rejected": "c"})},
        [err("STK302", "a.jsonl:1", "`chosen`", "`train.objective: dpo`")],
    ),
    "a table with semicolons": DataCase(
        "train: a.csv", {"a.csv": b"prompt;completion\na;b\n"}, [err("STK466", "a.csv:1", "`;`", "commas")]
    ),
    "an empty file": DataCase("train: a.jsonl", {"a.jsonl": b"\n\n"}, [err("STK364", "run.yaml:4: data.train")]),
    "an empty text": DataCase("train: a.txt", {"a.txt": b" \n"}, [err("STK364", "run.yaml:4: data.train", "`a.txt`")]),
    "an empty list": DataCase("train: a.json", {"a.json": b"[]"}, [err("STK364", "run.yaml:4: data.train")]),
    "a column that no row has": DataCase(
        "{train: a.csv, columns: {prompt: question, answer: replay}}",
        {"a.csv": b"question,reply\na,b\n"},
        [err("STK360", "a.csv", "`replay`", "closest: `reply`", "`question`")],
    ),
    "a list of sets": DataCase(
        "train: sets", {"sets/dataset_info.json": SETS}, [err("STK173", "run.yaml:4: data.train", "#medical")]
    ),
    "a set that is not in the list": DataCase(
        "{train: 'sets/dataset_info.json#medica'}",
        {"sets/dataset_info.json": SETS},
        [err("STK361", "run.yaml:4: data.train", "closest: `medical`")],
    ),
    "a set that compares answers": DataCase(
        "{train: 'sets/dataset_info.json#ranked'}",
        {"sets/dataset_info.json": SETS},
        [err("STK362", "sets/dataset_info.json#ranked", "`columns.chosen: better`")],
    ),
    "a list that is none": DataCase(
        "{train: 'sets/dataset_info.json#medical'}",
        {"sets/dataset_info.json": b"[]"},
        [err("STK363", "run.yaml:4: data.train", "`file_name`")],
    ),
    "a table without rows": DataCase(
        "train: a.csv", {"a.csv": b"prompt,completion\n"}, [err("STK364", "run.yaml:4: data.train")]
    ),
    "a table with a torn row": DataCase(
        "train: a.csv", {"a.csv": b"prompt,completion\na,b\na,b,c\n"}, [err("STK302", "a.csv:3", "3 columns", "2")]
    ),
    "a broken json file": DataCase(
        "train: a.json",
        {"a.json": b'[\n{"text": "a"},\n{"text" "a"}]'},
        [err("STK466", "a.json:3", "not JSON", "`.jsonl`")],
    ),
    "a json file that is no list": DataCase(
        "train: a.json", {"a.json": b'{"text": "a"}'}, [err("STK466", "a.json:1", "list of rows")]
    ),
    "a parquet file that is none": DataCase(
        "train: a.parquet", {"a.parquet": b"hello"}, [err("STK353", "a.parquet", "damaged")]
    ),
    "a zip that is cut": DataCase(
        "train: a.jsonl.gz",
        {"a.jsonl.gz": gzip.compress(jsonl(GOOD))[:-9]},
        [err("STK353", "a.jsonl.gz", "damaged", "download")],
    ),
    "a name that says it is compressed": DataCase(
        "train: a.jsonl.gz", {"a.jsonl.gz": jsonl(GOOD)}, [err("STK353", "a.jsonl.gz", "remove `.gz`")]
    ),
    "conversations without a template": DataCase(
        "train: a.jsonl", {"a.jsonl": jsonl(GOOD)}, [err("STK306", "a.jsonl", "`prompt`")], "plain"
    ),
    "a history without a template": DataCase(
        "train: a.jsonl",
        {"a.jsonl": jsonl({"instruction": "a", "output": "a", "history": [["a", "a"]]})},
        [err("STK302", "a.jsonl:1", "chat template")],
        "plain",
    ),
    "answers beyond the length": DataCase(
        "{train: a.jsonl, length: 8, on_bad_row: skip}",
        {"a.jsonl": jsonl(talk(("user", "a " * 20), ("assistant", "a")))},
        [err("STK305", "run.yaml:4: data.length", "first 8 tokens", "data.length")],
    ),
    "one row to share": DataCase(
        "{train: a.jsonl, eval: 50%}", {"a.jsonl": jsonl(GOOD)}, [err("STK307", "run.yaml:4: data.eval", "50%")]
    ),
    "all rows for eval": DataCase(
        "{train: a.jsonl, eval: 100%}", {"a.jsonl": jsonl(GOOD, GOOD)}, [err("STK307", "run.yaml:4: data.eval", "100%")]
    ),
    "an empty eval file": DataCase(
        "{train: a.jsonl, eval: b.jsonl}",
        {"a.jsonl": jsonl(GOOD), "b.jsonl": b""},
        [err("STK364", "run.yaml:4: data.eval", "`b.jsonl`")],
    ),
    "Chinese as Windows writes it": DataCase(
        "train: a.jsonl",
        {"a.jsonl": jsonl(GOOD) + '{"text": "你好"}'.encode("gbk")},
        [err("STK314", "a.jsonl", f"byte {len(jsonl(GOOD)) + 11}")],
    ),
    "a tokenizer that is nowhere": DataCase(
        "train: a.jsonl", {"a.jsonl": jsonl(GOOD)}, [err("STK312", "run.yaml:2: tokenizer", "`nowhere`")], "nowhere"
    ),
    "a table of Excel, and a tokenizer to train": DataCase(
        "train: a.csv",
        {"a.csv": b"prompt;completion\na;b\n"},
        [err("STK466", "a.csv:1", "`;`")],
        "{train: bpe, vocab: 300}",
    ),
    "a table without rows, and a tokenizer to train": DataCase(
        "train: a.csv",
        {"a.csv": b"prompt,completion\n"},
        [err("STK364", "run.yaml:4: data.train")],
        "{train: bpe, vocab: 300}",
    ),
    "a table without rows beside eval rows, and a tokenizer to train": DataCase(
        "{train: a.csv, eval: b.jsonl}",
        {"a.csv": b"prompt,completion\n", "b.jsonl": jsonl(GOOD)},
        [err("STK364", "run.yaml:4: data.train", "`a.csv` is empty")],
        "{train: bpe, vocab: 300}",
    ),
    "a vocabulary the text cannot fill": DataCase(
        "train: a.txt",
        {"a.txt": b"hello"},
        [err("STK316", "run.yaml:2: tokenizer.vocab", "32000")],
        "{train: bpe, vocab: 32000}",
    ),
    "a hub that needs a package": DataCase(
        "train: modelscope:owner/name", {}, [err("STK309", "run.yaml:4: data.train", "pip install modelscope")]
    ),
}
if sys.platform == "linux":  # elsewhere no file can have such a name
    DATA_CASES |= {
        "a name in GBK": DataCase(
            "train: data",
            {os.fsdecode("data/b训练.jsonl".encode("gbk")): jsonl(GOOD)},
            [err("STK365", "", r"/data/bѵ\udcc1\udcb7.jsonl`", "convmv", "/data'/*`")],
        ),
        "a name that is written in UTF-8 and is in GBK": DataCase(
            "train: 训练/b.jsonl",
            {os.fsdecode("训练/b.jsonl".encode("gbk")): jsonl(GOOD)},
            [err("STK365", "", r"/ѵ\udcc1\udcb7`", "convmv")],
        ),
        "an eval file whose name is in GBK": DataCase(
            "{train: a.jsonl, eval: b训练.jsonl}",
            {"a.jsonl": jsonl(GOOD), os.fsdecode("b训练.jsonl".encode("gbk")): jsonl(GOOD)},
            [err("STK365", "", r"/bѵ\udcc1\udcb7.jsonl`", "convmv")],
        ),
    }
