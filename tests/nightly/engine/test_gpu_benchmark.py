"""`just gpu`, whole, on this CPU: the bare Trainer has Stoker's losses; what is not installed is said to be absent."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tour import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import gpu_sides

PEERS = [name for name, module in gpu_sides.MODULES.items() if importlib.util.find_spec(module) is None]


@pytest.mark.parametrize("method", ["lora", "qlora", "full"])
def test_every_side_is_measured_or_absent(tmp_path: Path, method: str) -> None:
    words = ["--method", method, "--pairs", "1", "--steps", "3", "--batch", "2", "--out", str(tmp_path / "gpu.json")]
    command = [sys.executable, str(ROOT / "benchmarks/gpu.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert report["plan"]["device"] == "cuda" or report["says"] == "that it runs: no GPU was used"
    assert report["sides"].keys() == gpu_sides.MODULES.keys()
    assert [name for name, side in report["sides"].items() if "absent" in side] == PEERS
    bare = report["sides"]["bare"]
    assert len(bare["losses"]["stoker"]) == 3
    assert bare["losses_apart"] <= 1e-6
    assert all(figure > 0 for pair in bare["values"] for side in pair for figure in side)
