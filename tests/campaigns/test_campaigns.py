"""The short version of each campaign: a few cases and one control, so that a broken campaign is noticed before it is
needed. The full ones are run by hand; their reports are in docs/evidence/campaigns.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

ROOT = sys.platform == "linux" and os.geteuid() == 0
MOUNTS = pytest.mark.skipif(
    not (ROOT and shutil.which("mkfs.ext4") and Path("/dev/loop-control").exists()),
    reason="needs root and loop devices",
)
STRACE = pytest.mark.skipif(not (ROOT and shutil.which("strace")), reason="needs root and strace")


def short(name: str, n: int, tmp_path: Path) -> dict[str, object]:
    import campaign

    done = campaign.run(name, n, seed=7, folder=tmp_path)
    report = done.report()
    assert not done.failures, report
    assert done.done >= n, report
    missed = [control for control, found in done.controls.items() if not found["caught"]]
    assert not missed, report
    return report


def test_c1_kills(tmp_path: Path) -> None:
    assert short("c1", 4, tmp_path)["controls"]


@STRACE
def test_c1x_a_kill_at_some_calls_of_a_save(tmp_path: Path) -> None:
    assert short("c1x", 5, tmp_path)["controls"]


@MOUNTS
def test_c2_power_cuts(tmp_path: Path) -> None:
    assert len(short("c2", 6, tmp_path)["controls"]) == 4  # type: ignore[arg-type]


def test_c3_resumes(tmp_path: Path) -> None:
    assert short("c3", 3, tmp_path)["controls"]


@STRACE
def test_c4_disks_that_fail(tmp_path: Path) -> None:
    assert short("c4", 12, tmp_path)["controls"]


def test_c5_signals(tmp_path: Path) -> None:
    assert short("c5", 3, tmp_path)["controls"]


def test_c7_corrupted_files(tmp_path: Path) -> None:
    assert len(short("c7", 120, tmp_path)["controls"]) == 2  # type: ignore[arg-type]


def test_c9_costs_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only that it measures: the bars are held on a quiet machine, not on a shared one."""
    import c9
    import campaign

    monkeypatch.setattr(c9, "WIDTH", 64)
    measured = campaign.run("c9", 3, seed=7, folder=tmp_path).measured
    assert measured["stall_seconds_median"] > 0
    assert measured["digest_share_of_a_save"] > 0


def test_c10_the_data_position_is_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import c10

    monkeypatch.setattr(c10, "SEQUENCES", 10**6)
    monkeypatch.setattr(c10, "_restart", lambda campaign: {})
    short("c10", 10, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
def test_c8_hostile_files(tmp_path: Path) -> None:
    assert len(short("c8", 16, tmp_path)["controls"]) == 9  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
def test_the_gadgets_of_c8_are_live(tmp_path: Path) -> None:
    """Read the careless way, every one of them executes: the corpus has no blanks."""
    import io
    import pickle

    import c8
    import hostile
    import numpy as np
    import torch

    readers = {
        "torch zip": lambda raw: torch.load(io.BytesIO(raw), weights_only=False),
        "torch old": lambda raw: torch.load(io.BytesIO(raw), weights_only=False),
        "numpy object": lambda raw: np.load(io.BytesIO(raw), allow_pickle=True),
    }
    for name, content in hostile.PICKLES.items():
        case = tmp_path / name.replace(" ", "-")
        for folder in (case / "outside", case / "jail" / "outside"):
            folder.mkdir(parents=True)
        canary = case / "EXECUTED"
        (case / "jail" / f"{hostile.EVIL_MODULE}.py").write_text(f"open({str(canary)!r}, 'w').close()")
        raw = content(canary, case / "outside" / "decoy")
        _, wrong = c8._watched(case, lambda: readers.get(name, pickle.loads)(raw))
        assert ("executed" in wrong) == (name != "safetensors"), (name, wrong)


def test_c11_a_spot_hour(tmp_path: Path) -> None:
    assert len(short("c11", 2, tmp_path)["controls"]) == 2  # type: ignore[arg-type]
