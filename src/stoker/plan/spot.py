"""Spot machines: a run's expected cost, preemptions and restarts included. Pure."""

import math

from stoker.config.run import Run
from stoker.facts import failures, prices
from stoker.facts.machine import Machine
from stoker.plan import money, save_interval
from stoker.plan.plan import Cost, Reason, Spot

PLACE = "sky"
"""Key of the failure statistics of spot machines."""
_WRITE_BYTES_PER_SECOND = 5e8
"""Assumed write speed of a checkpoint, for the save interval."""
_LEAST_SAVE_SECONDS = 1.0


def compare(
    run: Run, machine: Machine, seconds: float, cost: Cost | None, checkpoint_bytes: int, devices: int
) -> Spot | None:
    """The expected cost on spot machines; None if they are not allowed or have no price."""
    if cost is None or not run.where.spot:
        return None
    offer = prices.cheapest_spot(machine.name, devices // machine.nodes, cost.currency)
    if offer is None or offer.spot_price_per_hour is None:
        return None
    demand = on_demand(offer.currency, cost, machine, seconds, devices)
    between = failures.seconds_between(PLACE, devices)
    lasts = expected_seconds(seconds, between, failures.restart_seconds(), checkpoint_bytes / _WRITE_BYTES_PER_SECOND)
    amount = lasts / 3600 * offer.spot_price_per_hour * offer.billed(devices, machine.nodes)
    return Spot(
        amount=round(amount, 4),
        currency=offer.currency,
        price_per_hour=offer.spot_price_per_hour,
        time_seconds=lasts,
        restarts=round(lasts / between, 2),
        source=f"{offer.cloud} {offer.date.isoformat()}",
        cheaper=amount < demand.amount,
    )


def on_demand(currency: str, cost: Cost, machine: Machine, seconds: float, devices: int) -> Cost:
    """The cost on demand in the currency of a spot price: whoever has a card as spot has it on demand, too."""
    if cost.currency == currency:
        return cost
    offer = prices.cheapest(machine.name, devices // machine.nodes, currency)
    found = money.cost((seconds, seconds, seconds), devices, offer, machine.nodes)
    assert found is not None
    return found


def expected_seconds(seconds: float, between: float, restart: float, save: float) -> float:
    """Daly's expected run time with saves, repeated work and restarts.

    Args:
        seconds: The work without preemptions.
        between: Mean time between preemptions.
        restart: From a preemption to the first new step.
        save: Duration of one save.
    """
    save = max(save, _LEAST_SAVE_SECONDS)
    every = min(save_interval.interval_seconds(save, between), seconds)
    return between * math.exp(restart / between) * math.expm1((every + save) / between) * seconds / every


def reasons(found: Spot | None, cost: Cost | None, machine: Machine, seconds: float, devices: int) -> list[Reason]:
    """Both figures in one currency, and which is lower."""
    if found is None or cost is None:
        return []
    demand = on_demand(found.currency, cost, machine, seconds, devices)
    fields = {
        "spot": f"{found.amount:,.2f} {found.currency}",
        "demand": f"{demand.amount:,.2f} {demand.currency}",
        "hours": f"{found.time_seconds / 3600:.1f}",
        "restarts": f"{found.restarts:.1f}",
        "source": found.source,
    }
    return [Reason(about="spot", key="why.spot.cheaper" if found.cheaper else "why.spot.dearer", fields=fields)]
