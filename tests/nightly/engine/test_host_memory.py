"""Main memory of four ranks that build a model: once the model, not four times.

Counted by the kernel, from outside, all the while: private memory of the ranks, and the files without a name, mapped or
not. Pages of the model's files are the kernel's cache and are not counted.
"""

import json
import subprocess
import sys

import pytest
from tour import ROOT

BAR, CONTROL, RANKS = 1.3, 3.0, 4
MEASURED = """
import json, sys
sys.path += sys.argv[2:]
import host_memory
print(json.dumps(host_memory.measured(sys.argv[1], ranks=%d)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's figures")
@pytest.mark.parametrize("kind", ["bf16", "fp32", "4bit"])
def test_ranks_hold_a_model_once(kind: str) -> None:
    """So too of bf16 files that are trained in fp32, and of quantised weights. Control: each builds its own."""
    folders = [str(ROOT / "tests" / name) for name in ("", "engine", "nightly/engine")]
    command = [sys.executable, "-c", MEASURED % RANKS, kind, *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(kind, found)
    assert found["shared"] <= BAR, found
    assert found["own"] > CONTROL, found
