"""What a plan's environment does for programs that believe in several cards."""

from pathlib import Path

import accelerate
import matrix_cells
import pretended_devices
import pytest
import recipe_settings
import torch
from pretended_devices import DEVICES

from stoker.rundir import files

pytestmark = pytest.mark.filterwarnings("default")


def test_one_of_two_4090_starts_under_an_older_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate refuses to start on a machine with several of them, unless the plan's environment says how."""
    pretended_devices.use(monkeypatch, DEVICES["2x4090-fsdp2"], DRIVER="535.183.01")
    base, setting = matrix_cells.make_base(tmp_path / "base"), recipe_settings.distinct()["sft_tiny"]
    run_dir = matrix_cells.planned(tmp_path / "run", base, setting, {"gpus": 1})
    plan = files.read_json(run_dir.plan_file)
    assert (plan["strategy"], plan["batch"]["devices"]) == ("single", 1)

    def start() -> int:
        accelerate.PartialState()
        return torch.cuda.device_count()

    assert pretended_devices.in_child(start, plan["env"]) == 1
    assert pretended_devices.in_child(start, {}) == 70, "accelerate no longer refuses: the variables can go"
