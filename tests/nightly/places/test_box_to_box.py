"""From box to box without a store: the newest checkpoint comes along, or the command is refused; never from step 0."""

import contextlib
import json
from pathlib import Path

import boxes
import pytest
from laptop import Laptop, laptop
from launched import HEAVY, wait

from stoker.rundir import events

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(bool(boxes.available()), reason=boxes.available() or "-"),
]

RUN = "tiny"
BASE = "root/autodl-tmp/stoker"


def test_a_run_goes_on_at_another_box(tmp_path: Path) -> None:
    with (
        laptop(tmp_path) as mine,
        boxes.autodl(tmp_path, without=HEAVY) as first,
        boxes.autodl(tmp_path, without=HEAVY) as second,
    ):
        mine.writes(RUN, steps=2000, every="20 steps")
        mine.knows(first, "box-1")
        mine.knows(second, "box-2")
        mine.stoker("train", f"{RUN}.yaml", "--on", "box-1", "--yes")
        wait(lambda: _step(first) > 30, "no step")

        running = mine.stoker("train", f"{RUN}.yaml", "--on", "box-2", "--yes", check=False)
        assert (running.returncode, "STK777" in running.stderr) == (1, True), running.stderr
        assert not (_run(second) / "checkpoints").exists()
        assert json.loads((mine.runs / RUN / "place.json").read_text())["on"] == "box-1"

        mine.stoker("stop", RUN)
        wait(lambda: _state(first) == "stopped", "not stopped")
        stopped = _step(first)

        first.cut()
        silent = mine.stoker("train", f"{RUN}.yaml", "--on", "box-2", "--yes", check=False)
        assert (silent.returncode, "STK778" in silent.stderr) == (1, True), silent.stderr
        assert "box-1" in silent.stderr
        first.mend()

        _moves(mine, second, stopped)


def _moves(mine: Laptop, second: boxes.Box, stopped: int) -> None:
    moved = mine.stoker("train", f"{RUN}.yaml", "--on", "box-2", "--yes")
    assert "copying its newest checkpoint" in moved.stderr
    wait(lambda: _step(second) > stopped, "no step")
    found = [event for event in events.read(_run(second) / "events.jsonl") if event["event"] == "attempt"]
    assert [(one["resumed_step"], one["tier"]) for one in found] == [(0, "EXACT"), (stopped, "EXACT")]  # with its past
    assert json.loads((mine.runs / RUN / "place.json").read_text())["on"] == "box-2"
    mine.stoker("stop", RUN)


def _run(box: boxes.Box) -> Path:
    return box.root / BASE / "runs" / RUN


def _step(box: boxes.Box) -> int:
    return max(events.steps(_run(box) / "events.jsonl"), default=0)


def _state(box: boxes.Box) -> str:
    with contextlib.suppress(OSError, ValueError):
        return str(json.loads((_run(box) / "supervisor.json").read_text())["state"])
    return ""
