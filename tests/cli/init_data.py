"""Data of many kinds for the tests of `stoker init`, in the current folder, and the command on it."""

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from made_runs import CommandLine

from stoker.config import load
from stoker.config.run import Run

WORDS = (
    "the",
    "engine",
    "keeps",
    "the",
    "fire",
    "going",
    "while",
    "the",
    "train",
    "rolls",
    "over",
    "hills",
    "and",
    "valleys",
    "towards",
    "the",
    "sea",
)
CHARACTERS = "炉火不熄列车不停穿过山川河流奔向大海春夏秋冬"
MODEL = "Qwen/Qwen2.5-0.5B"
draw = random.Random()
"""Seeded by each test."""


def words(count: int) -> str:
    return " ".join(draw.choices(WORDS, k=count))


def chinese(count: int) -> str:
    return "".join(draw.choices(CHARACTERS, k=count))


def jsonl(name: str, rows: Sequence[Any]) -> str:
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    Path(name).write_text(lines, encoding="utf-8")
    return name


def pairs(count: int, answer: int = 60) -> list[dict[str, str]]:
    return [{"prompt": f"{words(10)} {number}?", "completion": words(answer)} for number in range(count)]


def one_text() -> str:
    Path("book.txt").write_text("\n".join(words(1000) for _ in range(900)), encoding="utf-8")
    return "book.txt"


def parquet() -> str:
    made = "import json, sys, pyarrow as p, pyarrow.parquet as q; rows = p.Table.from_pylist(json.load(sys.stdin)); "
    made += "q.write_table(rows, 'a.parquet', row_group_size=300)"
    rows = [{"text": words(400)} for _ in range(1000)]
    subprocess.run([sys.executable, "-c", made], input=json.dumps(rows), text=True, check=True)
    return "a.parquet"


def twenty() -> str:
    return jsonl("a.jsonl", pairs(20))


def init(stoker: CommandLine, data: str, goal: str, language: str = "en", model: str = MODEL) -> tuple[Run, str]:
    Path("run.yaml").unlink(missing_ok=True)
    outcome = stoker("init", stdin=f"1\n{model}\n{data}\nRTX4090\n{goal}\n", language=language)
    assert outcome.code == 0, outcome.err
    return load.load("run.yaml").run, outcome.err


def planned(stoker: CommandLine) -> dict[str, int]:
    outcome = stoker("plan", "run.yaml", "--card", "RTX4090", "--json")
    assert outcome.code == 0, outcome.err
    steps: dict[str, int] = json.loads(outcome.out)["steps"]
    return steps
