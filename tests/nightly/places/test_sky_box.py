"""The scripts of a SkyPilot task, run as SkyPilot would run them, on a real box; SkyPilot itself is not there."""

import shutil
from pathlib import Path

import boxes
import pytest
import yaml
from laptop import laptop
from launched import HEAVY

pytestmark = pytest.mark.filterwarnings("default")


def test_setup_and_run_of_a_task_lead_to_our_own_training(tmp_path: Path) -> None:
    """The store is not reachable from the box, and the run says so before it begins: nothing would be lost silently."""
    with laptop(tmp_path) as mine, boxes.plain(tmp_path, without=HEAVY) as box:
        mine.writes("tiny", store="s3://bucket/x")
        mine.stoker("prepare", "tiny.yaml")
        mine.stoker("train", "tiny.yaml", "--on", "sky", "--set", "native.sky.accelerators=T4:1")
        task = yaml.safe_load((mine.runs / "tiny" / "sky.yaml").read_text(encoding="utf-8"))
        shutil.copytree(task["workdir"], box.root / "root" / "sky_workdir")
        for _ in range(2):  # SkyPilot runs it again on a machine it has already
            done = box.run(["bash", "-l", "-c", task["setup"]], timeout=120)
            assert done.returncode == 0, done.stderr
        said = box.run(["bash", "-l", "-c", task["run"]], timeout=120)
        env = box.root / "root/stoker/env"
        assert (env / "constraints.txt").read_text().startswith("torch==")
        assert not list(env.rglob("torch-*.dist-info"))
    assert "STK65" in said.stdout + said.stderr, said
