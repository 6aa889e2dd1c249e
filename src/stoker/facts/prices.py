"""Prices of cards by the hour: a shipped snapshot of public catalogues, each offer with its source and date.

A price is never shown without its age. Live prices are not fetched here.
"""

import datetime
import functools

from pydantic import BaseModel, ConfigDict

from stoker.facts import tables

STALE_DAYS = 60
"""An older price is shown with its age."""
_ABANDONED_DAYS = 180
"""A source this much older than the newest one is asked only where no other has the card."""


class Offer(BaseModel):
    """The price of one card for one hour at one cloud."""

    model_config = ConfigDict(frozen=True)

    cards: tuple[str, ...]
    """Cards it may mean: several where the source does not say which variant."""
    cloud: str
    gpu_count: int
    """Cards per instance; an offer of 8 cannot be rented as 1."""
    price_per_hour: float
    """For one card, on demand."""
    currency: str
    spot_price_per_hour: float | None
    """For one card that may be taken away."""
    instance: str
    """The provider's name of the machine."""
    date: datetime.date
    """When the source was last refreshed."""
    source: str
    note: str

    def billed(self, count: int, nodes: int = 1) -> int:
        """Cards that are billed for a wanted number, evenly over the nodes: whole machines only."""
        return -(-count // nodes // self.gpu_count) * self.gpu_count * nodes

    def age_days(self, today: datetime.date | None = None) -> int:
        """Days since the source was refreshed."""
        today = today or datetime.datetime.now(datetime.timezone.utc).date()
        return (today - self.date).days


@functools.cache
def all_offers() -> tuple[Offer, ...]:
    """Every offer of the snapshot."""
    return tuple(
        Offer.model_validate(
            {
                **row,
                "cards": tuple(row["cards"].split(";")),
                "spot_price_per_hour": row["spot_price_per_hour"] or None,
            }
        )
        for row in tables.rows("prices.csv")
    )


def offers(card: str) -> list[Offer]:
    """Offers for a card of the catalogue, cheapest first."""
    return sorted((offer for offer in all_offers() if card in offer.cards), key=_price_in_usd)


@functools.cache
def cheapest(card: str, count: int = 1, currency: str | None = None) -> Offer | None:
    """The cheapest offer for this many of a card; sources that are still maintained go first.

    Args:
        card: A card of the catalogue.
        count: How many of it.
        currency: Offers in this one go before all others.
    """
    newest = max(offer.date for offer in all_offers())
    found = offers(card)
    found = [offer for offer in found if offer.currency == currency] or found
    kept = [offer for offer in found if (newest - offer.date).days <= _ABANDONED_DAYS] or found
    return min(kept, key=lambda offer: _price_in_usd(offer) * offer.billed(count), default=None)


@functools.cache
def cheapest_spot(card: str, count: int = 1) -> Offer | None:
    """The cheapest spot offer for this many of a card."""
    found = [offer for offer in offers(card) if offer.spot_price_per_hour is not None]
    return min(found, key=lambda offer: _spot_in_usd(offer) * offer.billed(count), default=None)


def stated(source: str, price_per_hour: float, currency: str) -> Offer:
    """An offer of today that is in no catalogue, for any number of any card."""
    return Offer(
        cards=(),
        cloud=source,
        gpu_count=1,
        price_per_hour=price_per_hour,
        currency=currency,
        spot_price_per_hour=None,
        instance="",
        date=datetime.datetime.now(datetime.timezone.utc).date(),
        source=source,
        note="",
    )


def in_order_of_price(card: str) -> float:
    """A key that sorts cards by their cheapest offer; those without one come last."""
    offer = cheapest(card)
    return _price_in_usd(offer) if offer else float("inf")


@functools.cache
def _usd_per_unit() -> dict[str, float]:
    return {row["currency"]: float(row["usd"]) for row in tables.rows("currencies.csv")}


def usd(currency: str) -> float:
    """The value of one unit of a currency, for sorting only; a currency that is not in the table sorts by itself."""
    return _usd_per_unit().get(currency, 1.0)


def _spot_in_usd(offer: Offer) -> float:
    return (offer.spot_price_per_hour or 0.0) * usd(offer.currency)


def _price_in_usd(offer: Offer) -> float:
    """For the order only; a price is always shown in its own currency."""
    return offer.price_per_hour * usd(offer.currency)
