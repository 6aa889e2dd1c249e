"""Intervals beside a plan's figures: there is one for every run, and the narrowest measured group speaks."""

import itertools

import pytest

from stoker.facts import cards, intervals
from stoker.facts.intervals import interval

METHODS, SHARING = ("full", "lora", "qlora"), ("single", "replicated", "sharded", "sharded-offload")
CLASSES = ("datacenter", "workstation", "consumer", "older", "apple", "processor")


@pytest.mark.parametrize("figure", ["memory", "speed"])
def test_every_kind_of_run_has_an_interval_around_its_prediction(figure: intervals.Figure) -> None:
    for method, sharing, card_class in itertools.product(METHODS, SHARING, CLASSES):
        found = interval(figure, method, sharing, card_class)
        assert 0.2 < found.low < 1.1, found
        assert 0.9 < found.high < 5, found
        assert found.n == 0 or found.sources >= 9 or found.borrowed == pytest.approx(1 - found.sources / 9, abs=1e-3)


@pytest.mark.parametrize("figure", ["memory", "speed"])
def test_what_was_not_measured_says_so(figure: intervals.Figure) -> None:
    found = intervals.assumed(figure)
    assert (found.n, found.group) == (0, "not measured")
    assert found.low < 1 < found.high


def test_the_narrowest_class_speaks_and_cards_that_nobody_measured_have_an_assumed_one() -> None:
    assert interval("memory", "lora", "single", "datacenter").group == "lora single datacenter"
    assert interval("memory", "full", "replicated", "datacenter").group == "any replicated any"
    assert interval("memory", "lora", "single", "older") == intervals.assumed("memory")


def test_each_proven_machine_narrows_an_interval_a_ninth_of_the_way_however_many_its_points() -> None:
    wide = interval("memory", "full", "single", "consumer")
    points = [1.0, 1.01, 1.02]
    widths = []
    for count in (0, 1, 6, 9, 12):
        found = intervals.narrowed(wide, [points] * count, "full single RTX4090")
        widths.append(found.high / found.low)
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == wide.high / wide.low
    assert widths[3] == pytest.approx(1.02)
    assert intervals.narrowed(wide, [[1.5]] * 9, "x").low == pytest.approx(1.5), "machines that differ move it"
    few, many = (intervals.narrowed(wide, [points * times], "x") for times in (1, 30))
    assert (few.low, few.high, few.borrowed) == (many.low, many.high, many.borrowed)
    assert few.high == pytest.approx(wide.high ** (8 / 9) * 1.02 ** (1 / 9))


def test_the_chance_of_more_is_a_half_at_the_middle_and_a_twentieth_at_the_upper_bound() -> None:
    around = intervals.Interval(0.5, 1.3, 39, "any sharded any", middle=1.07)
    assert [around.above(ratio) for ratio in (1.07, 1.3)] == pytest.approx([0.5, 0.05], abs=1e-3)
    falling = [around.above(ratio) for ratio in (0.9, 1.0, 1.1, 1.2, 1.4)]
    assert falling == sorted(falling, reverse=True)
    assert falling[1] > 0.6, "what is predicted too small in the median is likelier not to fit than to fit"
    exact = intervals.Interval(1.2, 1.2, 9, "nine machines that agree", middle=1.2)
    assert (exact.above(1.1), exact.above(1.2)) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("card", "kind"),
    [
        ("RTX4090", "consumer"),
        ("RTX2080Ti", "older"),
        ("vGPU-48GB", "consumer"),
        ("A100-80", "datacenter"),
        ("H20", "datacenter"),
        ("B200", "datacenter"),
        ("V100-16-SXM2", "older"),
        ("T4", "older"),
        ("L40S", "workstation"),
        ("A10", "workstation"),
        ("RTXA6000", "workstation"),
        ("RTX6000-Ada", "workstation"),
        ("RTXPRO6000", "workstation"),
        ("Apple M4", "apple"),
    ],
)
def test_the_class_of_a_card(card: str, kind: str) -> None:
    assert intervals.card_class(cards.find(card)) == kind
