"""Bits agree between strategies at the lowest and the highest level of instructions of this processor.

`just bits` runs every test that compares bits at every level.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import processor
import pytest

LEVELS = processor.levels()
PROGRAM = Path(__file__).parents[2] / "invariant" / "two_strategies.py"


@pytest.mark.skipif(len(LEVELS) < 2, reason="this system does not tell its processor's instructions")
def test_ddp_and_fsdp2_give_one_sha_at_the_lowest_and_the_highest_level(tmp_path: Path) -> None:
    found = {}
    for level in (LEVELS[0], LEVELS[-1]):
        variables = {**os.environ, **processor.environment(level), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        words = [sys.executable, str(PROGRAM), str(tmp_path / level)]
        done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        found[level] = json.loads(done.stdout.splitlines()[-1])
        assert found[level]["ddp"]["sha"] == found[level]["fsdp2"]["sha"], level
    lowest, highest = (one["ddp"] for one in found.values())
    assert lowest["sha"] != highest["sha"], "a control: other instructions round in another way, or nothing was lowered"
    assert lowest["instructions"] != highest["instructions"], "no EXACT resume from one to the other"
