"""A medium C12: some runs to a box and home again with faults; the full one is `just campaign c12 --n 100`."""

import c12
import campaign
import pytest

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.skipif(bool(c12.possible()), reason=c12.possible() or "-")
def test_runs_on_a_box_end_with_the_same_bits_and_the_meter_off() -> None:
    done = campaign.run("c12", 5, seed=1)
    assert done.failures == []
    assert done.done == 5
    assert done.measured["faults"] >= 5
    assert done.controls["the meter is stopped without a verified copy"]["caught"] == 1
