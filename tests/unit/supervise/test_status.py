"""What the supervisor writes, also where the disk takes nothing."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from stoker.rundir import events
from stoker.supervise.limits import Clock
from stoker.supervise.settings import SupervisorSettings
from stoker.supervise.status import SupervisedRun


@pytest.fixture
def run(tmp_path: Path) -> SupervisedRun:
    return SupervisedRun(tmp_path, SupervisorSettings(), Clock(now=lambda: 1_800_000_000.0, own=lambda: 50.0))


def test_every_word_is_written_with_its_time_and_what_is_spent(run: SupervisedRun) -> None:
    run.spent.before_seconds = 30.0
    run.say("waiting", "SIGKILL")
    seen = json.loads((run.run_dir / "supervisor.json").read_text(encoding="utf-8"))
    assert (seen["state"], seen["reason"], seen["spent_seconds"]) == ("waiting", "SIGKILL", 30.0)
    assert seen["beat"] == "2027-01-15T08:00:00+00:00"
    run.note_error("STK674", restarts=8)
    (error,) = events.read(run.run_dir / "events.jsonl")
    assert (error["program"], error["error"]["fields"]) == ("supervisor", {"restarts": 8})


def test_a_full_disk_keeps_the_old_record_and_ends_nothing(run: SupervisedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run.say("running", "")

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("replace", "open"):
        with monkeypatch.context() as full:
            full.setattr(Path, name, refuse)
            run.say("stopping", "time")
            run.note("limit", reason="time")
    seen = json.loads((run.run_dir / "supervisor.json").read_text(encoding="utf-8"))
    assert seen["state"] == "running"
    assert not list(run.run_dir.glob(".*.tmp"))


def test_what_the_system_refuses_is_remembered(run: SupervisedRun) -> None:
    with run.tolerating():
        raise OSError(errno.ENOSPC, "No space left on device")
    assert "No space left" in run.status.trouble
    with pytest.raises(ValueError, match="x"), run.tolerating():
        raise ValueError("x")
