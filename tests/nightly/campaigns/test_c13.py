"""Budgets by the real clock, C13 in a medium form."""

from pathlib import Path

import c13_budget
import pytest
from campaign_case import passes

pytestmark = pytest.mark.filterwarnings("default")


def test_c13_budgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c13_budget, "SHORTEST", 70.0)
    monkeypatch.setattr(c13_budget, "LONGEST", 90.0)
    assert len(passes("c13_budget", 4, tmp_path)["controls"]) == 2
