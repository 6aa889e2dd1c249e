"""What pulses tell of ranks: who is gone, silent, behind or slow."""

from typing import Any

import pytest

from stoker.supervise.ranks import RankWatch


def pulse(rank: int, at: float = 0.0, **fields: Any) -> dict[str, Any]:
    facts = {"pid": 100 + rank, "node": "ab"[rank % 2], "step": 7, "mark": "sum", "alive": True, "used": 1}
    return {"rank": rank, "at": at, **facts, "own_seconds": [], "data_seconds": [], **fields}


def test_a_rank_without_a_pulse_is_lost_after_the_stated_time_and_not_before() -> None:
    ranks = RankWatch(30, 900)
    for second in range(40):
        ranks.see([pulse(0, at=second), pulse(1, at=0)], passed_seconds=1)
        assert (ranks.lost() is not None) == (second > 30)
    found, reason = ranks.lost() or ({}, "")
    assert (found["rank"], found["node"], found["step"], reason) == (1, "b", 7, "silent")


def test_a_rank_that_computes_is_not_silent_also_where_nobody_writes_its_pulse() -> None:
    """Some library holds Python's lock: the process works, its other threads wait."""
    ranks = RankWatch(30, 900)
    for second in range(100):
        ranks.see([pulse(0, at=second), pulse(1, at=0, used=second)], passed_seconds=1)
    assert ranks.lost() is None


def test_where_nobody_says_what_a_process_uses_a_rank_without_a_pulse_may_compute() -> None:
    ranks = RankWatch(30, 900)
    for second in range(1000):
        ranks.see([pulse(0, at=second, used=0), pulse(1, used=0)], passed_seconds=1)
        assert (ranks.lost() is not None) == (second > 900)


def test_a_rank_that_is_gone_or_silent_shows_no_life() -> None:
    ranks = RankWatch(30, 900)
    for second in range(40):
        ranks.see([pulse(0, at=second), pulse(1, at=0), pulse(2, alive=False)], passed_seconds=1)
        assert [ranks.living(rank) for rank in range(4)] == [100, 101 if second <= 30 else None, None, None]


def test_ranks_of_a_node_that_has_ended_in_order_are_not_missed() -> None:
    """The head may go on for long, to write the finished model."""
    ranks = RankWatch(30, 900)
    ranks.see([pulse(0), pulse(1)], passed_seconds=1)
    for second in range(100):
        ranks.see([pulse(0, at=second)], passed_seconds=1)
    assert ranks.lost() is None


def test_a_rank_whose_process_is_gone_is_lost_at_once() -> None:
    ranks = RankWatch(30, 900)
    ranks.see([pulse(0), pulse(1, alive=False)], passed_seconds=1)
    assert ranks.lost() == (pulse(1, alive=False), "dead")


def test_a_rank_that_ended_in_order_is_not_lost() -> None:
    ranks = RankWatch(30, 900)
    for _ in range(100):
        ranks.see([pulse(1, mark="end", alive=False)], passed_seconds=1)
    assert ranks.lost() is None


def test_a_rank_that_failed_may_merely_have_lost_the_others() -> None:
    ranks = RankWatch(30, 900)
    ranks.see([pulse(0, mark="failed"), pulse(1, mark="failed", alive=False)], passed_seconds=1)
    assert ranks.lost() == (pulse(1, mark="failed", alive=False), "lost")
    ranks.see([pulse(0, mark="sum", alive=False), pulse(1, mark="failed", alive=False)], passed_seconds=1)
    assert ranks.lost() == (pulse(0, alive=False), "dead")


@pytest.mark.parametrize(
    ("places", "behind"),
    [
        ([(7, "sum"), (7, "micro 2"), (7, "sum")], 1),
        ([(7, "micro 3"), (7, "micro 2"), (7, "micro 10")], 1),
        ([(7, "save"), (8, "data"), (8, "micro 1")], 0),
        ([(0, "rehearsal"), (0, "rehearsal"), (0, "join")], 2),
        ([(7, "sum"), (7, "sum")], None),
        ([(7, "sum"), (7, "micro 1"), (7, "micro 1")], None),
        ([(7, "sum")], None),
    ],
)
def test_who_stands_behind_the_others_is_the_one_they_wait_for(places: list[Any], behind: int | None) -> None:
    ranks = RankWatch(30, 900)
    ranks.see([pulse(rank, step=step, mark=mark) for rank, (step, mark) in enumerate(places)], 1)
    found = ranks.behind()
    assert (found["rank"] if found else None) == behind


def slow(cause: str, seconds: list[float], steps: int = 12) -> RankWatch:
    key = {"compute": "own_seconds", "data": "data_seconds"}[cause]
    ranks = RankWatch(30, 900)
    ranks.see([pulse(rank, **{key: [one] * steps}) for rank, one in enumerate(seconds)], 1)
    return ranks


@pytest.mark.parametrize("cause", ["compute", "data"])
def test_a_straggler_is_named_with_its_cause(cause: str) -> None:
    found = slow(cause, [0.1, 0.1, 0.4, 0.1]).straggler()
    assert found
    assert (found["rank"], found["cause"], found["times"], found["seconds"], found["others_seconds"]) == (
        2,
        cause,
        4.0,
        0.4,
        0.1,
    )


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [
        ([0.1, 0.1, 0.14], 12),  # not by so much
        ([0.001, 0.001, 0.02], 12),  # many times, of nothing
        ([0.1, 0.1, 0.4], 9),  # too few steps to say
        ([0.4, 0.4, 0.4], 12),  # all alike
        ([0.4], 12),  # alone
    ],
)
def test_without_a_straggler_none_is_named(seconds: list[float], steps: int) -> None:
    assert slow("compute", seconds, steps).straggler() is None
    assert slow("data", seconds, steps).straggler() is None


def test_one_slow_step_makes_no_straggler() -> None:
    ranks = RankWatch(30, 900)
    ranks.see([pulse(0, own_seconds=[0.1] * 20), pulse(1, own_seconds=[0.1] * 19 + [60.0])], 1)
    assert ranks.straggler() is None


def test_a_straggler_is_named_again_only_much_later() -> None:
    ranks = slow("compute", [0.1, 0.4])
    assert ranks.straggler()
    for step, named in ((8, False), (506, False), (507, True), (508, False)):
        ranks.see([pulse(0, own_seconds=[0.1] * 12), pulse(1, step=step, own_seconds=[0.4] * 12)], 1)
        assert bool(ranks.straggler()) == named
