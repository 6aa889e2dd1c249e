"""The interval between saves: Young's rule, the cap, and its bounds."""

import math

import pytest

from stoker.facts import failures
from stoker.plan import save_interval


def test_the_interval_is_the_root_of_twice_cost_times_mean_time_between_failures() -> None:
    assert save_interval.interval_seconds(1.0, 7200.0) == pytest.approx(math.sqrt(2 * 7200))


@pytest.mark.parametrize("cost", [0.01, 0.5, 5.0, 60.0, 600.0])
@pytest.mark.parametrize("between", [300.0, 3600.0, 604800.0])
def test_saves_never_take_more_than_the_cap(cost: float, between: float) -> None:
    assert cost / save_interval.interval_seconds(cost, between) <= save_interval.OVERHEAD_CAP * (1 + 1e-9)


def test_a_cheap_save_at_a_calm_place_still_comes_every_half_hour() -> None:
    assert save_interval.interval_seconds(10.0, 604800.0) == save_interval.LONGEST_SECONDS


def test_the_next_save_waits_for_the_one_being_written() -> None:
    assert save_interval.interval_seconds(0.001, 300.0, write_seconds=90.0) == 90.0


def test_more_gpus_fail_more_often_and_every_place_has_a_source() -> None:
    assert failures.seconds_between("local", 64) < failures.seconds_between("local", 1)
    assert failures.seconds_between("local", 0) == 168 * 3600
    assert failures.known_place("autodl", "ssh") == "ssh"
    assert failures.known_place("colab", "notebook") == "colab"
    assert failures.known_place() == "local"
    known = failures._known()
    assert all(one["source"] and one["confidence"] in "PG" for one in known["places"].values())
    assert known["hardware"]["failures_per_gpu_hour"] == pytest.approx(419 / (54 * 24 * 16384), rel=0.01)
