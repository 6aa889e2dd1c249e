"""From a laptop to training on a fresh box by one command, with the laptop gone and the line cut; then home again.

What the box got to see of the laptop's secrets and what listened on it is looked at here, too: one launch for all.
"""

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import boxes
import pytest
from laptop import Laptop
from launched import CANARIES, Launch

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
    assert "STK716" in said.stderr  # "probably switched off"; the run is here, so nothing of it is last known there


def test_nothing_listens_beside_sshd_but_on_loopback(launched: Launch) -> None:
    others = launched.listeners - {"0.0.0.0:22"}
    assert "0.0.0.0:22" in launched.listeners
    assert all(address.startswith(("127.", "[::1]")) for address in others), others


def test_secrets_are_in_no_command_line_and_in_no_file_of_the_box(launched: Launch, tmp_path: Path) -> None:
    assert any("stoker.engine.train" in line for line in launched.command_lines)
    assert not [line for line in launched.command_lines for value in CANARIES.values() if value in line]
    disks = launched.box.root.parent
    assert not holding(disks / "layers", disks / "root/root", disks / "root/tmp", launched.box.root / "root/autodl-fs")
    assert not holding(launched.laptop.folder)
    (disks / "root/tmp/probe").write_text(f"x{CANARIES['HF_TOKEN']}y")
    assert holding(disks / "root/tmp"), "the search finds one that is there"
    (disks / "root/tmp/probe").unlink()


def holding(*folders: Path) -> list[str]:
    """Files that hold a canary, as it is. What the box wrote into the folders of its system is in the layers."""
    assert shutil.which("grep")
    words = [word for value in CANARIES.values() for word in ("-e", value)]
    found = subprocess.run(["grep", "-rlaF", *words, *map(str, folders)], capture_output=True, text=True, check=False)
    assert found.returncode in (0, 1), found.stderr
    return found.stdout.splitlines()


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
    assert "`autodl-1` is still on and billed" in said.stderr
    assert "stoker hosts off autodl-1" in said.stderr
    run = box.root / "root/autodl-tmp/stoker/runs/second"
    until = time.monotonic() + 60
    while json.loads((run / "supervisor.json").read_text())["state"] != "stopped":
        assert time.monotonic() < until, "did not stop"
        time.sleep(0.2)
    assert box.alive, "a run its owner stopped leaves the machine on"
    assert "stopped" in mine.stoker("runs", "--on", "autodl-1").stdout


def test_after_a_reboot_watch_says_that_the_same_command_resumes(fresh: tuple[boxes.Box, Laptop]) -> None:
    box, mine = fresh
    mine.writes("night", steps=100_000, every="20 steps")
    mine.stoker("train", "night.yaml", "--on", "autodl-1", "--yes")
    assert _listed(mine, "night")["state"] == "running"
    box.reboot()
    watched = mine.stoker("watch", "night", "--once")
    assert watched.stdout.startswith("night · interrupted")
    assert "Run the same `stoker train` command again" in " ".join(watched.stdout.split())
    assert (_listed(mine, "night")["state"], _listed(mine, "night")["elsewhere"]["billed"]) == (
        "interrupted",
        "until_off",
    )
    box.power_off()
    off = mine.stoker("watch", "night", "--once")
    assert "probably switched off (AutoDL)" in off.stdout


def _listed(mine: Laptop, name: str) -> dict[str, Any]:
    return next(run for run in json.loads(mine.stoker("runs", "--json").stdout) if run["name"] == name)
