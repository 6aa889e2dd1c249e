"""Processes that are killed or asked to end, at any moment: C1, C1x, C5, C11 and objectives in a medium form."""

from pathlib import Path

import pytest
from campaign_case import STRACE, passes

pytestmark = pytest.mark.filterwarnings("default")


def test_c1_kills(tmp_path: Path) -> None:
    assert passes("c1", 80, tmp_path)["controls"]


@STRACE
def test_c1x_a_kill_at_some_calls_of_a_save(tmp_path: Path) -> None:
    assert passes("c1x", 80, tmp_path)["controls"]


def test_c5_signals(tmp_path: Path) -> None:
    assert passes("c5", 40, tmp_path)["controls"]


def test_c11_spot_hours(tmp_path: Path) -> None:
    assert len(passes("c11", 8, tmp_path)["controls"]) == 2


def test_every_preference_objective_is_killed(tmp_path: Path) -> None:
    assert len(passes("objective_kills", 24, tmp_path)["controls"]) == 3
