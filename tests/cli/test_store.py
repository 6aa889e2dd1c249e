"""Commands around the store, on a folder: push, pull, verify, runs --store, and what train asks before it starts."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from store_case import commit, make_run

from stoker.api import store_return
from stoker.cli import store_commands
from stoker.errors import StokerError, StokerErrors
from stoker.rundir import checkpoints, layout, training_words
from stoker.rundir.layout import RunDir
from stoker.store import fetch, opening, verification
from stoker.store import push as pushing
from stoker.store.directory import DirectoryStore
from stoker.store.store_protocol import Fault, Patience
from stoker.terminal import console


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
    store_commands.push("tiny", as_json=True)
    assert json.loads(capsys.readouterr().out)["step"] == 10
    store_commands.push("tiny", as_json=False)
    assert "step 10 is verified" in capsys.readouterr().err


def test_a_push_that_cannot_copy_for_now_ends_with_75(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def down(*_: Any) -> None:
        raise Fault("the line is cut")

    monkeypatch.setattr(opening, "of_run", down)
    with pytest.raises(SystemExit) as ended:
        store_commands.push("tiny", as_json=False)
    assert ended.value.code == 75
    assert "the line is cut" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setenv("STOKER_RUNS", str(run_dir.path.parent))
    _move_store(run_dir, "unmounted/store")
    with pytest.raises(SystemExit) as ended:
        store_commands.push("tiny", as_json=False)
    assert ended.value.code == 75


def test_a_push_that_no_waiting_mends_is_an_error_of_the_users(tmp_path: Path, run_dir: RunDir) -> None:
    """Those end with 1."""
    other = make_run(tmp_path / "other", tmp_path / "store", **{"batch: 4": "batch: 8"})
    commit(other, 10)
    pushing.push(other)
    with pytest.raises(StokerError) as caught:
        store_commands.push("tiny", as_json=False)
    assert caught.value.code == "STK659"
    _move_store(run_dir, "s3://me:password@bucket/x")
    with pytest.raises(StokerErrors):
        store_commands.push("tiny", as_json=False)


def _move_store(run_dir: RunDir, address: str) -> None:
    text = run_dir.run_file.read_text(encoding="utf-8")
    run_dir.run_file.write_text(re.sub("store: [^,]*,", f"store: '{address}',", text), encoding="utf-8")


def test_a_run_without_a_store_is_told_so(tmp_path: Path, run_dir: RunDir) -> None:
    text = run_dir.run_file.read_text(encoding="utf-8")
    run_dir.run_file.write_text(text.replace(f"store: {tmp_path / 'store'}, ", ""), encoding="utf-8")
    for command in (
        lambda: store_commands.push("tiny", as_json=False),
        lambda: store_commands.pull("tiny", None, as_json=False),
    ):
        with pytest.raises(StokerError) as caught:
            command()
        assert caught.value.code == "STK661"
    store_commands.verify("tiny", None, as_json=True)  # what is here can be verified all the same


def test_runs_of_a_store_are_listed(tmp_path: Path, run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "store").mkdir()
    store_commands.runs("store", as_json=True)
    assert json.loads(capsys.readouterr().out) == []
    store_commands.push("tiny", as_json=False)
    store_commands.runs("store", as_json=True)
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["name"], found["steps"], found["final"]) == ("tiny", [10], True)
    store_commands.runs("store", as_json=False)
    assert "tiny" in capsys.readouterr().out


def test_pull_brings_a_run_that_was_never_here(
    tmp_path: Path, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store_commands.push("tiny", as_json=False)
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "laptop"))
    with pytest.raises(StokerError) as caught:
        store_commands.pull("tiny", None, as_json=False)
    assert caught.value.code == "STK501"
    with pytest.raises(StokerError) as caught:
        store_commands.pull("other", "store", as_json=False)
    assert caught.value.code == "STK657"
    assert not (tmp_path / "laptop").exists()
    capsys.readouterr()
    store_commands.pull("tiny", "store", as_json=True)
    assert json.loads(capsys.readouterr().out) == {"name": "tiny", "step": 10, "final": True, "passed": []}
    here = RunDir(tmp_path / "laptop" / "tiny")
    assert here.run() == run_dir.run()
    assert (here.final / "model.safetensors").read_bytes() == b"final"
    store_commands.pull("tiny", None, as_json=True)  # again: all is here
    assert json.loads(capsys.readouterr().out)["step"] is None


def test_verify_says_that_there_is_no_checkpoint_yet(
    tmp_path: Path, run_dir: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run_dir.checkpoints)
    shutil.rmtree(run_dir.artifacts, ignore_errors=True)
    store_commands.verify("tiny", None, as_json=False)
    said = capsys.readouterr()
    assert "`tiny` has no checkpoint yet" in said.err
    assert said.out == ""


@pytest.mark.parametrize(("language", "said"), [("en", "`tiny` is finished"), ("zh", "`tiny` 已训练完成")])
def test_verify_of_a_finished_run_without_checkpoints_promises_none(
    run_dir: RunDir,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    language: str,
    said: str,
) -> None:
    monkeypatch.setenv("STOKER_LANG", language)
    shutil.rmtree(run_dir.checkpoints)
    text = run_dir.run_file.read_text(encoding="utf-8")
    run_dir.run_file.write_text(re.sub("store: [^,]*, ", "", text), encoding="utf-8")
    store_commands.verify("tiny", None, as_json=False)
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_verify_does_not_say_what_is_in_a_store_that_it_did_not_reach(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def down(*_: Any) -> None:
        raise Fault("the line is cut")

    shutil.rmtree(run_dir.checkpoints)
    monkeypatch.setattr(verification, "examine", down)
    with pytest.raises(StokerError) as caught:
        store_commands.verify("tiny", None, as_json=False)
    assert caught.value.code == "STK662"
    assert "the line is cut" in caught.value.what
    assert capsys.readouterr().err == ""


def test_verify_names_what_is_damaged_here_and_there(
    tmp_path: Path, run_dir: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    store_commands.push("tiny", as_json=False)
    store_commands.verify("tiny", None, as_json=False)
    assert capsys.readouterr().out.count("intact") == 3
    (there,) = (tmp_path / "store").glob("tiny/checkpoints/*/config.json")
    there.unlink()
    (run_dir.checkpoints / "step-00000010" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(StokerError) as caught:
        store_commands.verify("tiny", None, as_json=True)
    assert caught.value.code == "STK662"
    assert "config.json is missing" in str(caught.value)
    assert "model.safetensors has 1 byte" in str(caught.value)
    found = caught.value.result
    assert [one["verified"] for one in (*found["local"], *found["store"]["checkpoints"])] == [False, False]


def test_verify_names_a_finished_model_that_is_damaged_in_the_store(tmp_path: Path, run_dir: RunDir) -> None:
    store_commands.push("tiny", as_json=False)
    (tmp_path / "store/tiny/artifacts/final/model.safetensors").write_bytes(b"fLnal")
    with pytest.raises(StokerError) as caught:
        store_commands.verify("tiny", None, as_json=False)
    assert "artifacts/final: model.safetensors has another digest" in str(caught.value)


def test_verify_misses_what_is_here_and_not_in_the_store(
    tmp_path: Path, run_dir: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StokerError) as caught:
        store_commands.verify("tiny", None, as_json=False)
    assert str(caught.value).count("not in the store") == 2
    store_commands.push("tiny", as_json=False)
    store_commands.verify("tiny", None, as_json=False)
    commit(run_dir, 20)
    (run_dir.final / "model.safetensors").write_bytes(b"newer")
    capsys.readouterr()
    with pytest.raises(StokerError) as caught:
        store_commands.verify("tiny", None, as_json=True)
    assert str(caught.value).count("not in the store") == 2
    missing = caught.value.result["store"]["missing"]
    assert [one["step"] for one in missing] == [20, None]
    store_commands.push("tiny", as_json=False)
    store_commands.verify("tiny", None, as_json=False)


# ---- before training


def test_a_store_that_is_down_stops_a_run_that_has_nothing_here(
    tmp_path: Path, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def down(*_: Any) -> None:
        raise Fault("the line is cut")

    monkeypatch.setattr(opening, "of_run", down)
    new = make_run(tmp_path / "new", tmp_path / "store")
    with pytest.raises(StokerError) as caught:
        store_return.check(new, new.run(), console.talk)
    assert caught.value.code == "STK652"
    store_return.check(run_dir, run_dir.run(), console.talk)
    store_return.bring(run_dir, run_dir.run(), console.talk)
    assert "copying resumes" in capsys.readouterr().err


def test_training_goes_on_with_what_is_here_when_the_drive_is_not_mounted(
    tmp_path: Path, run_dir: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    _move_store(run_dir, str(tmp_path / "drive" / "store"))
    store_return.check(run_dir, run_dir.run(), console.talk)
    store_return.bring(run_dir, run_dir.run(), console.talk)
    assert capsys.readouterr().err.count("copying resumes") == 2
    assert not (tmp_path / "drive").exists()


def test_a_new_machine_whose_drive_is_not_mounted_does_not_start_over(tmp_path: Path) -> None:
    mount = tmp_path / "mnt" / "nas"
    mount.mkdir(parents=True)
    new = make_run(tmp_path / "new", mount / "stoker")
    with pytest.raises(StokerError) as caught:
        store_return.check(new, new.run(), console.talk)
    assert caught.value.code == "STK665"
    assert str(mount) in caught.value.what
    assert f"mkdir {mount / 'stoker'}" in caught.value.hint
    assert not any(mount.iterdir())
    (mount / "stoker").mkdir()
    assert store_return.check(new, new.run(), console.talk)


def test_an_empty_drive_that_is_mounted_takes_a_first_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nas").mkdir()
    new = make_run(tmp_path / "new", tmp_path / "nas" / "stoker")
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "nas")
    assert store_return.check(new, new.run(), console.talk)


def test_a_first_store_next_to_the_run_file_needs_no_question(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    new = make_run(tmp_path / "new", Path("copies"))
    layout.record(new, folder=str(folder))
    assert store_return.check(new, new.run(), console.talk)
    assert (folder / "copies").is_dir()


def test_training_goes_on_with_what_is_here_when_the_folder_of_its_drive_is_empty(
    tmp_path: Path, run_dir: RunDir
) -> None:
    (tmp_path / "drive").mkdir()
    _move_store(run_dir, str(tmp_path / "drive" / "store"))
    assert store_return.check(run_dir, run_dir.run(), console.talk)


def test_training_goes_on_with_what_is_here_when_the_line_dies_in_a_download(
    tmp_path: Path, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(run_dir, 20)
    store_commands.push("tiny", as_json=False)
    behind = make_run(tmp_path / "behind", tmp_path / "store")
    commit(behind, 10)

    def cut(*_: Any) -> None:
        raise Fault("the line is cut")

    monkeypatch.setattr(DirectoryStore, "download", cut)
    monkeypatch.setattr(Patience, "pause", lambda self, attempt: None)
    store_return.bring(behind, behind.run(), console.talk)
    assert "copying resumes" in capsys.readouterr().err


def test_a_new_machine_gets_events_and_checkpoint(
    tmp_path: Path, run_dir: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    store_commands.push("tiny", as_json=False)
    new = make_run(tmp_path / "new", tmp_path / "store")
    store_return.check(new, new.run(), console.talk)
    store_return.bring(new, new.run(), console.talk)
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
    store_return.check(run_dir, run_dir.run(), console.talk)
    store_return.bring(run_dir, run_dir.run(), console.talk)


def test_a_pull_leaves_out_another_training_of_the_same_name(tmp_path: Path, run_dir: RunDir) -> None:
    commit(run_dir, 12, words=training_words.of(run_dir.run()))
    other = make_run(tmp_path / "other", tmp_path / "elsewhere", **{"batch: 4": "batch: 4, seed: 7"})
    commit(other, 16, words=training_words.of(other.run()))
    pushing.push(other)
    with pytest.raises(StokerError) as caught:
        store_commands.pull("tiny", str(tmp_path / "elsewhere"), as_json=False)
    assert caught.value.code == "STK659"
    assert "train.seed 7 -> 42" in str(caught.value.what)
    store = opening.open_store(str(tmp_path / "elsewhere"), tmp_path)
    with pytest.raises(StokerError) as caught:  # a manifest that was changed does not open the way for it
        fetch.newer_checkpoint(store, run_dir, lambda _: None)
    assert caught.value.code == "STK663"
    assert [one.step for one in checkpoints.committed(run_dir.checkpoints)] == [10, 12]


def test_a_run_that_is_being_started_is_not_pulled(run_dir: RunDir) -> None:
    pushing.push(run_dir)
    program = (
        "import sys; from pathlib import Path; from stoker.rundir import lock\n"
        "with lock.held(Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", program, str(run_dir.launch_lock)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as launch:
        assert launch.stdout
        launch.stdout.readline()
        with pytest.raises(StokerError) as caught:
            store_commands.pull("tiny", None, as_json=False)
    assert caught.value.code == "STK426"


def _forked(run_dir: RunDir, commit_digest: str) -> None:
    layout.record(run_dir, forked_from={"run": "x", "step": 5, "commit": commit_digest, "weights_only": True})


def test_two_forks_of_equal_words_and_different_parents_are_two_runs(tmp_path: Path, run_dir: RunDir) -> None:
    _forked(run_dir, "a" * 64)
    pushing.push(run_dir)
    other = make_run(tmp_path / "other", tmp_path / "store")
    _forked(other, "b" * 64)
    for also_here in (False, True):
        if also_here:
            commit(other, 5)
        with pytest.raises(StokerError) as caught:
            store_return.check(other, other.run(), console.talk)
        assert caught.value.code == "STK659"
        assert "forked_from.commit" in str(caught.value.what)


def test_a_fork_that_goes_on_on_another_machine_keeps_what_it_was_forked_from(tmp_path: Path, run_dir: RunDir) -> None:
    _forked(run_dir, "a" * 64)
    pushing.push(run_dir)
    other = make_run(tmp_path / "other", tmp_path / "store")
    store = opening.open_store(str(tmp_path / "store"), tmp_path)
    assert fetch.require_same_run(store, other, other.run())
    assert other.manifest().forked_from == run_dir.manifest().forked_from
    sent = make_run(tmp_path / "sent", tmp_path / "store")  # as a box gets it: the checkpoint, then the run file
    commit(sent, 12, words=run_dir.words())
    sent.manifest_file.unlink()
    assert layout._origin(sent) == run_dir.manifest().forked_from
