"""A medium C15: walks of a run over a laptop, two boxes and a store; the full one is `just campaign c15 --n 300`."""

from pathlib import Path

import c15
import pytest
from campaign_case import passes

pytestmark = [pytest.mark.allow_hosts(["127.0.0.1"]), pytest.mark.filterwarnings("default")]


@pytest.mark.skipif(bool(c15.possible()), reason=c15.possible() or "-")
def test_walks_go_on_or_are_refused_and_every_control_is_caught(tmp_path: Path) -> None:
    report = passes("c15", c15.ALL_CONTROLS, tmp_path)
    assert set(report["controls"]) == set(c15.CONTROLS)
    assert report["measured"]["actions"] >= c15.ALL_CONTROLS * c15.LEAST_ACTIONS
