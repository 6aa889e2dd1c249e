"""Planted duplicates and leaks in real text, through the real datatrove; kills at points do not change the set."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import planted_text
import pytest
from planted_text import Planted

from stoker import tools
from stoker.rundir import prepared
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report

pytestmark = pytest.mark.skipif(tools.find(tools.DATATROVE) is None, reason="no datatrove environment")
STEPS: list[dict[str, Any]] = [
    {"step": "GopherQualityFilter", "options": {"min_doc_words": 50, **planted_text.ONLY_BY_LENGTH}},
    {"step": "ExactDedup"},
    {"step": "MinhashDedup"},
    {"step": "NGramsDecont", "against": "eval.jsonl"},
    {"step": "PIIFormatter"},
]
KILLED_AT = (0, 5, 20, 45)
"""Files in the folders of the stages."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Planted]:
    folder = tmp_path_factory.mktemp("corpus")
    planted = planted_text.plant(60, seed=3)
    planted_text.write(planted, folder, files=4, parquet=True)
    (folder / "raw" / "empty.jsonl").write_text("", encoding="utf-8")
    return folder, planted


def start(folder: Path, name: str, **native: Any) -> "subprocess.Popen[bytes]":
    words = {
        "name": name,
        "model": {"shape": "llama", "layers": 1, "width": 64, "heads": 1},
        "tokenizer": {"train": "bpe", "vocab": 400},
        "data": {"train": "raw", "pipeline": STEPS, "length": 128},
        "train": {"objective": "pretrain"},
        "native": {"datatrove": native},
    }
    (folder / f"{name}.yaml").write_text(json.dumps(words), encoding="utf-8")
    command = [sys.executable, "-m", "stoker", "prepare", f"{name}.yaml"]
    variables = {**os.environ, "STOKER_RUNS": str(folder / "runs")}
    return subprocess.Popen(command, cwd=folder, env=variables, start_new_session=True)


def report(folder: Path, name: str) -> Report:
    found = prepared.read_report(RunDir(folder / "runs" / name).data)
    assert found is not None
    return found


def place(folder: Path, name: str) -> Path:
    return next(iter((folder / "runs" / name / "pipeline").glob("*")), folder / "none")


def test_planted_duplicates_and_leaks_go_and_kills_change_nothing(corpus: tuple[Path, Planted]) -> None:
    folder, planted = corpus
    assert start(folder, "whole", workers=2).wait() == 0
    found = planted_text.scored(planted, place(folder, "whole"))
    assert found["f1"] >= 0.97, found
    assert (found["leaks_left"], found["short_left"]) == (0, 0)
    whole = report(folder, "whole")
    drops = [block["counts"].get("dropped", 0) for stage in whole.pipeline or [] for block in stage["blocks"]]
    assert sum(drops) == len(planted.rows) - whole.rows_read

    killed = 0
    for number, goal in enumerate(KILLED_AT):
        process = start(folder, "killed", workers=1 + number % 2)
        while process.poll() is None and len(list(place(folder, "killed").glob("stages/*/*/*"))) <= goal:
            time.sleep(0.02)
        if process.poll() is None:
            killed += 1
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert killed >= 3
    assert start(folder, "killed").wait() == 0
    assert report(folder, "killed").digest == whole.digest
    assert report(folder, "killed").pipeline == whole.pipeline
