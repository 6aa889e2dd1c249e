"""The small value languages: durations, shares, money, intervals."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.config import load, values
from stoker.config.values import Every


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("10m", 600), ("1.5h", 5400), ("2 d", 172_800), ("0.5m", 30), ("6小时", 21_600), ("30 分钟", 1800)],
)
def test_a_duration_in_seconds(text: str, seconds: float) -> None:
    assert re.match(values.DURATION_PATTERN, text)
    assert values.duration_seconds(text) == seconds


@pytest.mark.parametrize("text", ["10", "10min", "m", "-5m", "1h30m", "5 weeks", "1,5h", "", "10M"])
def test_what_is_no_duration(text: str) -> None:
    assert not re.match(values.DURATION_PATTERN, text)


@pytest.mark.parametrize(("text", "share"), [("3%", 0.03), ("2.5 %", 0.025), ("100%", 1.0), ("0%", 0.0)])
def test_a_share(text: str, share: float) -> None:
    assert re.match(values.PERCENT_PATTERN, text)
    assert values.share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["3", "%", "3 percent", "-3%", "3%%", "０%"])
def test_what_is_no_share(text: str) -> None:
    assert not re.match(values.PERCENT_PATTERN, text)


@pytest.mark.parametrize(
    ("text", "money"),
    [("50 CNY", (50.0, "CNY")), ("9.99USD", (9.99, "USD")), ("50元", (50.0, "CNY")), ("$30", (30.0, "USD"))]
    + [(text, (200.0, "CNY")) for text in ("200块", "200 块钱", "￥200", "200人民币", "200 RMB")],
)
def test_money(text: str, money: tuple[float, str]) -> None:
    assert re.match(values.MONEY_PATTERN, text)
    assert values.money(text) == money


@pytest.mark.parametrize("text", ["50", "¥50", "￥50元", "$50USD", "50$", "50 cny", "CNY 50", "50 yuan", "-5 CNY"])
def test_what_is_no_money(text: str) -> None:
    assert not re.match(values.MONEY_PATTERN, text)


@pytest.mark.parametrize(
    ("text", "every"),
    [
        ("500 steps", Every("steps", 500)),
        ("1 step", Every("steps", 1)),
        ("20steps", Every("steps", 20)),
        ("10m", Every("seconds", 600)),
        ("2 h", Every("seconds", 7200)),
        ("epoch", Every("epoch")),
        ("auto", Every("auto")),
    ],
)
def test_an_interval(text: str, every: Every) -> None:
    assert re.match(values.EVERY_PATTERN, text)
    assert values.every(text) == every


def test_an_interval_may_be_never_where_it_measures() -> None:
    assert re.match(values.INTERVAL_PATTERN, "never")
    assert values.every("never") == Every("never")
    assert not re.match(values.INTERVAL_PATTERN, "10m")
    assert not re.match(values.EVERY_PATTERN, "never")


@settings(deadline=None)
@given(st.from_regex(values.EVERY_PATTERN, fullmatch=True) | st.from_regex(values.INTERVAL_PATTERN, fullmatch=True))
def test_all_that_the_pattern_lets_in_can_be_read(text: str) -> None:
    assert values.every(text).amount >= 0


@settings(deadline=None)
@given(st.from_regex(values.DURATION_PATTERN, fullmatch=True))
def test_all_durations_that_the_pattern_lets_in_can_be_read(text: str) -> None:
    assert values.duration_seconds(text) >= 0


@settings(deadline=None)
@given(st.from_regex(values.MONEY_PATTERN, fullmatch=True))
def test_all_money_that_the_pattern_lets_in_can_be_read(text: str) -> None:
    amount, currency = values.money(text)
    assert amount >= 0
    assert len(currency) == 3


@pytest.mark.parametrize(
    ("text", "price"),
    [
        ("2.5 CNY/h", (2.5, "CNY")),
        ("2.5CNY/h", (2.5, "CNY")),
        ("0 USD / h", (0.0, "USD")),
        ("2.5元/小时", (2.5, "CNY")),
        ("$0.34/h", (0.34, "USD")),
    ],
)
def test_a_price_by_the_hour(text: str, price: tuple[float, str]) -> None:
    assert values.is_price(text)
    assert values.price(text) == price


@pytest.mark.parametrize("text", ["2.5", "2.5 CNY", "CNY/h", "2.5 cny/h", "2.5 CNY/d", "-1 CNY/h", "2,5 CNY/h"])
def test_what_is_no_price(text: str) -> None:
    assert not values.is_price(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5M", 5_000_000),
        ("500万", 5_000_000),
        ("20k", 20_000),
        ("1.5 B", 1_500_000_000),
        ("1,000", 1000),
        ("3亿", 300_000_000),
        ("5X", None),
        ("M", None),
    ],
)
def test_amounts(text: str, number: int | None) -> None:
    assert values.amount(text) == number


def test_an_amount_in_a_run_file_is_a_number() -> None:
    run = load.parse("model: m\ndata: {train: a, rows: 2万, tokens: 5M}", "run.yaml")
    assert (run.data.rows, run.data.tokens) == (20_000, 5_000_000)
