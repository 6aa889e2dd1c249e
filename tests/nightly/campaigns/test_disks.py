"""Disks that lose power, fill up, fail or lie, and what saving costs: C2, C4, C7, C9 in a medium form."""

from pathlib import Path

import pytest
from campaign_case import MOUNTS, STRACE, passes

pytestmark = pytest.mark.filterwarnings("default")


@MOUNTS
def test_c2_power_cuts(tmp_path: Path) -> None:
    assert len(passes("c2", 150, tmp_path)["controls"]) == 5


@STRACE
def test_c4_disks_that_fail(tmp_path: Path) -> None:
    assert passes("c4", 60, tmp_path)["controls"]


def test_c7_corrupted_files(tmp_path: Path) -> None:
    assert len(passes("c7", 1500, tmp_path)["controls"]) == 2


def test_c9_costs_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only that it measures: the bars are held on a quiet machine, not on a shared one."""
    import c9
    import campaign

    monkeypatch.setattr(c9, "WIDTH", 64)
    monkeypatch.setattr(c9, "AUTO_SECONDS", 2.0)
    measured = campaign.run("c9", 3, seed=7, folder=tmp_path).measured
    assert measured["stall_seconds_worst"] >= measured["stall_seconds_median"] > 0
    assert measured["digest_share_of_a_save"] > 0
    assert measured["run_auto"]["steps"] == measured["run_none"]["steps"] >= 10
