"""Commands around the store, on a folder: push, pull, verify, runs --store, and what train asks before it starts."""

import json
from pathlib import Path
from typing import Any

import pytest
from store_case import commit, make_run

from stoker.cli import pull, push, returning, stored, verify
from stoker.errors import StokerError
from stoker.rundir import checkpoints
from stoker.rundir.layout import RunDir
from stoker.store import fetch, opening
from stoker.store.shelf import Fault


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "box"))
    monkeypatch.setenv("STOKER_LANG", "en")
    monkeypatch.chdir(tmp_path)
    made = make_run(tmp_path / "box", tmp_path / "store")
    made.final.mkdir(parents=True)
    (made.final / "model.safetensors").write_bytes(b"final")
    commit(made, 10)
    return made


def test_push_says_what_stands_in_the_store(run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    push.push("tiny", as_json=True)
    assert json.loads(capsys.readouterr().out)["step"] == 10
    push.push("tiny", as_json=False)
    assert "step 10 stands verified" in capsys.readouterr().err


def test_a_push_that_cannot_copy_ends_with_one(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def down(*_: Any) -> None:
        raise Fault("the line is cut")

    monkeypatch.setattr(opening, "of_run", down)
    with pytest.raises(SystemExit) as ended:
        push.push("tiny", as_json=False)
    assert ended.value.code == 1
    assert "the line is cut" in capsys.readouterr().err


def test_a_run_without_a_store_is_told_so(tmp_path: Path, run_dir: RunDir) -> None:
    text = run_dir.run_file.read_text(encoding="utf-8")
    run_dir.run_file.write_text(text.replace(f"store: {tmp_path / 'store'}, ", ""), encoding="utf-8")
    for command in (lambda: push.push("tiny", as_json=False), lambda: pull.pull("tiny", None, as_json=False)):
        with pytest.raises(StokerError) as caught:
            command()
        assert caught.value.code == "STK661"
    verify.verify("tiny", None, as_json=True)  # what is here can be verified all the same


def test_runs_of_a_store_are_listed(tmp_path: Path, run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    stored.runs("store", as_json=True)
    assert json.loads(capsys.readouterr().out) == []
    push.push("tiny", as_json=False)
    stored.runs("store", as_json=True)
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["name"], found["steps"], found["final"]) == ("tiny", [10], True)
    stored.runs("store", as_json=False)
    assert "tiny" in capsys.readouterr().out


def test_pull_brings_a_run_that_was_never_here(
    tmp_path: Path, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    push.push("tiny", as_json=False)
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "laptop"))
    with pytest.raises(StokerError) as caught:
        pull.pull("tiny", None, as_json=False)
    assert caught.value.code == "STK501"
    with pytest.raises(StokerError) as caught:
        pull.pull("other", "store", as_json=False)
    assert caught.value.code == "STK657"
    assert not (tmp_path / "laptop").exists()
    capsys.readouterr()
    pull.pull("tiny", "store", as_json=True)
    assert json.loads(capsys.readouterr().out) == {"name": "tiny", "step": 10, "final": True, "passed": []}
    here = RunDir(tmp_path / "laptop" / "tiny")
    assert here.run() == run_dir.run()
    assert (here.final / "model.safetensors").read_bytes() == b"final"
    pull.pull("tiny", None, as_json=True)  # again: all is here
    assert json.loads(capsys.readouterr().out)["step"] is None


def test_verify_names_what_is_damaged_here_and_there(
    tmp_path: Path, run_dir: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    push.push("tiny", as_json=False)
    verify.verify("tiny", None, as_json=False)
    assert capsys.readouterr().out.count("whole") == 2
    (there,) = (tmp_path / "store").glob("tiny/checkpoints/*/config.json")
    there.unlink()
    (run_dir.checkpoints / "step-00000010" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(StokerError) as caught:
        verify.verify("tiny", None, as_json=True)
    assert caught.value.code == "STK662"
    assert "config.json is missing" in str(caught.value)
    assert "model.safetensors has 1 bytes" in str(caught.value)
    found = json.loads(capsys.readouterr().out)
    assert [one["verified"] for one in (*found["local"], *found["store"]["checkpoints"])] == [False, False]


# ---- before training


def test_a_store_that_is_down_stops_a_run_that_has_nothing_here(
    tmp_path: Path, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def down(*_: Any) -> None:
        raise Fault("the line is cut")

    monkeypatch.setattr(opening, "of_run", down)
    new = make_run(tmp_path / "new", tmp_path / "store")
    with pytest.raises(StokerError) as caught:
        returning.check(new, new.run())
    assert caught.value.code == "STK652"
    returning.check(run_dir, run_dir.run())
    returning.bring(run_dir, run_dir.run())
    assert "copies follow" in capsys.readouterr().err


def test_a_new_machine_gets_events_and_checkpoint(
    tmp_path: Path, run_dir: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    push.push("tiny", as_json=False)
    new = make_run(tmp_path / "new", tmp_path / "store")
    returning.check(new, new.run())
    returning.bring(new, new.run())
    assert [one.step for one in checkpoints.committed(new.checkpoints)] == [10]
    assert new.events_file.exists()
    said = capsys.readouterr().err
    assert "step 10 is in the store and not here" in said
    assert "same disk" in said


def test_without_a_store_nothing_is_asked(tmp_path: Path, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(opening, "of_run", never)
    monkeypatch.setattr(fetch, "newer_checkpoint", never)
    text = run_dir.run_file.read_text(encoding="utf-8")
    run_dir.run_file.write_text(text.replace(f"store: {tmp_path / 'store'}, ", ""), encoding="utf-8")
    returning.check(run_dir, run_dir.run())
    returning.bring(run_dir, run_dir.run())
