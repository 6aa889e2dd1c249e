"""Two nodes with real processes, started as the supervisor does: a rank is killed, and both resume."""

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_run
from paired_nodes import ADDRESSES, alone, assert_same, free_port, make_pair, said, train
from test_several import family, listening

from stoker.rundir import checkpoints, events, files
from stoker.rundir.layout import RunDir
from stoker.supervise import processes

pytestmark = pytest.mark.filterwarnings("default")


def pulses(folder: Path) -> dict[int, dict[str, Any]]:
    return {(one := json.loads(path.read_text()))["rank"]: one for path in folder.glob("pulse-*.json")}


def wait(condition: Callable[[], bool], pair: list[RunDir]) -> None:
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail("\n".join(log.read_text()[-3000:] for one in pair for log in sorted(one.logs.glob("*.log"))))


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads the kernel's tables")
def test_a_rank_is_killed_and_both_nodes_go_on(tmp_path: Path) -> None:
    base = tiny_run.make_base_model(tmp_path / "base", dropout=0.1)
    more = {"train": "epochs: 50", "save": "10 steps"}
    whole = alone(tmp_path / "whole", base, "ddp", **more)
    head, other = pair = make_pair(tmp_path, base, "ddp", 1, **more)
    store = f"{ADDRESSES['first']}:{free_port()}"
    folders = [Path(tempfile.mkdtemp()) for _ in pair]
    started = []
    for rank, name in enumerate(ADDRESSES):
        here = processes.place({"name": name, "interface": "lo"}, rank, 2, store)
        plan = files.read_json(pair[rank].plan_file)
        started.append(processes.start_trainer(pair[rank].path, plan, 1, str(folders[rank]), here))
    try:
        wait(lambda: any(checkpoints.committed(head.checkpoints)), pair)
        heard = listening(set.union(*(family(one.pid) for one in started)))
        assert "0200007F" in heard  # the store, by rank 0
        assert set(heard) <= {"0100007F", "0200007F"}  # and gloo, on the interface
        wait(lambda: all(one["own_seconds"] for folder in folders for one in pulses(folder).values()), pair)
        (first,), (second,) = (pulses(folder).values() for folder in folders)
        assert (first["node"], first["rank"], second["node"], second["rank"]) == ("first", 0, "second", 1)
        assert second["step"] > 0
        assert second["own_seconds"]
        os.kill(second["pid"], signal.SIGUSR2)
        wait(lambda: "in _beat" in (text := other.log_file(1, 1).read_text()) and "in _loop" in text, pair)
        wait(lambda: pulses(folders[1])[1]["step"] > second["step"], pair)
        os.kill(second["pid"], signal.SIGKILL)
        assert all(one.wait(timeout=120) for one in started)
        assert pulses(folders[0])[0]["mark"] == "failed"
    finally:
        for one in started:
            one.kill()
            one.wait()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    errors = [event["error"]["code"] for event in events.read(head.events_file) if event["event"] == "error"]
    assert errors == ["STK423"]
    assert train(pair, 1) == [0, 0], said(pair)
    assert_same(head, whole)
