"""Stopped or killed at any step boundary, a run goes on to the same bits: twenty random points."""

import random
from pathlib import Path

import pytest
import resumed_run

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize(("method", "points"), [("full", 7), ("lora", 7), ("qlora", 6)])
def test_resume_is_bit_exact_at_random_points(tmp_path: Path, method: str, points: int) -> None:
    steps = random.Random(method).sample(range(1, resumed_run.TOTAL), points)
    resumed_run.resumes_exactly(tmp_path, method, steps)
