"""Some campaigns in a short form: kills, signals, power cuts, damaged files. All of them in a medium form
are in tests/nightly/campaigns; the full ones are run by hand, with their reports in docs/evidence/campaigns.
"""

from pathlib import Path

import pytest
from campaign_case import MOUNTS, passes

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
    assert len(passes("c2", 6, tmp_path)["controls"]) == 5


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
