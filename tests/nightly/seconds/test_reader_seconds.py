"""Readers of a long run: their processor seconds; their memory in tests/light/test_long_run.py."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

import long_run  # noqa: E402


def test_readers_of_a_long_run_take_at_most_two_seconds(tmp_path: Path) -> None:
    for name, one in long_run.measured(tmp_path, 60_000, 1)["readers"].items():
        assert one["processor_seconds"] <= long_run.BAR_SECONDS, name
