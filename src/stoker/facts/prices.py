"""Prices of cards by the hour: a shipped snapshot of public catalogues, each offer with its source and date.

A user's own prices (`prices.csv` in Stoker's per-user folder) replace those of the same provider and card. A price that
is old is shown with its age. Live prices are not fetched here.
"""

import csv
import datetime
import functools
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from stoker import env
from stoker.facts import fact

STALE_DAYS = 90
"""An older price is shown with its age."""
OWN = "own"
"""The source of a price that the user stated."""
_ABANDONED_DAYS = 180
"""A source this much older than the newest one is asked only where no other has the card."""


Region = Literal["cn", "global"]
CURRENCIES: dict[Region, str] = {"cn": "CNY", "global": "USD"}
"""What is paid with in a region."""


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

    @property
    def own(self) -> bool:
        """Whether the user stated it."""
        return self.source == OWN

    @property
    def region(self) -> Region:
        """Where its customers are, by its currency."""
        return "cn" if self.currency == CURRENCIES["cn"] else "global"

    def billed(self, count: int, nodes: int = 1) -> int:
        """Cards that are billed for a wanted number, evenly over the nodes: whole machines only."""
        return -(-count // nodes // self.gpu_count) * self.gpu_count * nodes

    def age_days(self, today: datetime.date | None = None) -> int:
        """Days since the source was refreshed."""
        today = today or datetime.datetime.now(datetime.timezone.utc).date()
        return (today - self.date).days


@dataclass(frozen=True, kw_only=True)
class Market:
    """Whose offers count; None is any."""

    provider: str | None = None
    currency: str | None = None
    region: Region | None = None

    def has(self, offer: Offer) -> bool:
        """Whether an offer is one of this market's."""
        return (
            self.provider in (None, offer.cloud)
            and self.currency in (None, offer.currency)
            and self.region in (None, offer.region)
        )


ANYWHERE = Market()


def all_offers() -> tuple[Offer, ...]:
    """Every offer: the user's own, and those of the snapshot that they do not replace."""
    file = own_file()
    return _together(file, file.stat().st_mtime_ns if file.exists() else 0)


def is_own(source: str, price_per_hour: float) -> bool:
    """Whether a plan's price, by its provider and day, is one that the user stated."""
    stated = (offer for offer in _read(own_file()) if offer.own and offer.price_per_hour == price_per_hour)
    return any(source == f"{offer.cloud} {offer.date.isoformat()}" for offer in stated)


def own_file() -> Path:
    """The user's own prices."""
    return env.home() / "prices.csv"


def keep(found: list[Offer]) -> None:
    """Keep the user's own prices: each replaces an earlier one of its provider, card and count."""
    file = own_file()
    known = {_place(offer): offer for offer in (*_read(file), *found)}
    out = io.StringIO()
    table = csv.DictWriter(out, list(Offer.model_fields), lineterminator="\n")
    table.writeheader()
    for offer in known.values():
        spot = "" if offer.spot_price_per_hour is None else offer.spot_price_per_hour
        table.writerow({**offer.model_dump(mode="json"), "cards": ";".join(offer.cards), "spot_price_per_hour": spot})
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(out.getvalue(), encoding="utf-8")


def _place(offer: Offer) -> tuple[str, tuple[str, ...], int]:
    return offer.cloud, offer.cards, offer.gpu_count


def _read(file: Path) -> list[Offer]:
    if not file.exists():
        return []
    return [_offer(row) for row in csv.DictReader(io.StringIO(file.read_text(encoding="utf-8")))]


def _offer(row: dict[str, str]) -> Offer:
    spot = row["spot_price_per_hour"] or None
    return Offer.model_validate({**row, "cards": tuple(row["cards"].split(";")), "spot_price_per_hour": spot})


@functools.lru_cache(maxsize=4)
def _together(file: Path, _written: int) -> tuple[Offer, ...]:
    own = _read(file)
    replaced = {(offer.cloud, card) for offer in own for card in offer.cards}
    shipped = map(_offer, fact.rows("prices.csv"))
    return (*own, *(one for one in shipped if not any((one.cloud, card) in replaced for card in one.cards)))


def offers(card: str) -> list[Offer]:
    """Offers for a card of the catalogue, cheapest first."""
    return sorted((offer for offer in all_offers() if card in offer.cards), key=_price_in_usd)


def providers() -> list[str]:
    """Everyone who has an offer."""
    return sorted({offer.cloud for offer in all_offers()})


def currencies(market: Market = ANYWHERE) -> list[str]:
    """The currencies of a market, the commonest first."""
    found = [offer.currency for offer in all_offers() if market.has(offer)]
    return sorted(set(found), key=lambda currency: (-found.count(currency), currency))


def maintained(card: str, market: Market = ANYWHERE) -> list[Offer]:
    """A market's offers for a card, cheapest first; of sources that nobody refreshes only where there is no other."""
    every = all_offers()
    found = sorted((offer for offer in every if card in offer.cards and market.has(offer)), key=_price_in_usd)
    newest = max(offer.date for offer in every)
    return [offer for offer in found if (newest - offer.date).days <= _ABANDONED_DAYS] or found


def cheapest(card: str, count: int = 1, currency: str | None = None, provider: str | None = None) -> Offer | None:
    """The cheapest offer for this many of a card; sources that are still maintained go first.

    Args:
        card: A card of the catalogue.
        count: How many of it.
        currency: Offers in this one go before all others.
        provider: Only this one's.
    """
    kept = maintained(card, Market(currency=currency, provider=provider)) or maintained(card, Market(provider=provider))
    return min(kept, key=lambda offer: _price_in_usd(offer) * offer.billed(count), default=None)


def cheapest_spot(card: str, count: int = 1, currency: str | None = None) -> Offer | None:
    """The cheapest spot offer for this many of a card, of sources that are still maintained; a currency goes first."""
    known = [offer for offer in maintained(card) if offer.spot_price_per_hour is not None]
    found = [offer for offer in known if offer.currency == currency] or known
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
    return {row["currency"]: float(row["usd"]) for row in fact.rows("currencies.csv")}


def usd(currency: str) -> float:
    """The value of one unit of a currency, for sorting only; a currency that is not in the table sorts by itself."""
    return _usd_per_unit().get(currency, 1.0)


def has_rate(currency: str) -> bool:
    """Whether amounts in a currency can be put in order with others."""
    return currency in _usd_per_unit()


def _spot_in_usd(offer: Offer) -> float:
    return (offer.spot_price_per_hour or 0.0) * usd(offer.currency)


def _price_in_usd(offer: Offer) -> float:
    """For the order only; a price is always shown in its own currency."""
    return offer.price_per_hour * usd(offer.currency)
