"""What is spent, what is left, and what is held back: arithmetic only."""

from datetime import datetime, timezone
from typing import Any

import pytest

from stoker.supervise import limits
from stoker.supervise.limits import Clock, SpentTime

NOW = 1_800_000_000.0


def at(seconds: float) -> str:
    return datetime.fromtimestamp(NOW + seconds, timezone.utc).isoformat()


def test_spent_time_goes_on_from_what_was_counted_before() -> None:
    own = [10.0]
    spent = SpentTime(Clock(own=lambda: own[0]), 100.0)
    own[0] = 15.0
    assert spent.seconds == 105.0
    spent.before_seconds = 200.0
    assert spent.seconds == 205.0


@pytest.mark.parametrize(
    ("records", "seconds"),
    [
        ([{}], 0),
        ([{"spent_seconds": 5}, {"spent_seconds": 7.5}], 7.5),
        ([{"spent_seconds": "x"}, {"spent_seconds": -1}], 0),
        ([{"spent_seconds": float("nan")}, {"spent_seconds": 1e300}, {"spent_seconds": True}], 1),
    ],
)
def test_the_longest_count_counts(records: list[dict[str, Any]], seconds: float) -> None:
    assert limits.counted_seconds(*records) == seconds


def test_time_between_attempts_is_not_trained() -> None:
    past = [
        {"at": at(0), "event": "attempt", "resumed_step": 0},
        {"at": at(10), "event": "step", "step": 1, "seconds": 10},
        {"at": at(500), "event": "store", "seconds": 400},
        {"at": at(1000), "event": "attempt", "resumed_step": 0},
        {"at": at(1010), "event": "step", "step": 1, "seconds": 9},
        {"at": at(1020), "event": "checkpoint", "step": 1, "seconds": 8, "stall_seconds": 3},
        {"at": "never", "event": "step", "step": 2, "seconds": 1},
        {"event": "step"},
    ]
    assert limits.trained_seconds(past) == 10 + 9 + 3


def test_long_rehearsals_steps_evals_and_saves_are_trained() -> None:
    past = [
        {"at": at(0), "event": "attempt", "resumed_step": 4},
        {"at": at(700), "event": "rehearsal", "part": "step", "seconds": 650},
        {"at": at(4400), "event": "step", "step": 5, "seconds": 3600},
        {"at": at(5000), "event": "eval", "step": 5, "seconds": 590},
        {"at": at(5400), "event": "checkpoint", "step": 5, "seconds": 390, "stall_seconds": 390},
    ]
    assert limits.trained_seconds(past) == 650 + 3600 + 590 + 390


@pytest.mark.parametrize("jump", [NOW, 86_400, 3600, -3600, -86_400])
def test_a_clock_that_is_corrected_trains_nothing(jump: float) -> None:
    true = [at(second) for second in range(6)]
    for first in range(1, 6):
        stamps = true[:first] + [at(second + jump) for second in range(first, 6)]
        past: list[dict[str, Any]] = [{"at": stamps[0], "event": "attempt", "resumed_step": 0}]
        past += [{"at": stamp, "event": "step", "step": n, "seconds": 1} for n, stamp in enumerate(stamps[1:], 1)]
        assert limits.trained_seconds(past) == 5


@pytest.mark.parametrize(("passed", "seconds"), [(950, 950), (86_400, 1200), (-86_400, 1200), (0, 1200)])
def test_steps_that_an_old_log_leaves_out_are_trained(passed: float, seconds: float) -> None:
    past = [
        {"at": at(0), "event": "attempt", "resumed_step": 0},
        {"at": at(passed), "event": "step", "step": 100, "seconds": 12},
    ]
    assert limits.trained_seconds(past) == seconds


@pytest.mark.parametrize(
    ("launched", "beats", "seconds"),
    [
        ("", [], 0),
        (at(-100), [], 100),
        (at(-100), [at(-40), ""], 40),
        (at(-100), [at(-400)], 100),
        (at(60), [], 0),
        (at(-100), ["yesterday"], 0),
    ],
)
def test_a_launch_counts_until_somebody_else_counted(launched: str, beats: list[str], seconds: float) -> None:
    assert limits.launch_seconds(launched, [{"beat": beat} for beat in beats], NOW) == seconds


@pytest.mark.parametrize(("record", "seconds"), [({"beat": at(-30)}, 30), ({"beat": at(30)}, 0), ({}, 0)])
def test_a_record_that_does_not_say_when_is_new(record: dict[str, Any], seconds: float) -> None:
    assert limits.seconds_since(record, NOW) == seconds


def test_each_limit_of_a_plan_has_its_seconds() -> None:
    plan = {"time_seconds": 100, "money_seconds": None, "deadline": at(70)}
    assert limits.left_seconds(plan, 30.0, NOW) == {"time": 70, "deadline": 70}
    assert limits.left_seconds({"money_seconds": 10, "deadline": "tomorrow"}, 30.0, NOW) == {"money": -20}
    assert limits.left_seconds({}, 30.0, NOW) == {}


def test_a_deadline_is_harder_than_a_budget() -> None:
    assert limits.first_limit({"time": 70, "deadline": 100}, 10, 60) == ("deadline", 30)
    assert limits.first_limit({"time": 70, "deadline": 100}, 80, 0) == ("time", -10)
    assert limits.first_limit({}, 10, 60) is None


def test_twice_what_an_end_took_is_held_back() -> None:
    assert limits.reserve_seconds(5, 1, 4) == 20


@pytest.mark.parametrize(
    ("left", "seconds"), [({}, 3600), ({"time": 600}, 600), ({"time": 10}, 120), ({"time": 9999, "money": 300}, 300)]
)
def test_the_last_copy_has_time_for_one_copy_at_least(left: dict[str, float], seconds: float) -> None:
    assert limits.last_copy_seconds(left, 3600, 120) == seconds


@pytest.mark.parametrize(
    ("limit", "spent", "is_so"), [(None, 99, False), (0, 99, False), (100, 79, False), (100, 80, True)]
)
def test_most_of_a_budget_is_a_share_of_it(limit: float | None, spent: float, is_so: bool) -> None:
    assert limits.is_mostly_spent(limit, spent, 0.8) == is_so


def test_every_failure_doubles_the_wait_up_to_the_longest() -> None:
    assert [limits.backoff_seconds(times, 5, 30) for times in (1, 2, 3, 4, 5000)] == [5, 10, 20, 30, 30]


def test_a_stamp_is_read_back() -> None:
    assert datetime.fromisoformat(limits.stamp(NOW)).timestamp() == NOW
