"""Some campaigns in a short form: kills, signals, power cuts, damaged and hostile files. All of them in a medium form
are in tests/nightly/campaigns; the full ones are run by hand, with their reports in docs/evidence/campaigns.
"""

from pathlib import Path

import c15
import pytest
from campaign_case import INOTIFY, MOUNTS, passes

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    import trainings

    monkeypatch.setattr(trainings, "STEPS", 20)


def test_c1_kills(tmp_path: Path) -> None:
    assert passes("c1", 3, tmp_path)["controls"]


def test_c3x_every_option_is_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The states that were once cast, and that nothing the engines offer is left undecided."""
    import c3x

    monkeypatch.setattr(c3x, "_controls", lambda *_: None)
    passes("c3x", 1, tmp_path)


@MOUNTS
def test_c2_power_cuts(tmp_path: Path) -> None:
    assert len(passes("c2", 6, tmp_path)["controls"]) == 4


def test_c5_signals(tmp_path: Path) -> None:
    assert passes("c5", 3, tmp_path)["controls"]


def test_c7_corrupted_files(tmp_path: Path) -> None:
    assert len(passes("c7", 120, tmp_path)["controls"]) == 2


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


def test_c10_the_data_position_is_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import c10

    monkeypatch.setattr(c10, "SEQUENCES", 10**6)
    monkeypatch.setattr(c10, "_restart", lambda campaign: {})
    passes("c10", 10, tmp_path)


@INOTIFY
def test_c8_hostile_files(tmp_path: Path) -> None:
    import hostile

    report = passes("c8", 24, tmp_path)
    assert len(report["controls"]) == 9
    assert {one.kind.split()[0] for one in hostile.corpus()} <= set(report["counts"])


@INOTIFY
def test_c8_run_directories_of_strangers(tmp_path: Path) -> None:
    assert len(passes("c8_directories", 20, tmp_path)["controls"]) == 6


@INOTIFY
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


@pytest.mark.allow_hosts(["127.0.0.1"])
@pytest.mark.skipif(bool(c15.possible()), reason=c15.possible() or "-")
def test_c15_a_walk_over_laptop_boxes_and_store(tmp_path: Path) -> None:
    assert passes("c15", 1, tmp_path)["measured"]["actions"] >= c15.LEAST_ACTIONS
