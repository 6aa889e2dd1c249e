"""Money: the user's price goes first, whole machines are paid for, and no currency is turned into another."""

import datetime

import pytest

from stoker.config import load, values
from stoker.facts import prices
from stoker.facts.prices import Offer
from stoker.plan import money

HOURS = (7200.0, 3600.0, 10800.0)


def run(where: str = "{}") -> load.Run:
    return load.parse(f"model: m\ndata: {{train: a}}\nwhere: {where}\n", "run.yaml")


def offer(**fields: object) -> Offer:
    known = {
        "cards": ("X",),
        "cloud": "c",
        "gpu_count": 1,
        "price_per_hour": 2.0,
        "currency": "USD",
        "spot_price_per_hour": None,
        "instance": "",
        "date": datetime.date(2026, 1, 2),
        "source": "s",
        "note": "",
    }
    return Offer.model_validate({**known, **fields})


def test_money_is_hours_times_price_times_count() -> None:
    cost = money.cost(HOURS, 4, offer())
    assert cost is not None
    assert (cost.amount, cost.amount_range, cost.currency) == (16.0, (8.0, 24.0), "USD")
    assert cost.source == "c 2026-01-02"
    assert cost.age_days == offer().age_days() > 0


def test_an_offer_of_eight_is_paid_for_eight() -> None:
    cost = money.cost(HOURS, 2, offer(gpu_count=8))
    assert cost is not None
    assert (cost.billed_devices, cost.amount) == (8, 32.0)
    assert offer(gpu_count=4).billed(5) == 8
    assert offer(gpu_count=4).billed(4) == 4


def test_without_a_price_there_is_no_cost() -> None:
    assert money.cost(HOURS, 1, None) is None
    assert money.offer(run(), "RTX4090-48G", 1) is None
    assert money.in_order(None) == float("inf")


@pytest.mark.parametrize("text", ["2.5 CNY/h", "2.5CNY/h", "2.5 CNY / h"])
def test_the_user_s_own_price_goes_before_every_offer(text: str) -> None:
    own = money.offer(run(f"{{price: '{text}'}}"), "RTX4090", 2)
    assert own is not None
    cost = money.cost(HOURS, 2, own)
    assert cost is not None
    assert (cost.amount, cost.currency, cost.source, cost.age_days) == (10.0, "CNY", money.OWN, 0)


def test_a_currency_without_a_rate_can_be_used() -> None:
    assert values.price("3 XYZ/h") == (3.0, "XYZ")
    cost = money.cost(HOURS, 1, money.offer(run("{price: 3 XYZ/h}"), None, 1))
    assert cost is not None
    assert cost.currency == "XYZ"
    assert money.in_order(cost) == 6.0


def test_order_follows_value_while_amounts_keep_their_currency() -> None:
    yuan, dollars = (money.cost(HOURS, 1, offer(currency=currency)) for currency in ("CNY", "USD"))
    assert yuan is not None
    assert dollars is not None
    assert yuan.amount == dollars.amount
    assert money.in_order(yuan) < money.in_order(dollars)


def test_the_cheapest_offer_depends_on_how_many_are_wanted() -> None:
    by_eight = {o.cloud for o in prices.offers("A100-80-SXM4") if o.gpu_count == 8}
    assert by_eight
    single, eight = prices.cheapest("A100-80-SXM4", 1), prices.cheapest("A100-80-SXM4", 8)
    assert single is not None
    assert eight is not None
    assert single.billed(1) == 1
    total = [one.price_per_hour * prices.usd(one.currency) * one.billed(8) for one in (eight, single)]
    assert total[0] <= total[1]
