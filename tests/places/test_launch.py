"""From a laptop to training on a fresh box by one command, with the laptop gone and the line cut; then home again."""

import json
import time

import boxes
import pytest
from laptop import Laptop
from launched import Launch

from stoker.rundir import checkpoints, files, layout

pytestmark = pytest.mark.filterwarnings("default")


def test_one_command_leads_to_training_on_a_fresh_box(launched: Launch) -> None:
    """The bar is 20 s beyond transfer and install, measured by `benchmarks/launch.py`; this machine is a busy one."""
    assert launched.launch.returncode == 0
    assert "stoker watch tiny" in launched.launch.stderr
    assert launched.seconds["launch"] < 90


def test_the_training_notices_neither_the_laptop_nor_the_line_go(launched: Launch) -> None:
    (attempt,) = launched.events("attempt")
    assert attempt["resumed_step"] == 0
    assert [event["step"] for event in launched.events("step")] == list(range(1, 41))
    assert launched.watched["state"] == "done"
    assert launched.watched["step"] == 40


def test_the_images_own_torch_is_used_and_stays(launched: Launch) -> None:
    base = launched.run.parents[1]
    assert not list((base / "env").rglob("torch-*.dist-info"))
    assert (base / "env/constraints.txt").read_text().startswith("torch==")


def test_the_result_is_home_whole(launched: Launch) -> None:
    run_dir = layout.RunDir(launched.laptop.runs / "tiny")
    (newest,) = checkpoints.committed(run_dir.checkpoints)
    assert newest.step == 40
    assert not checkpoints.verify(newest)
    there, here = launched.run / "artifacts/final", run_dir.final
    names = sorted(path.name for path in there.iterdir())
    assert names == sorted(path.name for path in here.iterdir())
    assert all(files.sha256(there / name) == files.sha256(here / name) for name in names)


def test_the_meter_stops_by_the_verb_that_can_be_undone_after_the_copy_is_home(launched: Launch) -> None:
    assert not launched.box.alive
    ((when, words),) = launched.box.calls
    assert words == "shutdown"
    brought = (launched.run / "pulled.json").stat().st_mtime
    assert when > brought
    assert json.loads((launched.run / "settled.json").read_text())["copy"] == "pulled"


def test_a_box_that_is_off_is_said_to_be(launched: Launch) -> None:
    assert "done" in launched.laptop.stoker("watch", "tiny", "--once").stdout  # from what was brought home
    said = launched.laptop.stoker("watch", "tiny", "--once", "--on", "autodl-1", check=False)
    assert said.returncode == 1
    assert "STK701" in said.stderr


@pytest.fixture
def fresh(tmp_path: pytest.TempPathFactory, launched: Launch) -> tuple[boxes.Box, Laptop]:
    """The same box, switched on again by its owner."""
    if not launched.box.alive:
        launched.box.power_on()
    return launched.box, launched.laptop


def test_a_second_launch_needs_less_and_a_run_can_be_stopped_from_the_laptop(
    fresh: tuple[boxes.Box, Laptop],
) -> None:
    box, mine = fresh
    mine.writes("second", steps=100_000, every="1000000 steps")
    mine.stoker("prepare", "second.yaml")
    began = time.monotonic()
    mine.stoker("train", "second.yaml", "--on", "autodl-1", "--yes")
    assert time.monotonic() - began < 45
    said = mine.stoker("stop", "second", check=False)
    assert said.returncode == 0, said.stderr
    run = box.root / "root/autodl-tmp/stoker/runs/second"
    until = time.monotonic() + 60
    while json.loads((run / "supervisor.json").read_text())["state"] != "stopped":
        assert time.monotonic() < until, "did not stop"
        time.sleep(0.2)
    assert box.alive, "a run its owner stopped leaves the machine on"
    assert "stopped" in mine.stoker("runs", "--on", "autodl-1").stdout
