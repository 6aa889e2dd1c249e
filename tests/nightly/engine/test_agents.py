"""Every task of benchmarks/agents.py, in Chinese: an agent that read sentences would not get far."""

import sys
from pathlib import Path

import anyio
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

import agents


@pytest.mark.parametrize("name", agents.TASKS)
def test_a_task_reaches_its_end(name: str) -> None:
    found = anyio.run(agents.done, name, "zh")
    assert found["reached"], found["reason"]
    assert found["trains"] or not found["starts"]
