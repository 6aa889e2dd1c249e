"""One walk of C15: a run over a laptop, two boxes and a store."""

from pathlib import Path

import c15
import pytest
from campaign_case import passes

pytestmark = [pytest.mark.allow_hosts(["127.0.0.1"]), pytest.mark.filterwarnings("default")]


@pytest.mark.skipif(bool(c15.possible()), reason=c15.possible() or "-")
def test_c15_a_walk_over_laptop_boxes_and_store(tmp_path: Path) -> None:
    assert passes("c15", 1, tmp_path)["measured"]["actions"] >= c15.LEAST_ACTIONS
