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
    """As does a model of bf16 files that is trained in fp32. Control: each rank builds its own.

    Whoever builds a 4-bit model holds the weights it is made of for a while: there, what four need is compared with
    what one alone needs.
    """
    folders = [str(ROOT / "tests" / name) for name in ("", "engine", "nightly/engine")]
    command = [sys.executable, "-c", MEASURED % RANKS, kind, *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(kind, found)
    once = found["own"] / RANKS if kind == "4bit" else 1.0
    assert found["shared"] <= BAR * once, found
    assert found["own"] > CONTROL, found
