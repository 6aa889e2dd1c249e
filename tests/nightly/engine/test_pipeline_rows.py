"""What `data.pipeline` cannot read, through the real datatrove: named as `prepare` names it, never just left out."""

import csv
import fcntl
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stoker import tools
from stoker.engine import foreign as stoker_foreign
from stoker.errors import StokerError
from stoker.launch import pipeline
from stoker.rows import pipeline_output
from stoker.rundir import prepared
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report
from stoker.supervise import starting

pytestmark = pytest.mark.skipif(tools.find(tools.DATATROVE) is None, reason="no datatrove environment")
TEXTS = [f"wagon {number} of a long goods train" for number in range(40)]


def jsonl(*rows: Any) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)) + "\n" for row in rows)


def table(rows: list[list[str]]) -> str:
    written = io.StringIO(newline="")
    csv.writer(written).writerows(rows)
    return written.getvalue()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow
    from pyarrow import parquet as tables

    written = io.BytesIO()
    tables.write_table(pyarrow.Table.from_pylist(rows), written)
    return written.getvalue()


GOOD = [{"text": text} for text in TEXTS]
NAMED = [["text"], *([text] for text in TEXTS)]


@dataclass(frozen=True)
class Raw:
    """A file, and what is wrong in it: a code and a place, where it is one row."""

    name: str
    content: bytes
    code: str = ""
    where: str = ""
    rows: tuple[int, ...] = ()
    """Those that are listed, where it is not only that of the place."""


RAW = {
    "a mark of Windows": Raw("a.jsonl", jsonl(*GOOD).encode("utf-8-sig")),
    "a mark of Excel": Raw("a.csv", table(NAMED).encode("utf-8-sig")),
    "not a number": Raw("a.jsonl", jsonl('{"text": "x", "score": NaN}', *GOOD[1:]).encode()),
    "a long field": Raw("a.csv", table([["text"], ["wagon " * 30_000], *NAMED[2:]]).encode()),
    "empty lines": Raw("a.jsonl", jsonl(*GOOD, "", " ").encode()),
    "a torn line": Raw("a.jsonl", jsonl(GOOD[0], '{"text": "wag', *GOOD[1:]).encode(), "STK302", "raw/a.jsonl:2"),
    "no text": Raw("a.jsonl", jsonl({"content": "x"}, *GOOD).encode(), "STK302", "raw/a.jsonl:1"),
    "an empty text": Raw("a.jsonl", jsonl(*GOOD, {"text": ""}).encode(), "STK302", "raw/a.jsonl:41"),
    "a text that is a number": Raw("a.jsonl", jsonl(*GOOD, {"text": 7}).encode(), "STK302", "raw/a.jsonl:41"),
    "a list": Raw("a.jsonl", jsonl([1], *GOOD).encode(), "STK302", "raw/a.jsonl:1"),
    "a torn table": Raw("a.csv", table([*NAMED, ["a", "b"]]).encode(), "STK302", "raw/a.csv:42"),
    "a table without it": Raw("a.parquet", parquet([*GOOD, {"text": None}]), "STK302", "raw/a.parquet: record 41"),
    "half a surrogate": Raw("a.jsonl", jsonl('{"text": "x\\ud83d"}', *GOOD).encode(), "STK302", "raw/a.jsonl:1"),
    "half a surrogate as id": Raw(
        "a.jsonl", jsonl(*GOOD, '{"text": "x", "id": "\\ud83d"}').encode(), "STK302", "raw/a.jsonl:41"
    ),
    "a number of many digits": Raw(
        "a.jsonl", jsonl('{"text": "x", "n": ' + "7" * 5000 + "}", *GOOD).encode(), "STK302", "raw/a.jsonl:1"
    ),
    "a row of many brackets": Raw(
        "a.jsonl", jsonl('{"text": "x", "n": ' + "[" * 200_000 + "}", *GOOD).encode(), "STK302", "raw/a.jsonl:1"
    ),
    "empty cells": Raw(
        "a.csv",
        table([["text", "note"], ["", "x"], *([text, "two\nlines"] for text in TEXTS), ["", "y"]]).encode(),
        "STK302",
        "raw/a.csv:2",
        (2, 83),
    ),
    "empty records": Raw(
        "a.parquet", parquet([{"text": ""}, *GOOD, {"text": None}]), "STK302", "raw/a.parquet: record 1", (1, 42)
    ),
    "a name twice": Raw("a.csv", table([["text", "text"], *([t, t] for t in TEXTS)]).encode(), "STK466", "raw/a.csv:1"),
    "semicolons": Raw("a.csv", "".join(f"{t};1\n" for t in ("text", *TEXTS)).encode(), "STK466", "raw/a.csv:1"),
    "another encoding": Raw("a.jsonl", (jsonl(*GOOD) + jsonl({"text": "列车"})).encode("gbk"), "STK314"),
    "a cut archive": Raw("a.jsonl.gz", gzip.compress(jsonl(*GOOD).encode())[:-9], "STK353"),
    "a changed archive": Raw("a.jsonl.gz", gzip.compress(jsonl(*GOOD).encode())[:60] + bytes(40), "STK353"),
    "no parquet": Raw("a.parquet", b"PAR1 and nothing else", "STK353"),
}


def prepare(folder: Path, data: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
    words = {
        "model": {"shape": "llama", "layers": 1, "width": 64, "heads": 1},
        "tokenizer": {"train": "bpe", "vocab": 300},
        "data": {"train": "raw", "length": 128, **data},
        "train": {"objective": "pretrain"},
    }
    (folder / "run.yaml").write_text(json.dumps(words), encoding="utf-8")
    command = [sys.executable, "-m", "stoker", "prepare", "run.yaml", "--json"]
    variables = {**os.environ, "STOKER_RUNS": str(folder / "runs"), "STOKER_LANG": "en"}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


def report(folder: Path) -> Report | None:
    return prepared.read_report(RunDir(folder / "runs" / "run").data)


@pytest.mark.parametrize("kind", RAW)
def test_what_cannot_be_read_is_named_or_listed(kind: str, tmp_path: Path) -> None:
    raw = RAW[kind]
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "b.jsonl").write_text(jsonl(*GOOD), encoding="utf-8")
    (tmp_path / "raw" / raw.name).write_bytes(raw.content)
    steps = {"pipeline": [{"step": "PIIFormatter"}]}
    done = prepare(tmp_path, steps)
    if raw.code:
        error = json.loads(done.stdout)["error"]
        assert (done.returncode, error["code"]) == (1, raw.code), done.stdout + done.stderr
        assert error["where"] == (raw.where or f"raw/{raw.name}")
        done = prepare(tmp_path, {**steps, "on_bad_row": "skip"})
    if raw.code in ("STK314", "STK353", "STK466"):
        assert done.returncode == 1, "no part of a file is used"
        return
    assert done.returncode == 0, done.stdout + done.stderr
    made = report(tmp_path)
    assert made is not None
    lists = [path.read_text(encoding="utf-8").splitlines() for path in tmp_path.rglob("bad_rows/*.jsonl")]
    listed = [json.loads(line) for lines in lists for line in lines]
    found = raw.rows or ([int(re.findall(r"\d+", raw.where)[-1])] if raw.code else [])
    assert [(row["file"], row["row"]) for row in listed] == [(f"raw/{raw.name}", number) for number in found]
    assert made.rows_read == 2 * len(TEXTS)


def raw_rows(folder: Path, *rows: Any) -> None:
    (folder / "raw").mkdir(exist_ok=True)
    (folder / "raw" / "b.jsonl").write_text(jsonl(*rows), encoding="utf-8")


def test_rows_that_were_left_out_are_named_once_they_may_not_be(tmp_path: Path) -> None:
    raw_rows(tmp_path, *GOOD, {"text": ""})
    (tmp_path / "exam.jsonl").write_text(jsonl({"question": "a"}), encoding="utf-8")
    steps = {"pipeline": [{"step": "NGramsDecont", "against": "exam.jsonl"}, {"step": "ExactDedup"}]}
    assert prepare(tmp_path, {**steps, "on_bad_row": "skip"}).returncode == 0
    made = report(tmp_path)
    assert made is not None
    assert pipeline_output.num_bad(made.pipeline or []) == 1
    done = prepare(tmp_path, steps)
    assert json.loads(done.stdout)["error"]["where"] == "raw/b.jsonl:41", done.stdout + done.stderr
    assert prepare(tmp_path, {**steps, "on_bad_row": "skip"}).returncode == 0


def test_a_pipeline_that_leaves_nothing_says_what_dropped_it(tmp_path: Path) -> None:
    raw_rows(tmp_path, *GOOD)
    done = prepare(tmp_path, {"pipeline": [{"step": "GopherQualityFilter"}]})
    error = json.loads(done.stdout)["error"]
    assert (error["code"], "Gopher Quality 40" in error["message"]) == ("STK368", True), done.stdout
    raw_rows(tmp_path, *({"prompt": "a", "completion": text} for text in TEXTS))
    done = prepare(tmp_path, {"pipeline": [{"step": "ExactDedup"}], "on_bad_row": "skip"})
    error = json.loads(done.stdout)["error"]
    assert (error["code"], "could not be used: 40" in error["message"]) == ("STK368", True), done.stdout
    error = json.loads(prepare(tmp_path, {"pipeline": [{"step": "ExactDedup"}]}).stdout)["error"]
    assert "`prompt`, `completion`" in error["message"], error


@pytest.mark.parametrize("words", [3, 20])
def test_eval_rows_that_keep_nothing_out_are_counted(words: int, tmp_path: Path) -> None:
    raw_rows(tmp_path, *GOOD)
    (tmp_path / "exam.jsonl").write_text(jsonl({"question": "why " * words}), encoding="utf-8")
    steps = {"pipeline": [{"step": "NGramsDecont", "against": "exam.jsonl"}]}
    assert prepare(tmp_path, steps).returncode == 0
    made = report(tmp_path)
    assert made is not None
    counts = [block["counts"].get("without_ngrams", 0) for one in made.pipeline or [] for block in one["blocks"]]
    assert sum(counts) == (words < 12)


def test_a_dataset_of_a_hub_names_its_rows(tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "train.jsonl").write_text(jsonl(*GOOD, {"text": ""}, *GOOD, {"text": ""}), encoding="utf-8")
    steps = {"pipeline": [{"step": "PIIFormatter"}], "train": {"path": f"hub:{tmp_path / 'hub'}", "split": "train"}}
    done = prepare(tmp_path, {**steps, "on_bad_row": "skip"})
    assert done.returncode == 0, done.stdout + done.stderr
    lists = [path.read_text(encoding="utf-8").splitlines() for path in tmp_path.rglob("bad_rows/*.jsonl")]
    assert sorted(json.loads(line)["row"] for lines in lists for line in lines) == [41, 82]


def test_sources_that_change_while_a_pipeline_reads_them_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw_rows(tmp_path, *GOOD)
    assert prepare(tmp_path, steps := {"pipeline": [{"step": "PIIFormatter"}]}).returncode == 0
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    run_dir = RunDir(tmp_path / "runs" / "run")
    shutil.rmtree(run_dir.path / "pipeline")
    plain = starting.start

    def changed_meanwhile(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        raw_rows(tmp_path, *GOOD, *GOOD)
        return plain(*words, **options)

    with monkeypatch.context() as inner:
        inner.setattr(starting, "start", changed_meanwhile)
        with pytest.raises(StokerError, match="STK366"):
            pipeline.run(run_dir, lambda _: None)
    assert list((run_dir.path / "pipeline").iterdir()) == []
    raw_rows(tmp_path, *GOOD)
    assert prepare(tmp_path, steps).returncode == 0


def test_a_pipeline_ends_with_its_command(tmp_path: Path) -> None:
    raw_rows(tmp_path, *GOOD)
    assert prepare(tmp_path, {"pipeline": [{"step": "PIIFormatter"}]}).returncode == 0
    (job,) = tmp_path.rglob("job.json")
    (done,) = tmp_path.rglob("done.json")
    done.unlink()
    script = Path(stoker_foreign.__path__[0]) / "stoker_pipeline.py"
    holder = (job.parent / "lock").open("wb")  # it waits for this lock
    fcntl.flock(holder, fcntl.LOCK_EX)
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    command = [str(tools.require(tools.DATATROVE)), "-I", "-X", "utf8", str(script), str(job), str(gone.pid)]
    with holder:
        assert subprocess.run(command, capture_output=True, check=False, timeout=120).returncode == 1
    assert not done.exists()


def test_an_exam_that_cannot_be_read_leaks_nothing(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "b.jsonl").write_text(jsonl(*GOOD), encoding="utf-8")
    (tmp_path / "exam.jsonl").write_bytes(
        (jsonl({"question": "a"}, {"question": ""}) + jsonl({"q": "列车"})).encode("gbk")
    )
    steps = {"pipeline": [{"step": "NGramsDecont", "against": "exam.jsonl"}], "on_bad_row": "skip"}
    done = prepare(tmp_path, steps)
    assert (done.returncode, "STK314" in done.stdout + done.stderr) == (1, True), done.stdout + done.stderr
    assert "exam.jsonl" in done.stdout + done.stderr
    (tmp_path / "exam.jsonl").write_text(jsonl({"question": "a"}, {"question": ""}), encoding="utf-8")
    assert prepare(tmp_path, steps).returncode == 0
