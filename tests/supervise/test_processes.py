"""Processes of an attempt: found by their pulses, told from strangers, ended."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.supervise import processes
from stoker.supervise.supervisor import Supervisor

pytestmark = pytest.mark.skipif(os.name == "nt", reason="kills by signal")


def written(folder: Path, pid: int, mark: str = "sum") -> Path:
    """A rank's pulse."""
    said = {
        "rank": 1,
        "pid": pid,
        "node": "",
        "at": 1.0,
        "step": 7,
        "mark": mark,
        "own_seconds": [],
        "data_seconds": [],
    }
    path = folder / "pulse-1.json"
    path.write_text(json.dumps(said), encoding="utf-8")
    return path


def test_a_process_that_has_a_ranks_number_is_no_rank(tmp_path: Path) -> None:
    """It is not taken for alive, nor asked for its stacks, which would end it."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        written(tmp_path, stranger.pid)
        (pulse,) = processes.read_pulses(str(tmp_path), tmp_path)
        assert not pulse["alive"]
        processes.dump_stacks([pulse], tmp_path)
        time.sleep(0.2)
        assert stranger.poll() is None
        stranger.kill()


def test_a_rank_that_ends_while_it_is_looked_at_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(pids: set[int], run_dir: Path) -> set[int]:
        written(tmp_path, pids.pop(), mark="end")
        return set()

    written(tmp_path, 1 << 30)
    monkeypatch.setattr(processes, "_training", end)
    (pulse,) = processes.read_pulses(str(tmp_path), tmp_path)
    assert (pulse["mark"], pulse["alive"]) == ("end", False)


def test_a_trainer_that_cannot_be_started_leaves_no_meeting_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(11, "no process to be had")

    meeting = tmp_path / "meeting"
    meeting.mkdir()
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(OSError, match="no process"):
        processes.start_trainer(tmp_path, {"env": {}, "argv": []}, 1, str(meeting))
    assert not meeting.exists()


def test_a_number_that_is_another_process_now_is_left_alone(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True) as stranger:
        assert processes.AdoptedTrainer(stranger.pid, watching.run_dir).poll() is not None
        while len(processes.words_of(stranger.pid)) < 3:
            time.sleep(0.02)
        processes.end_group(stranger.pid, watching.run_dir, "", gone=True)
        time.sleep(0.2)
        assert stranger.poll() is None
        processes.end_group(stranger.pid, watching.run_dir, "")
        assert stranger.wait(10) == -signal.SIGKILL


def test_a_group_that_may_not_be_signalled_does_not_end_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    """What macOS answers for a group of ended processes."""

    def kill(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", kill)
    processes.kill(1)
