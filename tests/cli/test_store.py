"""Commands around the store, on a folder: push, pull, verify, runs --store, and what train asks before it starts."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from store_case import commit, make_run

from stoker.cli import pull_command, push_command, returning, stored, verify_command
from stoker.errors import StokerError, StokerErrors
from stoker.rundir import checkpoints
from stoker.rundir.layout import RunDir
from stoker.store import fetch, opening
from stoker.store import push as pushing
from stoker.store.directory import DirectoryStore
from stoker.store.shelf import Fault, Patience


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
    push_command.push("tiny", as_json=True)
    assert json.loads(capsys.readouterr().out)["step"] == 10
    push_command.push("tiny", as_json=False)
    assert "step 10 stands verified" in capsys.readouterr().err


def test_a_push_that_cannot_copy_for_now_ends_with_75(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def down(*_: Any) -> None:
        raise Fault("the line is cut")

    monkeypatch.setattr(opening, "of_run", down)
    with pytest.raises(SystemExit) as ended:
        push_command.push("tiny", as_json=False)
    assert ended.value.code == 75
    assert "the line is cut" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setenv("STOKER_RUNS", str(run_dir.path.parent))
    _move_store(run_dir, "unmounted/store")
    with pytest.raises(SystemExit) as ended:
        push_command.push("tiny", as_json=False)
    assert ended.value.code == 75


def test_a_push_that_no_waiting_mends_is_an_error_of_the_users(tmp_path: Path, run_dir: RunDir) -> None:
    """Those end with 1."""
    other = make_run(tmp_path / "other", tmp_path / "store", **{"batch: 4": "batch: 8"})
    commit(other, 10)
    pushing.push(other)
    with pytest.raises(StokerError) as caught:
        push_command.push("tiny", as_json=False)
    assert caught.value.code == "STK659"
    _move_store(run_dir, "s3://me:password@bucket/x")
    with pytest.raises(StokerErrors):
        push_command.push("tiny", as_json=False)


def _move_store(run_dir: RunDir, address: str) -> None:
    text = run_dir.run_file.read_text(encoding="utf-8")
    run_dir.run_file.write_text(re.sub("store: [^,]*,", f"store: '{address}',", text), encoding="utf-8")


def test_a_run_without_a_store_is_told_so(tmp_path: Path, run_dir: RunDir) -> None:
    text = run_dir.run_file.read_text(encoding="utf-8")
    run_dir.run_file.write_text(text.replace(f"store: {tmp_path / 'store'}, ", ""), encoding="utf-8")
    for command in (
        lambda: push_command.push("tiny", as_json=False),
        lambda: pull_command.pull("tiny", None, as_json=False),
    ):
        with pytest.raises(StokerError) as caught:
            command()
        assert caught.value.code == "STK661"
    verify_command.verify("tiny", None, as_json=True)  # what is here can be verified all the same


def test_runs_of_a_store_are_listed(tmp_path: Path, run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    stored.runs("store", as_json=True)
    assert json.loads(capsys.readouterr().out) == []
    push_command.push("tiny", as_json=False)
    stored.runs("store", as_json=True)
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["name"], found["steps"], found["final"]) == ("tiny", [10], True)
    stored.runs("store", as_json=False)
    assert "tiny" in capsys.readouterr().out


def test_pull_brings_a_run_that_was_never_here(
    tmp_path: Path, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    push_command.push("tiny", as_json=False)
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "laptop"))
    with pytest.raises(StokerError) as caught:
        pull_command.pull("tiny", None, as_json=False)
    assert caught.value.code == "STK501"
    with pytest.raises(StokerError) as caught:
        pull_command.pull("other", "store", as_json=False)
    assert caught.value.code == "STK657"
    assert not (tmp_path / "laptop").exists()
    capsys.readouterr()
    pull_command.pull("tiny", "store", as_json=True)
    assert json.loads(capsys.readouterr().out) == {"name": "tiny", "step": 10, "final": True, "passed": []}
    here = RunDir(tmp_path / "laptop" / "tiny")
    assert here.run() == run_dir.run()
    assert (here.final / "model.safetensors").read_bytes() == b"final"
    pull_command.pull("tiny", None, as_json=True)  # again: all is here
    assert json.loads(capsys.readouterr().out)["step"] is None


def test_verify_names_what_is_damaged_here_and_there(
    tmp_path: Path, run_dir: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    push_command.push("tiny", as_json=False)
    verify_command.verify("tiny", None, as_json=False)
    assert capsys.readouterr().out.count("whole") == 3
    (there,) = (tmp_path / "store").glob("tiny/checkpoints/*/config.json")
    there.unlink()
    (run_dir.checkpoints / "step-00000010" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(StokerError) as caught:
        verify_command.verify("tiny", None, as_json=True)
    assert caught.value.code == "STK662"
    assert "config.json is missing" in str(caught.value)
    assert "model.safetensors has 1 bytes" in str(caught.value)
    found = json.loads(capsys.readouterr().out)
    assert [one["verified"] for one in (*found["local"], *found["store"]["checkpoints"])] == [False, False]


def test_verify_names_a_finished_model_that_is_damaged_in_the_store(tmp_path: Path, run_dir: RunDir) -> None:
    push_command.push("tiny", as_json=False)
    (tmp_path / "store/tiny/artifacts/final/model.safetensors").write_bytes(b"fLnal")
    with pytest.raises(StokerError) as caught:
        verify_command.verify("tiny", None, as_json=False)
    assert "artifacts/final: model.safetensors has another digest" in str(caught.value)


def test_verify_misses_what_is_here_and_not_in_the_store(
    tmp_path: Path, run_dir: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StokerError) as caught:
        verify_command.verify("tiny", None, as_json=False)
    assert str(caught.value).count("not in the store") == 2
    push_command.push("tiny", as_json=False)
    verify_command.verify("tiny", None, as_json=False)
    commit(run_dir, 20)
    (run_dir.final / "model.safetensors").write_bytes(b"newer")
    capsys.readouterr()
    with pytest.raises(StokerError) as caught:
        verify_command.verify("tiny", None, as_json=True)
    assert str(caught.value).count("not in the store") == 2
    missing = json.loads(capsys.readouterr().out)["store"]["missing"]
    assert [one["step"] for one in missing] == [20, None]
    push_command.push("tiny", as_json=False)
    verify_command.verify("tiny", None, as_json=False)


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
    assert "copying resumes" in capsys.readouterr().err


def test_training_goes_on_with_what_is_here_when_the_drive_is_not_mounted(
    tmp_path: Path, run_dir: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    _move_store(run_dir, str(tmp_path / "drive" / "store"))
    returning.check(run_dir, run_dir.run())
    returning.bring(run_dir, run_dir.run())
    assert capsys.readouterr().err.count("copying resumes") == 2
    assert not (tmp_path / "drive").exists()


def test_training_goes_on_with_what_is_here_when_the_line_dies_in_a_download(
    tmp_path: Path, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(run_dir, 20)
    push_command.push("tiny", as_json=False)
    behind = make_run(tmp_path / "behind", tmp_path / "store")
    commit(behind, 10)

    def cut(*_: Any) -> None:
        raise Fault("the line is cut")

    monkeypatch.setattr(DirectoryStore, "download", cut)
    monkeypatch.setattr(Patience, "pause", lambda self, attempt: None)
    returning.bring(behind, behind.run())
    assert "copying resumes" in capsys.readouterr().err


def test_a_new_machine_gets_events_and_checkpoint(
    tmp_path: Path, run_dir: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    push_command.push("tiny", as_json=False)
    new = make_run(tmp_path / "new", tmp_path / "store")
    returning.check(new, new.run())
    returning.bring(new, new.run())
    assert [one.step for one in checkpoints.committed(new.checkpoints)] == [10]
    assert new.events_file.exists()
    said = capsys.readouterr().err
    assert "step 10 is only in the store" in said
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
