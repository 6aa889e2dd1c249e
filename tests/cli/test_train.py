"""What `stoker train` says of what the supervisor did; nothing is trained here."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_runs import LANGUAGES, attempt, end, make_run, step, write_events

from stoker.api.run_progress import RunProgress
from stoker.api.start import Started
from stoker.cli import train_command
from stoker.messages import in_language
from stoker.plan.plan import Resume
from stoker.rundir.layout import RunDir
from stoker.terminal.progress import say_stopped


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", "en")


def supervised(folder: Path, **facts: Any) -> RunDir:
    (folder / "supervisor.json").write_text(json.dumps(facts), encoding="utf-8")
    return RunDir(folder)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"reason": "user", "ended": ""}, "Stopped at step 40 with a committed checkpoint."),
        (
            {"reason": "user", "ended": "hang"},
            "could commit (no sign of life). Run the same command to resume from step 30.",
        ),
    ],
)
def test_a_stop_without_a_last_checkpoint_is_said(
    runs: Path, capsys: pytest.CaptureFixture[str], facts: dict[str, str], said: str
) -> None:
    run_dir = supervised(make_run(runs, "medical"), committed_step=30, **facts)
    say_stopped(run_dir, 40)
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_run_that_was_renamed_is_resumed_by_its_new_name(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(runs, "medical").rename(runs / "renamed")
    say_stopped(supervised(folder, committed_step=40, reason="user", ended=""), 40)
    said = " ".join(capsys.readouterr().err.split())
    assert "Stopped at step 40" in said
    assert "`stoker train run.yaml --set name=renamed`" in said
    assert "the same command" not in said


def test_a_finished_model_that_is_not_of_the_best_step_is_said(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(runs, "medical")
    not_best = {"event": "not_best", "best": 40, "step": 80, "reason": "COMMIT.json is missing"}
    write_events(folder, attempt(80), step(80, 2.0), not_best, end("done", 80))
    progress = RunProgress(RunDir(folder))
    progress.update()
    assert train_command._ended(progress.run_dir, 0, progress) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "of step 40, cannot be used: COMMIT.json is missing. The finished model is that of step 80." in said
    assert said.index("cannot be used") < said.index("Done after")


@pytest.mark.parametrize(("seconds", "said"), [(0.0, "restarting now"), (5.0, "restarting in 5 s")])
def test_a_restart_at_once_is_now(runs: Path, capsys: pytest.CaptureFixture[str], seconds: float, said: str) -> None:
    folder = make_run(runs, "medical")
    restart = {"event": "restart", "reason": "hang", "step": 30, "wait_seconds": seconds}
    write_events(folder, attempt(120), step(30, 2.0), restart)
    progress = RunProgress(RunDir(folder))
    progress.update()
    train_command._tell_interventions(progress)
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ({"code": "STK673", "fields": {"step": 7, "reason": "surprise", "log": "x"}}, "(an unexpected error)"),
        (
            {"code": "STK673", "fields": {"step": 7, "reason": "surprise", "log": "x", "cause": "KeyError: 'frage'"}},
            "Its last line: KeyError: 'frage'",
        ),
        ({"code": "STK674", "fields": {"restarts": 8, "reason": "hang", "log": "x"}}, "(last: no sign of life)"),
        ({"code": "STK670", "fields": {"reason": "time", "spent": 60}}, "not start: `budget.time` is used up; 60 s"),
        ({"code": "STK675", "fields": {"step": 7, "micro": 1, "tried": 2}}, "there is nothing smaller to try"),
    ],
)
def test_reasons_of_the_supervisor_are_said_in_words(runs: Path, error: dict[str, Any], said: str) -> None:
    folder = make_run(runs, "medical")
    noted = {"event": "error", "program": "supervisor", "error": {"where": "", **error}}
    write_events(folder, attempt(120), noted)
    progress = RunProgress(RunDir(folder))
    progress.update()
    assert said in progress.problem.what


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("events", [[], [attempt(120)], [attempt(120), step(30, 2.0)]], ids=["none", "loads", "steps"])
def test_who_leaves_twice_is_told_what_a_stop_does_now_and_that_the_run_goes_on(
    runs: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    language: str,
    events: list[dict[str, Any]],
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("STOKER_LANG", language)
    monkeypatch.setattr(train_command, "wait_a_little", interrupted)
    run_dir = RunDir(make_run(runs, "medical"))
    write_events(run_dir.path, *events)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with pytest.raises(KeyboardInterrupt):
            train_command._follow(Started(run_dir, process, RunProgress(run_dir)), process, None)
        process.kill()
    said = capsys.readouterr().err
    keys = {True: "train.stopping", False: "train.stopping_early"}
    has_stepped = len(events) > 1
    assert in_language(language, keys[has_stepped]) in said
    assert in_language(language, keys[not has_stepped]) not in said
    assert said.count(in_language(language, "train.left_stopping", name="medical")) == 1
    assert run_dir.stop_file.exists()


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_screen_that_is_ended_says_that_the_training_goes_on(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    monkeypatch.setenv("STOKER_LANG", language)
    monkeypatch.setattr(train_command, "wait_a_little", lambda: signal.raise_signal(signal.SIGTERM))
    run_dir, before = RunDir(make_run(runs, "medical")), signal.getsignal(signal.SIGTERM)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with pytest.raises(SystemExit) as ended:
            train_command._follow(Started(run_dir, process, RunProgress(run_dir)), process, None)
        assert process.poll() is None
        process.kill()
    assert ended.value.code == 128 + signal.SIGTERM
    assert in_language(language, "train.left", name="medical") in capsys.readouterr().err
    assert not run_dir.stop_file.exists()
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("announced", "times"),
    [
        (Resume(step=40, tier="EXACT", changed=[], unseen=[]), 0),
        (Resume(step=60, tier="EXACT", changed=[], unseen=[]), 1),
        (Resume(step=40, tier="EXACT", changed=["micro: 4 -> 2"], unseen=[]), 1),
        (None, 1),
    ],
    ids=["as announced", "another step", "another change", "nothing announced"],
)
def test_how_a_run_resumes_is_said_again_only_if_it_is_not_as_announced(
    runs: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    language: str,
    announced: Resume | None,
    times: int,
) -> None:
    monkeypatch.setenv("STOKER_LANG", language)
    progress = RunProgress(RunDir(make_run(runs, "medical")))
    write_events(progress.run_dir.path, attempt(120, resumed_step=40, changed=[]))
    progress.update()
    told, left = train_command._tell(progress, {}, announced)
    sentence = in_language(language, "train.tier", tier="EXACT", step=40)
    assert capsys.readouterr().err.count(sentence) == times
    assert (told, left) == (progress.attempt, None), "what was announced is the first attempt's"
    train_command._tell(progress, {"of": "an attempt before"}, left)
    assert capsys.readouterr().err.count(sentence) == 1
