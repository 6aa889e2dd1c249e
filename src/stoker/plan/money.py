"""The price that applies, and a run's cost. Currencies are never converted."""

from stoker.config import values
from stoker.config.run import Run
from stoker.facts import prices
from stoker.facts.prices import Offer
from stoker.plan.plan import Cost

OWN = "where.price"
"""The source of a price stated in the run file."""


def offer(run: Run, card: str | None, count: int) -> Offer | None:
    """The user's own price; else the cheapest offer of so many cards, preferring the budget's currency."""
    if run.where.price is not None:
        return prices.stated(OWN, *values.price(run.where.price))
    currency = values.money(run.budget.money)[1] if run.budget.money else None
    return prices.cheapest(card, count, currency) if card else None


def cost(seconds: tuple[float, float, float], devices: int, price: Offer | None, nodes: int = 1) -> Cost | None:
    """Cost of the training time: expected, least, most."""
    if price is None:
        return None
    billed = price.billed(devices, nodes)
    expected, least, most = (each / 3600 * price.price_per_hour * billed for each in seconds)
    own = price.cloud == OWN
    return Cost(
        amount=round(expected, 4),
        amount_range=(round(least, 4), round(most, 4)),
        currency=price.currency,
        price_per_hour=price.price_per_hour,
        billed_devices=billed,
        source=OWN if own else f"{price.cloud} {price.date.isoformat()}",
        age_days=0 if own else price.age_days(),
    )


def in_order(amount: Cost | None) -> float:
    """A sort key over currencies by a rough rate; no price sorts last."""
    return amount.amount * prices.usd(amount.currency) if amount else float("inf")
