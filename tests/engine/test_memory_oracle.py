"""The closed form of memory against the oracle, on a small sample; the campaign is `benchmarks/memory_oracle.py`."""

import statistics
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import memory_oracle  # benchmarks/ is no package

pytestmark = pytest.mark.filterwarnings("default")

SEED = 1871
"""Another one than the campaign's."""


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return [memory_oracle.score(memory_oracle.measure(step)) for step in memory_oracle.draw(12, SEED, deepest=3)]


def test_allocated_bytes_are_the_oracle_s(rows: list[dict]) -> None:
    found = memory_oracle.summary(memory_oracle.errors(rows, "allocated"))
    assert found["median"] <= memory_oracle.BARS["allocated"]["median"]
    assert found["max"] <= memory_oracle.BARS["allocated"]["max"]


def test_reserved_bytes_are_close_to_the_oracle_s(rows: list[dict]) -> None:
    assert statistics.median(map(abs, memory_oracle.errors(rows, "reserved"))) <= 0.03


def test_the_textbook_formula_would_not_pass(rows: list[dict]) -> None:
    found = memory_oracle.summary(memory_oracle.errors(rows, "allocated", "textbook"))
    assert found["median"] > 5 * memory_oracle.BARS["allocated"]["median"]
