"""A budget on a box like AutoDL's, by real programs and the real clock: the laptop is gone, the box goes off."""

import json
import time
from datetime import datetime
from pathlib import Path

import boxes
import pytest
from laptop import laptop
from launched import HEAVY

from stoker.rundir import checkpoints, events
from stoker.store import verification
from stoker.store.directory import DirectoryStore
from stoker.store.store_protocol import Bandwidth, Patience, Patient

pytestmark = [
    pytest.mark.filterwarnings("default"),
]

BUDGET_SECONDS = 60.0
STORE = "root/autodl-fs/copies"


def test_at_its_limit_a_box_commits_copies_and_switches_itself_off(tmp_path: Path) -> None:
    with laptop(tmp_path) as mine, boxes.autodl(tmp_path, without=HEAVY) as box:
        path = mine.writes("night", steps=1_000_000, every="50 steps", store=f"/{STORE}")
        text = path.read_text(encoding="utf-8")
        path.write_text(f"{text}budget: {{time: {BUDGET_SECONDS:.0f}s}}\n", encoding="utf-8")
        mine.stoker("prepare", "night.yaml")
        mine.knows(box, "autodl-1")
        mine.stoker("train", "night.yaml", "--on", "autodl-1", "--yes")
        mine.kill()
        until = time.monotonic() + 4 * BUDGET_SECONDS
        while box.alive and time.monotonic() < until:
            time.sleep(0.2)
        run = box.root / "root/autodl-tmp/stoker/runs/night"
        seen = json.loads((run / "supervisor.json").read_text(encoding="utf-8"))
        ((off_at, verb),) = box.calls
        assert verb == "shutdown"
        assert (seen["state"], seen["asked"]) == ("stopped", "time")
        spent = seen["spent_seconds"] + off_at - datetime.fromisoformat(seen["beat"]).timestamp()
        assert abs(spent - BUDGET_SECONDS) <= 60, spent
        kinds = [event["event"] for event in events.read(run / "events.jsonl")]
        assert "warning" in kinds
        newest = checkpoints.committed(run / "checkpoints")[-1]
        assert (newest.step, checkpoints.verify(newest)) == (seen["step"], "")
        store = Patient(DirectoryStore(box.root / STORE, Patience(), Bandwidth()), Patience())
        assert verification.wrong_copy(store, "night", newest.commit, None) == ""
        settled = json.loads((run / "settled.json").read_text(encoding="utf-8"))
        assert (settled["state"], settled["copy"], settled["verb"]) == ("stopping", "store", "stop")
