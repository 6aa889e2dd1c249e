"""A checkpoint loads into any strategy and number of processes: every bit, in bounded memory.

A part of `benchmarks/reshard.py`, which does all pairs and a larger model.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_run
import torch
from tour import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import reshard  # benchmarks/ is no package

from stoker.engine import checkpoint

pytestmark = pytest.mark.filterwarnings("default")

ALONE, DDP2, DDP4 = ("single", 1), ("ddp", 2), ("ddp", 4)
SHARDS2, SHARDS3, SHARDS4 = ("fsdp2", 2), ("fsdp2", 3), ("fsdp2", 4)
PAIRS = [
    *[(ALONE, SHARDS3), (ALONE, SHARDS4)],
    *[(DDP2, DDP4), (DDP2, SHARDS2), (DDP2, SHARDS4)],
    *[(SHARDS2, ALONE), (SHARDS2, SHARDS3), (SHARDS2, SHARDS4)],
    *[(SHARDS4, ALONE), (SHARDS4, DDP2), (SHARDS4, SHARDS2), (SHARDS4, SHARDS3)],
]
MEASURED = """
import json, sys
from pathlib import Path
sys.path += sys.argv[2:]
import reshard, torch
torch.set_num_threads(1)
folder = Path(sys.argv[1])
big = str(reshard.big_model(folder / "big", width=512, layers=6))
print(json.dumps(reshard.memory(folder / "run", big, "full", ("single", 1), [("single", 1), ("fsdp2", 4)])))
"""
ADAPTED = [(SHARDS4, SHARDS3), (SHARDS4, DDP2)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.make_base_model(tmp_path_factory.mktemp("models") / "base", width=72)


@pytest.mark.parametrize(("tune", "pairs"), [("full", PAIRS), ("lora", ADAPTED)])
def test_every_bit_is_the_source_s(tmp_path: Path, base: Path, tune: str, pairs: list[Any]) -> None:
    rows = list(reshard.matrix(tmp_path, str(base), tune, pairs))
    assert len(rows) == len(pairs)
    assert {(tuple(row["from"]), tuple(row["to"])): row["different"] for row in rows if row["different"]} == {}


def test_a_model_from_a_shape_goes_on_in_shards(tmp_path: Path) -> None:
    """Its options are in the run file only; the checkpoint's own configuration must say the same, buffers included."""
    (row,) = reshard.matrix(tmp_path, reshard.SHAPE, "full", [(ALONE, SHARDS2)])
    assert row["different"] == []


def test_rows_of_another_rank_are_noticed(tmp_path: Path, base: Path) -> None:
    """Negative control: every rank takes the rows that begin one further on."""

    def shifted(plain: Any, *words: Any) -> Any:
        sizes, starts = plain(*words)
        return sizes, (max(0, starts[0] - 1), *starts[1:])

    with tiny_run.replaced(checkpoint, "compute_local_shape_and_global_offset", shifted):
        (row,) = reshard.matrix(tmp_path, str(base), "full", [(ALONE, SHARDS2)])
    assert row["different"]
    assert all(name.endswith(("/exp_avg", "/exp_avg_sq")) for name in row["different"])


def test_one_flipped_bit_is_noticed() -> None:
    zeros, minus = torch.zeros(3), torch.tensor([0.0, -0.0, 0.0])
    one, other = ({"tensors": {"weight": tensor}, "options": ""} for tensor in (zeros, minus))
    assert reshard.differences(one, one) == []
    assert reshard.differences(one, other) == ["weight"]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the kernel's figures")
def test_loading_takes_the_memory_of_the_shards(tmp_path: Path) -> None:
    """And, as the negative control, building the whole model first takes more.

    In a process of its own: what this one had and freed would be used again without being seen.
    """
    folders = [str(Path(str(module.__file__)).parent) for module in (reshard, tiny_run)]
    command = [sys.executable, "-c", MEASURED, str(tmp_path), *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert reshard.worst(found["loading"]) <= reshard.BAR
    assert reshard.least(found["controls"]) > reshard.BAR
