"""The short version of each campaign: a few cases and one control, so that a broken campaign is noticed before it is
needed. The full ones are run by hand; their reports are in docs/evidence/campaigns.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.filterwarnings("default")

ROOT = sys.platform == "linux" and os.geteuid() == 0
MOUNTS = pytest.mark.skipif(
    not (ROOT and shutil.which("mkfs.ext4") and Path("/dev/loop-control").exists()),
    reason="needs root and loop devices",
)
STRACE = pytest.mark.skipif(not (ROOT and shutil.which("strace")), reason="needs root and strace")


@pytest.fixture(autouse=True)
def shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    import trainings

    monkeypatch.setattr(trainings, "STEPS", 20)


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
    assert short("c1", 3, tmp_path)["controls"]


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
    monkeypatch.setattr(c9, "AUTO_SECONDS", 2.0)
    measured = campaign.run("c9", 3, seed=7, folder=tmp_path).measured
    assert measured["stall_seconds_worst"] >= measured["stall_seconds_median"] > 0
    assert measured["digest_share_of_a_save"] > 0
    assert measured["run_auto"]["steps"] == measured["run_none"]["steps"] >= 10


def test_c9_fails_where_a_save_takes_more_than_the_engine_thinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import c9
    import campaign

    monkeypatch.setattr(c9, "PLACES", ("local",))
    estimate = {
        "seconds": 5.0,
        "digest_seconds": 0.1,
        "read_back_seconds": 0.1,
        "cost_seconds": 0.1,
        "write_seconds": 5.0,
    }
    quick = [{"event": "step", "step": 3, "seconds": 1.0}] * 9
    save = [
        {"event": "save_begins"},
        {"event": "step", "step": 3, "seconds": 90.0},
        {"event": "save_ends", **estimate},
        {"event": "checkpoint", "stall_seconds": 0.1, "bytes": 1},
    ]
    one = campaign.Campaign("c9", 4, 7, tmp_path, None)
    c9._measure(one, [*quick, *save] * 4)
    assert [failure["case"] for failure in one.failures] == [["local"]]


def test_a_campaign_is_not_passed_where_the_code_changed_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import campaign

    one = campaign.Campaign("c0", 1, 7, tmp_path, None)
    one.case()
    assert one.passed
    monkeypatch.setattr(campaign, "code", lambda: {"commit": "", "clean": True, "sha256": "another"})
    assert not one.passed


def test_bars_of_forked_children_share_no_lock() -> None:
    """A child that is killed with a lock of several processes in hand would stop all others."""
    import threading

    import tiny_run  # noqa: F401  # sets it
    from tqdm import auto, std

    assert isinstance(std.tqdm.get_lock(), type(threading.RLock()))
    assert isinstance(auto.tqdm.get_lock(), type(threading.RLock()))


def test_c13_budgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import c13_budget

    monkeypatch.setattr(c13_budget, "SHORTEST", 70.0)
    monkeypatch.setattr(c13_budget, "LONGEST", 70.0)
    assert len(short("c13_budget", 1, tmp_path)["controls"]) == 2  # type: ignore[arg-type]


def test_c14_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import c14_moves

    monkeypatch.setattr(c14_moves, "EPOCHS", 4)
    monkeypatch.setattr(c14_moves, "MOST_MOVES", 2)
    assert len(short("c14_moves", 2, tmp_path)["controls"]) == 4  # type: ignore[arg-type]


def test_c10_the_data_position_is_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import c10

    monkeypatch.setattr(c10, "SEQUENCES", 10**6)
    monkeypatch.setattr(c10, "_restart", lambda campaign: {})
    short("c10", 10, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
def test_c8_hostile_files(tmp_path: Path) -> None:
    import hostile

    report = short("c8", 24, tmp_path)
    assert len(report["controls"]) == 9  # type: ignore[arg-type]
    assert {one.kind.split()[0] for one in hostile.corpus()} <= set(report["counts"])  # type: ignore[call-overload]


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
