"""The whole stay of a run on a rented machine: what it spends besides training, and what is billed for it. Pure."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from stoker.config import values
from stoker.estimate import memory
from stoker.facts import failures, platforms, setup_times
from stoker.facts.prices import Offer
from stoker.facts.setup_times import Billing
from stoker.plan import clocks, money, save_interval, search, spot
from stoker.plan import data as plan_data
from stoker.plan.clocks import Stay
from stoker.plan.make import Found
from stoker.plan.plan import Cost
from stoker.plan.search import Way
from stoker.rundir.inputs import eval_share

Span = tuple[float, float, float]
"""Expected, least, most."""
_UNSURE = 2.0
"""Setup times are general knowledge: half to twice."""
_WEEK_SECONDS = 7 * 24 * 3600


@dataclass(frozen=True, kw_only=True)
class Bill:
    """One way to pay for a run on a machine."""

    kind: Literal["demand", "spot", "free"]
    provider: str
    setup: dict[str, float]
    """Seconds besides training, by part."""
    seconds: Span
    """From switching the machine on to the finished model."""
    billed_seconds: float
    cost: Cost
    own_price: bool = False
    """Whether the user stated the price."""
    restarts: float = 0.0
    """Expected interruptions of a spot machine."""
    stay: Stay | None = None
    """Sessions of a free platform."""

    @property
    def setup_seconds(self) -> float:
        """Expected seconds besides training."""
        return math.fsum(self.setup.values())


def setup(found: Found, provider: str, region: str = "") -> dict[str, float]:
    """Seconds besides training at a provider, by part; parts of no length are left out."""
    base = found.disk["base"]
    parts = {
        "boot": setup_times.figure("boot", provider).value,
        "environment": setup_times.figure("environment", provider).value,
        "download": base / setup_times.figure("download", provider, region).value,
        **_on_the_machine(found),
    }
    return {part: seconds for part, seconds in parts.items() if seconds}


def on_demand(found: Found, offer: Offer) -> Bill:
    """What an offer costs for the whole stay, in the provider's units; a machine of one's own is on already."""
    provider = setup_times.LOCAL if offer.cloud == money.OWN else offer.cloud
    parts = setup(found, provider, offer.region)
    seconds = span(training(found), parts)
    return Bill(
        kind="demand", provider=provider, setup=parts, seconds=seconds, **_paid(found, offer, provider, seconds)
    )


def on_spot(found: Found, offer: Offer) -> Bill:
    """The same at the spot price: work that is lost and done again, and restarts, included."""
    between = failures.seconds_between(spot.PLACE, found.constraints.devices)
    save = memory.checkpoint_bytes(found.way.step) / setup_times.figure("save").value
    expected, least, most = (
        spot.expected_seconds(each, between, failures.restart_seconds(), save) for each in training(found)
    )
    parts = setup(found, offer.cloud, offer.region)
    seconds = span((expected, least, most), parts)
    asked = offer.model_copy(update={"price_per_hour": offer.spot_price_per_hour})
    paid = _paid(found, asked, offer.cloud, seconds)
    return Bill(kind="spot", provider=offer.cloud, setup=parts, seconds=seconds, restarts=expected / between, **paid)


def free_of_charge(found: Found, card: str, currency: str) -> list[Bill]:
    """Platforms that lend these cards for nothing: each session is set up anew; a used quota is waited for."""
    devices, nodes = found.constraints.devices, found.inputs.machine.nodes
    bills: list[Bill] = []
    for platform in platforms.platforms():
        if nodes > 1 or not any(one.free and one.card == card and one.count >= devices for one in platform.cards):
            continue
        parts = setup(found, platform.name)
        once = span(training(found), parts)
        (stay,) = (
            one for one in clocks.stays(card, devices, once, found.disk, nodes) if one.platform == platform.title
        )
        (sessions, most_sessions), (weeks, most_weeks) = stay.sessions, stay.weeks
        again, waits = math.fsum(parts.values()), _WEEK_SECONDS - (stay.weekly_hours or 0.0) * 3600
        seconds = (
            once[0] + (sessions - 1) * again + (weeks - 1) * waits,
            once[1] + (sessions - 1) * again / _UNSURE,
            once[2] + (most_sessions - 1) * again * _UNSURE + (most_weeks - 1) * waits,
        )
        cost = Cost(
            amount=0,
            amount_range=(0, 0),
            currency=currency,
            price_per_hour=0,
            billed_devices=devices,
            source=platform.title,
            age_days=0,
        )
        bill = Bill(
            kind="free", provider=platform.name, setup=parts, seconds=seconds, billed_seconds=0.0, cost=cost, stay=stay
        )
        bills.append(bill)
    return bills


def training(found: Found) -> Span:
    """Training as planned; at most, out of memory at first and then in the safe way."""
    expected, least, most = found.seconds
    if found.way.safe is None:
        return found.seconds
    return expected, least, search.restart_seconds(found.way) + most * _slower(found.way, found.way.safe)


def in_safe_way(found: Found, safe: Way, bill: Bill | None) -> tuple[float, float | None]:
    """Training seconds of the safe way, and what a stay with it costs; None where nothing is paid."""
    seconds = found.seconds[0] * _slower(found.way, safe)
    if bill is None or not bill.billed_seconds:
        return seconds, None
    stay = bill.seconds[0] + search.restart_seconds(found.way) + seconds - found.seconds[0]
    return seconds, bill.cost.amount * _units(stay, setup_times.billing(bill.provider)) / bill.billed_seconds


def _slower(way: Way, safe: Way) -> float:
    return way.pace.tokens_per_second / safe.pace.tokens_per_second


def span(trained: Span, parts: dict[str, float]) -> Span:
    """Training and setup together."""
    around = math.fsum(parts.values())
    expected, least, most = trained
    return expected + around, least + around / _UNSURE, most + around * _UNSURE


def _paid(found: Found, offer: Offer, provider: str, seconds: Span) -> dict[str, Any]:
    """What is billed for a stay."""
    expected, least, most = (_units(each, setup_times.billing(provider)) for each in seconds)
    cost = money.cost((expected, least, most), found.billed_devices, offer, found.inputs.machine.nodes)
    return {"billed_seconds": expected, "cost": cost, "own_price": offer.own}


def _units(seconds: float, billing: Billing) -> float:
    """Seconds as they are billed: whole units, and no less than the minimum."""
    return math.ceil(max(seconds, billing.minimum_seconds) / billing.unit_seconds) * billing.unit_seconds


def _on_the_machine(found: Found) -> dict[str, float]:
    """Seconds that every machine spends: preparing, loading, evaluating, saving."""
    data, step = found.inputs.data, found.way.step
    save = memory.checkpoint_bytes(step) / setup_times.figure("save").value
    return {
        "prepare": plan_data.preparing_seconds(found.inputs.run, data, found.inputs.machine.cpu_count),
        "load": setup_times.figure("start").value + memory.whole_weight_bytes(step) / setup_times.figure("load").value,
        "evaluation": _evaluating_seconds(found),
        "save": _saves(found, save) * save + found.disk["finished"] / setup_times.figure("save").value,
    }


def _evaluations(found: Found) -> int:
    every = values.every(found.intervals.evaluate)
    if every.kind == "steps":
        return found.steps.total // int(every.amount)
    return found.steps.epochs if every.kind == "epoch" else 0


def _evaluating_seconds(found: Found) -> float:
    """Of all evaluations: forward passes, or an answer to each prompt."""
    data, count = found.inputs.data, _evaluations(found)
    if data.answers.batch:
        # One answer to a prompt, where a step has a group of them.
        rows = _eval_tokens(found) / data.tokens * data.sequences * data.answers.prompts / data.answers.batch
        return count * rows * data.answers.each_seconds(found.way.pace)
    return count * _eval_tokens(found) * setup_times.figure("evaluation").value / found.tokens_per_second[0]


def _eval_tokens(found: Found) -> float:
    """Tokens of one evaluation: the share that is split off, or a guess for a file that was not counted."""
    share = eval_share(found.inputs.run)
    part = values.share(share) if share else setup_times.figure("eval_share").value
    return found.inputs.data.tokens * part / (1 - part)


def _saves(found: Found, save: float) -> float:
    """Saves that training waits for: the last one, and without a background all."""
    if found.intervals.background:
        return 1.0
    between = found.intervals.between_failures_seconds
    return max(1.0, found.seconds[0] / save_interval.interval_seconds(save, between))
