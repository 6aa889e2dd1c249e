"""A rank's sign of life: written beside the main thread, to its very end, and asked for its stacks."""

import faulthandler
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.engine import pulse
from stoker.engine.pulse import Pulse


@pytest.fixture(autouse=True)
def meeting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("STOKER_RENDEZVOUS", str(tmp_path))
    monkeypatch.setenv("STOKER_NODE", "second")
    monkeypatch.setattr(pulse, "_BEAT_SECONDS", 0.02)
    yield tmp_path
    if hasattr(signal, "SIGUSR2"):
        faulthandler.unregister(signal.SIGUSR2)  # it would write into a file that is closed by now


def written(meeting: Path) -> dict[str, Any]:
    return json.loads((meeting / "pulse-3.json").read_text())


def test_it_beats_while_the_main_thread_does_something_else(meeting: Path) -> None:
    with pulse.beating(3, cuda=False) as beat:
        beat.step, beat.mark = 7, "sum"
        time.sleep(0.5)
        first = written(meeting)
        time.sleep(0.5)
        assert written(meeting)["at"] > first["at"]
    assert {key: first[key] for key in ("rank", "pid", "node", "step", "mark")} == {
        "rank": 3,
        "pid": os.getpid(),
        "node": "second",
        "step": 7,
        "mark": "sum",
    }


def test_the_last_one_says_how_the_rank_ended(meeting: Path) -> None:
    with pulse.beating(3, cuda=False):
        pass
    assert written(meeting)["mark"] == "end"
    with pytest.raises(OSError, match="no more"), pulse.beating(3, cuda=False):
        raise OSError("no more")
    assert written(meeting)["mark"] == "failed"


def test_a_folder_that_is_gone_does_not_end_the_training(meeting: Path) -> None:
    with pulse.beating(3, cuda=False):
        time.sleep(0.2)
        meeting.rename(meeting.with_name("gone"))
        time.sleep(0.2)


def test_a_process_alone_writes_none(meeting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOKER_RENDEZVOUS")
    with pulse.beating(0, cuda=False):
        pass
    assert not list(meeting.iterdir())


def test_times_are_of_one_micro_batch_and_the_newest_steps() -> None:
    beat = Pulse()
    for step in range(30):
        beat.waited(float(step))
        beat.begin()
        time.sleep(0.002)
        beat.computed(2)
    said = beat.record()
    assert said["data_seconds"] == [float(step) for step in range(10, 30)]
    assert len(said["own_seconds"]) == 20
    assert all(0.001 <= seconds < 0.1 for seconds in said["own_seconds"])


class Moment:
    """A mark in a device's stream that it has not passed yet."""

    def __init__(self, at: float) -> None:
        self.at = at
        self.passed = False

    def query(self) -> bool:
        return self.passed

    def elapsed_time(self, end: "Moment") -> float:
        return end.at - self.at


def test_a_device_that_runs_behind_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = [Moment(0.0), Moment(500.0), Moment(600.0), Moment(900.0)]
    following = iter(moments)
    devices: list[int] = []
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr("torch.cuda.set_device", devices.append)
    beat = Pulse(cuda=True)
    beat.record()
    assert devices == []  # nothing to ask yet: the main thread may not have chosen its device
    monkeypatch.setattr(beat, "_now", lambda: next(following))
    for _ in range(2):
        beat.begin()
        beat.computed(1)
    assert beat.record()["own_seconds"] == []
    assert devices == [2]
    moments[1].passed = True
    assert beat.record()["own_seconds"] == [0.5]
    moments[3].passed = True
    assert beat.record()["own_seconds"] == [0.5, 0.3]


@pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="no such signal")
def test_asked_by_a_signal_it_writes_every_threads_stack(meeting: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with capfd.disabled(), (meeting / "log").open("w") as log, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr", log)
        with pulse.beating(3, cuda=False):
            os.kill(os.getpid(), signal.SIGUSR2)
            time.sleep(0.2)
    said = (meeting / "log").read_text()
    assert "in _beat" in said
    assert "in test_asked_by_a_signal" in said
