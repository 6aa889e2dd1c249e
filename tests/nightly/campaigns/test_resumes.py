"""Resumes with other settings, on other devices, in the middle of the data: C3, C3x, C10, C14, medium."""

from pathlib import Path

import pytest
from campaign_case import passes

pytestmark = pytest.mark.filterwarnings("default")


def test_c3_resumes(tmp_path: Path) -> None:
    assert passes("c3", 20, tmp_path)["controls"]


def test_c3x_resumes_with_every_kind_of_option(tmp_path: Path) -> None:
    assert len(passes("c3x", 12, tmp_path)["controls"]) == 2


def test_c10_the_data_position_is_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import c10

    monkeypatch.setattr(c10, "SEQUENCES", 10**7)
    monkeypatch.setattr(c10, "_restart", lambda campaign: {})
    passes("c10", 30, tmp_path)


def test_c14_moves(tmp_path: Path) -> None:
    assert len(passes("c14_moves", 6, tmp_path)["controls"]) == 4
