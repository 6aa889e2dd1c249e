"""A start that is refused leaves the run as it was: also the record of the place that trains it."""

import os
from datetime import datetime, timezone
from pathlib import Path

import pytest

from stoker.api import planning, start, store_return
from stoker.api.start import Listener
from stoker.config import load
from stoker.errors import StokerError
from stoker.launch import training
from stoker.places import registry
from stoker.rundir import events, files, last_known, layout
from stoker.rundir.layout import RunDir

RUN = """\
model: {shape: llama, layers: 1, width: 32, heads: 2, ffn: 64, vocab: 300}
tokenizer: {train: bpe, vocab: 300}
data: {train: words.txt, length: 32}
train: {objective: pretrain, steps: 4}
save: {store: s3://bucket/copies}
"""


def test_a_start_that_the_store_refuses_keeps_the_record_of_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    (tmp_path / "tiny.yaml").write_text(RUN)
    run_file = load.load(str(tmp_path / "tiny.yaml"))
    run_dir = layout.create(run_file)
    last_known.sent(run_dir, "box-1", {}, None, "s3://bucket/copies")

    def held(*_: object) -> None:
        raise StokerError("STK656", name="tiny")

    monkeypatch.setattr(store_return, "check", held)
    with pytest.raises(StokerError) as told:
        start.begin(run_file, Listener())
    assert told.value.code == "STK656"
    assert registry.recorded(run_dir) == "box-1"


@pytest.mark.parametrize(("launched", "age_seconds"), [("", 0), ("2026-11-16T12:00:00+00:00", 60)])
def test_only_a_stop_of_this_launch_reaches_its_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: str, age_seconds: int
) -> None:
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("STOKER_LAUNCHED", launched)
    (tmp_path / "tiny.yaml").write_text(RUN.partition("save:")[0])
    run_file = load.load(str(tmp_path / "tiny.yaml"))
    run_dir = layout.create(run_file)
    at = datetime.fromisoformat(launched or "2026-11-16T12:00:00+00:00").timestamp() - age_seconds
    found: list[bool] = []

    def ready(*_: object) -> None:
        found.append(run_dir.stop_file.exists())
        training.ask_to_stop(run_dir)

    monkeypatch.setattr(start, "_ready", ready)
    monkeypatch.setattr(start, "_start", lambda run_dir, _: found.append(run_dir.stop_file.exists()))
    run_dir.stop_file.touch()
    os.utime(run_dir.stop_file, (at, at))
    start.begin(run_file, Listener())
    assert found == [False, True]


@pytest.mark.parametrize("missing", ["", "state", "model", "end", "steps"])
def test_a_finished_run_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    (tmp_path / "tiny.yaml").write_text(RUN.partition("save:")[0])
    run_file = load.load(str(tmp_path / "tiny.yaml"))
    run_dir = layout.create(run_file)
    made = planning.plan(run_file, {"data.tokens": 1000, "train.steps": 8 if missing == "steps" else 4})
    files.write_json(run_dir.supervisor_file, {"state": "stopped" if missing == "state" else "done", "pid": 0})
    if missing != "model":
        run_dir.final.mkdir(parents=True)
    if missing != "end":
        events.append(run_dir.events_file, "end", status="done", step=4)
    started: list[RunDir] = []
    shown: list[object] = []
    monkeypatch.setattr(start, "_ready", lambda *_: made)
    monkeypatch.setattr(start, "_start", lambda run_dir, _: started.append(run_dir))
    found = start.begin(run_file, Listener(planned=shown.append))
    if missing:
        assert (len(started), len(shown)) == (1, 1)
    else:
        assert (found.process, started, shown) == (None, [], [])


def test_a_stop_that_comes_before_the_launch_holds_its_lock_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_LAUNCHED", "2026-11-16T12:00:00+00:00")
    run_dir = RunDir(tmp_path)
    run_dir.stop_file.touch()
    os.utime(run_dir.stop_file, (at := datetime(2026, 11, 16, 12, 0, 1, tzinfo=timezone.utc).timestamp(), at))
    start._forget_request(run_dir)
    assert run_dir.stop_file.exists()
