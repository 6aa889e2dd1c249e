"""What tasks read follows from the sources alone, and a pipeline is known by what it reads and does."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from stoker import tools
from stoker.config import load
from stoker.errors import StokerError
from stoker.launch import pipeline
from stoker.rows import pipeline_output
from stoker.rundir import layout
from stoker.rundir.layout import RunDir

WORDS = """
model: {shape: llama, layers: 1, width: 64, heads: 1}
tokenizer: {train: bpe, vocab: 300}
data:
  train: [{path: a, weight: 2}, {path: "b/*.jsonl"}, {path: "hub:owner/name", split: "train[:1%]"}]
  pipeline: [{step: ExactDedup}, {step: NGramsDecont, against: [eval.csv, exam]}]
"""


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("STOKER_TOOLS", str(tmp_path / "none"))
    names = ("a/1.jsonl", "a/2.parquet", "a/3.warc.gz", "b/1.jsonl", "b/2.jsonl", "eval.csv", "exam/x.jsonl", "a/0.txt")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    return make(tmp_path, WORDS)


def make(folder: Path, words: str) -> RunDir:
    (folder / "run.yaml").write_text(words, encoding="utf-8")
    return layout.create(load.load(str(folder / "run.yaml")))


def job(run_dir: RunDir) -> pipeline_output.PipelineJob:
    return pipeline._job(run_dir, pipeline_output.place(run_dir), "0.10.1")


def test_a_task_reads_one_file_of_one_source(run_dir: RunDir) -> None:
    shares = job(run_dir).shares
    found = [(one["source"], one["kind"], *one["files"]) for one in shares[:5]]
    assert found == [
        (0, ".jsonl", "a/1.jsonl"),
        (0, ".parquet", "a/2.parquet"),
        (0, ".warc", "a/3.warc.gz"),
        (1, ".jsonl", "b/1.jsonl"),
        (1, ".jsonl", "b/2.jsonl"),
    ]
    assert {one["source"] for one in shares[5:]} == {2}
    assert [one["part"] for one in shares[5:]] == list(range(shares[5]["parts"]))


def test_many_files_share_a_task(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "MOST_TASKS", 3)
    shares = job(run_dir).shares
    assert [one["files"] for one in shares if one["source"] == 1] == [["b/1.jsonl", "b/2.jsonl"]]


def test_eval_sets_are_files_of_their_kinds(run_dir: RunDir) -> None:
    assert job(run_dir).steps[1]["against"] == [
        {"kind": ".csv", "files": ["eval.csv"]},
        {"kind": ".jsonl", "files": ["exam/x.jsonl"]},
    ]


def test_what_is_read_and_done_is_the_key_and_weights_and_length_are_not(run_dir: RunDir) -> None:
    folder, before = run_dir.folder(), pipeline_output.place(run_dir)
    assert pipeline_output.place(make(folder, WORDS.replace("weight: 2", "weight: 3"))) == before
    assert pipeline_output.place(make(folder, WORDS.replace("ExactDedup", "MinhashDedup"))) != before
    (folder / "exam" / "x.jsonl").write_text("another exam", encoding="utf-8")
    assert pipeline_output.place(make(folder, WORDS)) != before


def test_files_that_datatrove_cannot_read_are_refused(run_dir: RunDir) -> None:
    other = make(run_dir.folder(), WORDS.replace("path: a,", "path: a/0.txt,"))
    with pytest.raises(StokerError, match="STK331"):
        pipeline.run(other, lambda _: None)


def test_without_datatrove_the_error_says_how_to_install_it(run_dir: RunDir) -> None:
    if tools.find(tools.DATATROVE):
        pytest.skip("datatrove is in our own environment")
    with pytest.raises(StokerError, match="STK601") as caught:
        pipeline.run(run_dir, lambda _: None)
    assert "datatrove" in str(caught.value.hint)


def test_an_output_that_is_not_whole_is_none(run_dir: RunDir) -> None:
    place = pipeline_output.place(run_dir)
    (place / "output").mkdir(parents=True)
    (place / "output" / "00003.jsonl").write_text("{}\n", encoding="utf-8")
    digest = hashlib.sha256(b"{}\n").hexdigest()
    done: dict[str, Any] = {"key": "k", "version": "0.10.1", "files": {"00003.jsonl": [3, digest]}, "stages": []}
    for name, value in (("done.json", done), ("job.json", job(run_dir).model_dump())):
        pipeline.files.write_json(place / name, value)
    found = pipeline_output.read(place)
    assert found is not None
    assert pipeline_output.of_source(*found, 1) == ["00003.jsonl"]
    for damaged in ("{}", "[]\n"):
        (place / "output" / "00003.jsonl").write_text(damaged, encoding="utf-8")
        assert pipeline_output.read(place) is None
