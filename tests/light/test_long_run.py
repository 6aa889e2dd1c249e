"""Readers of a long run: their memory does not grow with its steps (the short form of benchmarks/long_run.py)."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import long_run  # noqa: E402

STEPS = 60_000


def test_readers_of_a_long_run_take_little_memory(tmp_path: Path) -> None:
    found = long_run.measured(tmp_path, STEPS, 1)
    assert found["segments"] >= 3
    for name, one in found["readers"].items():
        assert one["exit_code"] == 0, name
        assert one["peak_bytes"] <= long_run.BAR_BYTES, name
    assert found["pulled_bytes"] < found["events_bytes"] / 2
