"""`stoker plan --trace` and `--calibrate` with the real programs, on a CPU."""

import json
from pathlib import Path

import pytest
from tour import run


def test_a_trace_stands_beside_the_closed_form(tmp_path: Path) -> None:
    done = run("stoker plan sft_tiny --card T4 --trace --json", tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["card"] == "T4"
    assert found["traced"]["allocated"] == pytest.approx(found["closed_form"]["allocated"], rel=0.1)
    assert found["traced"]["reserved"] >= found["traced"]["allocated"]
    assert found["traced"]["moment"] == found["closed_form"]["moment"]


def test_twenty_steps_are_measured_and_the_rest_is_corrected(tmp_path: Path) -> None:
    done = run("stoker plan scratch_tiny --calibrate --price 2CNY/h --json", tmp_path, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    measured = found["measured"]
    low, high = measured["tokens_per_second_range"]
    assert 0 < low <= measured["tokens_per_second"] <= high
    assert measured["steps"] == 15
    assert measured["memory_bytes"] > 100 << 20
    assert found["done_steps"] == 0
    assert found["time_seconds"] * measured["tokens_per_second"] == pytest.approx(
        found["predicted"]["tokens"], rel=1e-6
    )
    assert found["cost"]["amount"] == pytest.approx(found["time_seconds"] / 3600 * 2, abs=1e-3)
    left = sorted(path.name for path in (tmp_path / "runs/scratch_tiny").iterdir())
    assert "checkpoints" not in left
    assert not [name for name in left if name.startswith("calibrate-")]
