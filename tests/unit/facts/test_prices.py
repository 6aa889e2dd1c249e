"""Prices: each with its source, date and age; the cheapest is one that a person can rent."""

import datetime

import pytest

from stoker.facts import cards, prices
from stoker.facts.prices import Offer


def test_every_offer_names_a_card_a_source_and_a_day() -> None:
    known = {card.name for card in cards.cards()}
    for offer in prices.all_offers():
        assert set(offer.cards) <= known
        assert offer.source
        assert datetime.date(2025, 1, 1) <= offer.date <= datetime.date(2026, 11, 30)
        assert 0 < offer.price_per_hour < 50
        assert offer.currency in ("USD", "CNY")


def test_a_price_is_kept_in_its_own_currency() -> None:
    offer = next(offer for offer in prices.offers("RTX4090") if offer.cloud == "autodl")
    assert (offer.price_per_hour, offer.currency) == (1.98, "CNY")


def test_offers_of_both_currencies_stand_in_one_order() -> None:
    dollars = {"USD": 1.0, "CNY": 0.14}
    found = [offer.price_per_hour * dollars[offer.currency] for offer in prices.offers("RTX4090")]
    assert found == sorted(found)
    assert len({offer.currency for offer in prices.offers("RTX4090")}) == 2


def test_the_cheapest_can_be_rented_as_a_single_card() -> None:
    offer = prices.cheapest("A100-80-SXM4")
    assert offer is not None
    assert offer.gpu_count == 1
    assert min(o.gpu_count for o in prices.offers("A100-80-SXM4")) < max(
        o.gpu_count for o in prices.offers("A100-80-SXM4")
    )


def test_a_price_nobody_refreshes_any_more_does_not_win() -> None:
    offer = prices.cheapest("V100-16-SXM2")
    assert offer is not None
    assert prices.offers("V100-16-SXM2")[0].price_per_hour < offer.price_per_hour
    assert prices.offers("V100-16-SXM2")[0].date < offer.date


def test_a_card_without_offers_has_no_price_and_comes_last() -> None:
    assert prices.cheapest("RTX4090D") is None
    assert prices.in_order_of_price("RTX4090D") == float("inf")


@pytest.mark.parametrize(("today", "days"), [(datetime.date(2026, 3, 28), 0), (datetime.date(2026, 5, 27), 60)])
def test_age_counts_days_since_the_source_was_refreshed(today: datetime.date, days: int) -> None:
    offer = Offer(
        cards=("T4",),
        cloud="somewhere",
        gpu_count=1,
        price_per_hour=1,
        currency="USD",
        spot_price_per_hour=None,
        instance="",
        date=datetime.date(2026, 3, 28),
        source="here",
        note="",
    )
    assert offer.age_days(today) == days


def test_a_spot_price_that_nobody_refreshes_is_not_compared_and_ones_currency_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in the table: a source of two years ago is asked only where no other has the card."""
    today = datetime.date(2026, 11, 1)
    known = {"gpu_count": 1, "price_per_hour": 2.0, "instance": "", "source": "", "note": "", "cards": ("T4",)}
    kinds = [
        ("old", 0.1, "USD", today - datetime.timedelta(days=700)),
        ("dollars", 0.2, "USD", today),
        ("yuan", 5.0, "CNY", today),
    ]
    offers = tuple(
        Offer.model_validate({**known, "cloud": cloud, "spot_price_per_hour": price, "currency": paid, "date": date})
        for cloud, price, paid, date in kinds
    )
    monkeypatch.setattr(prices, "all_offers", lambda: offers)
    asked = {paid: prices.cheapest_spot("T4", 1, paid) for paid in ("USD", "CNY", "EUR")}
    assert [one and one.cloud for one in asked.values()] == ["dollars", "yuan", "dollars"]
