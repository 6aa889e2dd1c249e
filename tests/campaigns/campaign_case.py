"""One campaign in a test: nothing failed, as many cases as were asked for, every control noticed."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import campaign
import pytest

_ROOT = sys.platform == "linux" and os.geteuid() == 0
MOUNTS = pytest.mark.skipif(
    not (_ROOT and shutil.which("mkfs.ext4") and Path("/dev/loop-control").exists()),
    reason="needs root and loop devices",
)
STRACE = pytest.mark.skipif(not (_ROOT and shutil.which("strace")), reason="needs root and strace")
INOTIFY = pytest.mark.skipif(sys.platform != "linux", reason="inotify")


def passes(name: str, n: int, folder: Path) -> dict[str, Any]:
    """The report of the campaign."""
    done = campaign.run(name, n, seed=7, folder=folder)
    report = done.report()
    assert not done.failures, report
    assert done.done >= n, report
    missed = [control for control, found in done.controls.items() if not found["caught"]]
    assert not missed, report
    return report
