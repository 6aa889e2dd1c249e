"""Curves over a run of any length: exact while they are short, means of neighbours once they are long."""

import pytest

from stoker.api.run_progress import Curve, finite


def filled(steps: int, most: int = 100) -> Curve:
    curve = Curve(most)
    for step in range(1, steps + 1):
        curve.add(step, float(step))
    return curve


def test_a_short_curve_has_every_step() -> None:
    assert [(one.step, one.mean, one.low, one.high) for one in filled(3).points] == [
        *((1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    ]


@pytest.mark.parametrize("steps", [101, 1_000, 12_345])
def test_a_long_curve_stays_small_and_keeps_mean_and_extremes(steps: int) -> None:
    points = filled(steps).points
    assert 50 <= len(points) <= 100
    assert (points[0].low, points[-1].high) == (1, steps)
    assert [one.step for one in points] == sorted(one.step for one in points)
    assert all(one.mean == pytest.approx(one.step) for one in points)
    assert all(one.low <= one.mean <= one.high for one in points)


def test_a_mean_is_weighted() -> None:
    curve = Curve(1)
    curve.add(0, 10.0, 1.0)
    curve.add(1, 40.0, 2.0)
    (point,) = curve.points
    assert point.mean == pytest.approx(30.0)


@pytest.mark.parametrize("steps", [50, 1_000])
def test_steps_that_are_done_again_replace_the_first_ones(steps: int) -> None:
    curve = filled(steps)
    half = steps // 2
    curve.forget_after(half)
    assert curve.points[-1].low <= half
    for step in range(half + 1, steps + 1):
        curve.add(step, 0.0)
    width = steps / 25
    assert all(one.high == 0 for one in curve.points if one.step > half + width)


@pytest.mark.parametrize(("value", "found"), [(1, 1.0), (2.5, 2.5), ("nan", None), (None, None), (float("inf"), None)])
def test_only_a_finite_loss_is_drawn(value: object, found: float | None) -> None:
    assert finite(value) == found
