"""`stoker gpus`: the catalogue of cards, with the cheapest price known for each and that price's age."""

import re
from collections.abc import Callable
from typing import Any

from rich.table import Table

from stoker import messages
from stoker.api import figures
from stoker.config import values
from stoker.errors import StokerError, closest
from stoker.facts import cards, platforms, prices
from stoker.facts.cards import Card
from stoker.facts.prices import STALE_DAYS, Offer
from stoker.launch import sky_catalogue
from stoker.terminal import console

_ORDERS: dict[str, Callable[[Card], Any]] = {
    "name": lambda card: card.name.lower(),
    "memory": lambda card: (-card.memory_gb, card.name.lower()),
    "speed": lambda card: (-(card.half_tflops or 0), card.name.lower()),
    "price": lambda card: (prices.in_order_of_price(card.name), card.name.lower()),
}


def keep_prices(texts: list[str], *, catalogue: bool, as_json: bool) -> None:
    """Keep the user's own prices, and with `catalogue` those of SkyPilot's."""
    known = prices.providers()
    found = [_stated(text) for text in texts]
    for one in found:
        key = "gpus.stated" if one.cloud in known else "gpus.stated_new"
        console.talk(key, provider=one.cloud, card=one.cards[0], price=f"{one.price_per_hour:g} {one.currency}/h")
    found += sky_catalogue.offers() if catalogue else []
    prices.keep(found)
    console.talk("gpus.kept", count=len(found), path=prices.own_file())
    if as_json:
        offers = [offer.model_dump(mode="json") for offer in found]
        console.data_json({"path": str(prices.own_file()), "kept": len(found), "offers": offers})


def _stated(text: str) -> Offer:
    """`autodl RTX4090 1.88CNY/h` as an offer of today."""
    words = text.split(maxsplit=2)
    if not words[2:] or not values.is_price(words[2]):
        raise StokerError("STK109", "--set", given=f"`{text}`", example="`autodl RTX4090 1.88CNY/h`")
    provider, card, price = words
    stated = prices.stated(platforms.short_name(provider), *values.price(price))
    return stated.model_copy(update={"cards": (cards.find(card, "--set").name,), "source": prices.OWN})


def gpus(pattern: str, min_memory: float, sort: str, *, as_json: bool) -> None:
    """List cards.

    Args:
        pattern: Part of a card's name; empty for all.
        min_memory: Least memory in GB.
        sort: One of `name`, `memory`, `speed`, `price`; memory and speed largest first.
        as_json: Print all facts as JSON.
    """
    if sort not in _ORDERS:
        orders = list(_ORDERS)
        raise StokerError("STK108", "--sort", given=f"`{sort}`", choices=orders, nearest=closest(sort, orders))
    wanted = _squeezed(pattern)
    found = [card for card in cards.cards() if _named(card, wanted) and _largest(card) >= min_memory]
    if not found and not any(_named(card, wanted) for card in cards.cards()):
        cards.find(pattern)
    found.sort(key=_ORDERS[sort])
    if as_json:
        console.data_json([_facts(card) for card in found])
    else:
        console.table(_table(found))


def _named(card: Card, wanted: str) -> bool:
    return any(wanted in _squeezed(name) for name in (card.name, *card.aliases, *card.device_names))


def _squeezed(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _largest(card: Card) -> float:
    return card.memory_gb_max or card.memory_gb


def _facts(card: Card) -> dict[str, Any]:
    offers = [{**offer.model_dump(mode="json"), "age_days": offer.age_days()} for offer in prices.offers(card.name)]
    return {**card.model_dump(mode="json"), "memory_bytes": card.memory_bytes, "offers": offers}


def _table(found: list[Card]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(messages.text("gpus.card"), no_wrap=True)
    for heading in ("gpus.memory", "gpus.bandwidth", "gpus.tflops", "gpus.capability"):
        table.add_column(messages.text(heading), justify="right", no_wrap=True)
    table.add_column(messages.text("gpus.price"), no_wrap=True)
    for card in found:
        table.add_row(*_cells(card, prices.cheapest(card.name)))
    return table


def _cells(card: Card, offer: Offer | None) -> list[str]:
    memory = f"{card.memory_gb:g}" + (f"-{card.memory_gb_max:g}" if card.memory_gb_max else "")
    kind = "bf16" if card.bf16_tflops else "fp16"
    speed = f"{card.half_tflops:.0f} {kind}" if card.half_tflops else "-"
    capability = str(card.compute_capability) if card.compute_capability else "MPS"
    return [card.name, memory, f"{card.memory_bandwidth_gb_per_second:g}", speed, capability, _price(offer)]


def _price(offer: Offer | None) -> str:
    if offer is None:
        return "-"
    price = f"{offer.price_per_hour:.2f} {offer.currency} {offer.cloud}"
    aged = messages.text("gpus.age", price=price, days=offer.age_days()) if offer.age_days() > STALE_DAYS else price
    return figures.own_price(price) if offer.own else aged
