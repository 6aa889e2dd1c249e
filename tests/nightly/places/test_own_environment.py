"""An image with an old torch: an environment of its own is built on the box by uv, from an index in reach, and trains.

The old torch is a stand-in: nothing but its version. Everything that is installed and run is real.
"""

import json
from importlib import metadata
from pathlib import Path

import boxes
import pytest
import wheel_index
from laptop import laptop
from launched import wait
from old_images import hidden, stand_in_torch

pytestmark = pytest.mark.filterwarnings("default")


def test_an_image_with_an_old_torch_trains_in_an_environment_of_its_own(tmp_path: Path) -> None:
    files = {**boxes.PLAIN.files, **stand_in_torch("2.1.0+cu118")}
    image = {"without": hidden("torch"), "files": files, "disks": {"/root/stoker": "6g"}}
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with laptop(tmp_path) as mine, wheel_index.served(wheels) as (index, port), boxes.plain(tmp_path, **image) as box:
        address = f"http://{box.gateway}:{port}/simple"
        (box.root / "etc/pip.conf").write_text(f"[global]\nindex-url = {address}\ntrusted-host = {box.gateway}\n")
        mine.knows(box)
        decided = json.loads(mine.stoker("hosts", "check", "box", "--json").stdout)["setup"]
        assert (decided["kind"], decided["fields"]["found"][-17:]) == ("own", "torch 2.1.0+cu118")
        mine.writes("tiny", steps=4, every="2 steps")
        mine.stoker("prepare", "tiny.yaml")
        said = mine.stoker("train", "tiny.yaml", "--on", "box", "--yes", timeout=1500)
        assert "own environment" in said.stdout
        run = box.root / "root/stoker/runs/tiny"
        wait(lambda: _state(run) not in ("", "running"), "no end", 900, every=1.0)
        assert _state(run) == "done", "".join(path.read_text() for path in run.glob("logs/*.log"))
        assert any(name.startswith("torch-") for name in index.asked), "it came from the index"
        env = box.root / "root/stoker/env"
        assert list(env.glob(f"lib/python*/site-packages/torch-{metadata.version('torch')}.dist-info"))
        assert json.loads((run / "manifest.json").read_text())["versions"]["torch"] == metadata.version("torch")


def _state(run: Path) -> str:
    path = run / "supervisor.json"
    return str(json.loads(path.read_text())["state"]) if path.exists() else ""
