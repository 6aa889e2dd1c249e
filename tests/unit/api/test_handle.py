"""A handle on a run directory made by hand: what it reads, and how it waits and stops."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker.api import handle
from stoker.api.handle import RunHandle
from stoker.launch import training

AT = "2026-11-15T02:19:00+00:00"
STEP = {"event": "step", "epoch": 0.1, "tokens": 10, "seconds": 0.1, "wait_seconds": 0.0}
ATTEMPT = {"event": "attempt", "tier": "EXACT", "resumed_step": 0, "total_steps": 4}
ENDED = {"event": "end", "status": "stopped", "step": 1}
Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Appends events to the run `tiny`."""
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path))
    monkeypatch.setenv("STOKER_LANG", "en")
    folder = tmp_path / "tiny"
    folder.mkdir()
    manifest = {"name": "tiny", "created": AT, "stoker_version": "0.1.0", "run_file": "tiny.yaml", "overrides": []}
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "folder": str(tmp_path), **manifest}), "utf-8")

    def append(*events: dict[str, Any]) -> None:
        with (folder / "events.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({"at": AT, **event}) + "\n" for event in events)

    return append


def test_a_run_that_ended_says_what_it_wrote_down(write: Write) -> None:
    steps = [STEP | {"step": number, "loss": 5.0 - number} for number in (1, 2)]
    write(
        ATTEMPT, *steps, {"event": "eval", "step": 2, "eval_loss": 2.5}, {"event": "end", "status": "done", "step": 2}
    )
    run = stoker.open("tiny")
    assert (run.name, run.state, run.wait(), run.error) == ("tiny", "done", "done", None)
    assert (run.losses, run.eval_losses) == ({1: 4.0, 2: 3.0}, {2: 2.5})
    assert (run.figures["step"], run.figures["total_steps"], run.figures["loss"]) == (2, 4, 3.0)
    assert (run.checkpoints, run.artifacts) == ({}, {})
    assert [event["event"] for event in run.events()] == ["attempt", "step", "step", "eval", "end"]
    assert repr(run) == "<run tiny: done, step 2/4>"


def test_a_step_that_was_passed_over_has_no_loss(write: Write) -> None:
    write(ATTEMPT, STEP | {"step": 1, "loss": 4.0}, STEP | {"step": 2, "loss": None}, ENDED)
    assert stoker.open("tiny").losses == {1: 4.0}


def test_events_come_as_they_are_written_and_end_with_the_run(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(ATTEMPT)
    running = [True]
    monkeypatch.setattr(training, "is_running", lambda _: running[0])

    def go_on() -> None:
        write(STEP | {"step": 1, "loss": 4.0})
        running[0] = False

    monkeypatch.setattr(handle, "wait_a_little", go_on)
    assert [event["event"] for event in stoker.open("tiny").events()] == ["attempt", "step"]


def test_stop_asks_as_the_command_does_and_waits(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(ATTEMPT)
    run = stoker.open("tiny")
    asked = run.path / "stop"
    monkeypatch.setattr(training, "is_running", lambda run_dir: not asked.exists())
    monkeypatch.setattr(training, "ask_to_stop", lambda run_dir: (asked.touch(), write(ENDED)))
    assert run.wait(timeout_seconds=0) == "running"
    assert run.stop() == "stopped"


def test_a_supervisor_that_has_written_nothing_yet_is_waited_for(write: Write) -> None:
    """The files still say how the attempt before it ended."""
    write(ATTEMPT, ENDED)
    program = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        run = RunHandle(stoker.open("tiny")._run_dir, process)
        began = time.monotonic()
        run.wait(timeout_seconds=0.3)
        assert run.is_running
        assert time.monotonic() - began >= 0.3
    assert run.wait() == "stopped"


def test_the_error_of_a_run_that_failed_is_raised_by_wait(write: Write) -> None:
    problem = {"code": "STK505", "where": "", "fields": {"name": "tiny"}}
    write(ATTEMPT, {"event": "error", "program": "train", "error": problem})
    run = RunHandle(stoker.open("tiny")._run_dir)
    with pytest.raises(stoker.StokerError) as caught:
        run.wait()
    assert (run.state, caught.value.code) == ("failed", "STK505")


def test_a_run_that_is_not_there_is_named(write: Write) -> None:
    with pytest.raises(stoker.StokerError) as caught:
        stoker.open("other")
    assert (caught.value.code, caught.value.hint) == ("STK501", "`stoker runs` lists them")
    with pytest.raises(stoker.StokerError, match="closest: `tiny`; "):
        stoker.open("tny")
