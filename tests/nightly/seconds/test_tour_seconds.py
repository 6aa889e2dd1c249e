"""How long the README's first training takes on a quiet machine with two cores."""

import statistics
from pathlib import Path

import pytest

from stoker.rundir import events

pytestmark = pytest.mark.filterwarnings("default")


def test_scratch_tiny_trains_in_under_forty_seconds_of_steps(toured: Path) -> None:
    """By the fastest tenth of the steps: what else the machine does beside the tests is not the recipe's."""
    seconds = [e["seconds"] for e in events.steps(toured / "runs/scratch_tiny/events.jsonl").values()]
    assert statistics.quantiles(seconds, n=10)[0] * len(seconds) < 40
