"""Plans a run for one machine, or for every card of the catalogue."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from stoker import messages
from stoker.api import comparison, figures, loading
from stoker.api.comparison import Comparison
from stoker.api.loading import RunSource
from stoker.api.plan_page import PlanPage
from stoker.config import problems, values
from stoker.config.load import RunFile
from stoker.config.run import Run
from stoker.errors import StokerError, closest
from stoker.facts import cards, platforms, prices
from stoker.facts.machine import Machine
from stoker.facts.prices import Market, Region
from stoker.launch import plan_inputs
from stoker.plan import moves
from stoker.plan.make import Inputs, make_plan
from stoker.plan.plan import Plan, Reason, Resume
from stoker.rent import compare as comparing
from stoker.rent.bill import Bill
from stoker.rent.compare import Change, Goal, Row, Terms


def plan(run: RunSource, overrides: Mapping[str, Any] | None = None, *, card: str | None = None) -> PlanPage:
    """What will happen on this machine, or on a card of the catalogue: whether it fits, how long, how much, and why.

    Args:
        run: A run file's path, a recipe's name, or what `load` returned.
        overrides: Values by key, such as `{"train.epochs": 1}`.
        card: A card's name, as `stoker gpus` lists them; `where.gpus` says how many.
    """
    run_file = loading.load(run, overrides)
    with run_file.located():
        if card is not None:
            cards.find(card, "card")
        made, changes = planned(run_file, card)
        return PlanPage.of(made, comparison.change_lines(changes) if made.fits == "no" else [])


def planned(run_file: RunFile, card: str | None, goal: Goal = "money") -> tuple[Plan, list[Change]]:
    """The plan for a card, or for this machine, and what would make it fit where it does not."""
    inputs = inputs_for(run_file, card)
    made = make_plan(inputs)
    bill = _bill(inputs, made) if card else None
    if bill and inputs.offer and bill.provider != inputs.offer.cloud:  # cheaper by the hour, dearer over the whole stay
        offer = prices.cheapest(made.card, made.batch.devices, inputs.offer.currency, bill.provider)
        made = make_plan(dataclasses.replace(inputs, offer=offer))
    said = [*card_reasons(card), *(_stay_reasons(bill) if bill else []), *made.reasons]
    made = made.model_copy(update={"reasons": said})
    return made, _ways_out(inputs, made, goal)


def card_reasons(name: str | None) -> list[Reason]:
    """Which card was taken, where a short name may mean several."""
    if name is None or not (others := cards.namesakes(name)):
        return []
    fields = {"given": name, "card": cards.find(name).name, "others": [other.name for other in others]}
    return [Reason(about="card", key="why.card.taken", fields=fields)]


def _bill(inputs: Inputs, made: Plan) -> Bill | None:
    """What the table bills for the whole stay on this card; a price of one's own has no provider, and so no setup."""
    known = _card(inputs.machine)
    if known is None or made.fits == "no" or inputs.run.where.price:
        return None
    market = terms(inputs.run, MarketQuestion()).market
    return comparing.on(inputs, known, made.batch.devices // inputs.machine.nodes, market).bill


def _stay_reasons(bill: Bill) -> list[Reason]:
    fields = {"provider": bill.provider, "amount": figures.paid(bill.cost)}
    fields |= {"setup": figures.duration(bill.setup_seconds), "billed": figures.duration(bill.billed_seconds)}
    return [Reason(about="cost", key="why.stay", fields=fields)]


def inputs_for(run_file: RunFile, card: str | None) -> Inputs:
    """What the plan for a card, or for this machine, follows from; a card's price is of the table's market."""
    inputs = plan_inputs.inputs(run_file, None, plan_inputs.machine(card, run_file.run))
    if card is None or inputs.run.where.price:
        return inputs
    currency = terms(inputs.run, MarketQuestion()).market.currency
    offer = prices.cheapest(cards.find(card).name, len(inputs.machine.devices), currency)
    return dataclasses.replace(inputs, offer=offer)


@dataclass(frozen=True, kw_only=True)
class MarketQuestion:
    """What a person asks of the comparison, in words; None is not asked."""

    goal: str = "money"
    budget: str | None = None
    by: str | None = None
    provider: str | None = None
    currency: str | None = None
    region: str | None = None


def compare(  # noqa: PLR0913  # one parameter per question
    run: RunSource,
    overrides: Mapping[str, Any] | None = None,
    *,
    goal: Goal = "money",
    budget: str | None = None,
    by: str | None = None,
    provider: str | None = None,
    currency: str | None = None,
    region: str | None = None,
) -> Comparison:
    """The same run on every card of the catalogue, ranked, and which of them to take.

    Args:
        run: A run file's path, a recipe's name, or what `load` returned.
        overrides: Values by key, such as `{"train.epochs": 1}`.
        goal: What comes first: `money` or `speed`.
        budget: The most that the whole stay may cost, such as `30USD`.
        by: The longest that it may take, such as `6h`.
        provider: Only this one's offers, such as `autodl`.
        currency: Only offers in this one, such as `CNY`.
        region: `cn` or `global`; by the budget's currency or the language unless told.
    """
    asked = MarketQuestion(goal=goal, budget=budget, by=by, provider=provider, currency=currency, region=region)
    run_file = loading.load(run, overrides)
    with run_file.located():
        return compared(run_file, terms(run_file.run, asked))


def terms(run: Run, asked: MarketQuestion, *, flags: str = "") -> Terms:
    """What an answer has to keep to: what is asked, else the run's own budget.

    Args:
        run: The run.
        asked: The question.
        flags: What stands before a word where it was given, such as `--`.
    """
    own = Terms.of(run, checked_goal(asked.goal, "--for" if flags else "goal"))
    asked = _as_typed(asked)
    budget, by_seconds = own.budget, own.by_seconds
    if asked.budget is not None:
        if not values.is_money(asked.budget):
            example = "`200元`" if messages.language() == "zh" else "`30USD`"
            raise problems.unparsable(f"{flags}budget", asked.budget, example, values.is_money)
        budget = values.money(asked.budget)
    if asked.by is not None:
        if not values.is_duration(asked.by):
            raise problems.unparsable(f"{flags}by", asked.by, "`6h`", values.is_duration)
        by_seconds = values.duration_seconds(asked.by)
    price = values.price(run.where.price)[1] if run.where.price else None
    market = _market(asked, budget[1] if budget else price, flags)
    if budget and budget[1] != market.currency and (asked.budget is not None or not prices.has_rate(budget[1])):
        where = f"{flags}budget" if asked.budget is not None else "budget.money"
        example = f"`{where} 50{market.currency}`" if asked.budget is not None else f"`{where}: 50 {market.currency}`"
        raise StokerError("STK226", where, given=budget[1], paid=market.currency, example=example)
    return Terms(goal=own.goal, budget=budget, by_seconds=by_seconds, market=market)


def _as_typed(asked: MarketQuestion) -> MarketQuestion:
    """A bare budget has the currency that is asked for; `¥`, the sign of yuan and yen, is yuan where those are paid."""
    budget, currency = asked.budget, asked.currency
    if currency is not None:
        currency = values.CURRENCIES.get(currency, currency)
    if budget and currency and budget.replace(".", "", 1).isdecimal():
        budget = f"{budget} {currency}"
    region = asked.region or ("cn" if messages.language() == "zh" else "global")
    if budget and (currency == "CNY" if currency else region == "cn"):
        budget = budget.replace("¥", "￥")
    return dataclasses.replace(asked, budget=budget, currency=currency)


def _market(asked: MarketQuestion, currency: str | None, flags: str) -> Market:
    """Whose offers count, in one currency: as asked, else by the currency that is paid with, else by the language."""
    region: Region | None = None
    provider = platforms.short_name(asked.provider) if asked.provider is not None else None
    if asked.region is not None:
        region = "cn" if _checked(asked.region, get_args(Region), f"{flags}region") == "cn" else "global"
    lenders = [one.name for one in platforms.platforms() if any(card.free for card in one.cards)]
    if provider is not None:
        _checked(provider, [*prices.providers(), *lenders], f"{flags}provider")
        regions = {one.region for one in prices.all_offers() if one.cloud == provider}
        if region is not None:
            _checked(region, sorted(regions or {"global"}), f"{flags}region")
    elif region is None and asked.currency is None and currency is None:
        region = "cn" if messages.language() == "zh" else "global"
    market = Market(provider=provider, region=region)
    known = prices.currencies(market) or prices.currencies()  # what is lent costs nothing in any of them
    if asked.currency is not None:
        _checked(asked.currency, known, f"{flags}currency")
    paid = currency if currency in known else next(iter(known), prices.CURRENCIES["global"])
    return Market(provider=provider, currency=asked.currency or paid, region=region)


def _checked(text: str, choices: Sequence[str], where: str) -> str:
    if text not in choices:
        known = list(choices)
        raise StokerError("STK108", where, given=f"`{text}`", choices=known, nearest=closest(text, known))
    return text


def checked_goal(text: str, where: str) -> Goal:
    """`money` or `speed`; anything else is refused."""
    return "money" if _checked(text, get_args(Goal), where) == "money" else "speed"


def compared(run_file: RunFile, asked: Terms) -> Comparison:
    """The rows of every card, this machine's, and what would fit where none does."""
    found = plan_inputs.machine(None, run_file.run)
    inputs = plan_inputs.inputs(run_file, None, found)
    here = comparing.here(inputs, found.name, max(1, len(found.devices)))
    return comparison_of(inputs, asked, here)


def comparison_of(inputs: Inputs, asked: Terms, here: Row) -> Comparison:
    """The same from its inputs alone: nothing is looked up."""
    known = [card for card in cards.cards() if comparing.offered(card, 1, asked.market)]
    rows = comparing.ranked(comparing.compare(inputs, known, market=asked.market), asked.goal)
    changes = comparing.milder(inputs, known, market=asked.market) if all(row.fits == "no" for row in rows) else []
    return Comparison(inputs.run, asked, here, rows, changes, resume_here(inputs))


def resume_here(inputs: Inputs) -> Resume | None:
    """How a run that was begun goes on on this machine, if it does."""
    if inputs.earlier is None:
        return None
    try:
        return make_plan(inputs).resume
    except StokerError:  # the table has a row for that
        return None


def _ways_out(inputs: Inputs, made: Plan, goal: Goal) -> list[Change]:
    """What would make it fit, where it does not."""
    if made.fits != "no":
        return []
    count = made.batch.devices // inputs.machine.nodes
    asked = terms(inputs.run, MarketQuestion(goal=goal))
    return comparing.ways_out(inputs, cards.cards(), _card(inputs.machine), count, asked)


def _card(machine: Machine) -> cards.Card | None:
    known = [card for card in cards.cards() if machine.devices and card.name == machine.devices[0].card]
    return known[0] if known else None


def require_possible(run: Run, plan: Plan) -> None:
    """It fits, PyTorch supports the card, and a budget in money has a price."""
    _require_tier(run, plan)
    if run.budget.money and plan.limits.money_seconds is None:
        raise StokerError("STK671", currency=values.money(run.budget.money)[1], card=plan.card)
    for one in plan.reasons:
        if one.key == "why.card.old":
            raise StokerError("STK204", **one.fields)
    if plan.fits == "no":
        needed, there = (f"{b / 2**30:.1f}" for b in (plan.memory.peak_device_bytes, plan.memory.available_bytes))
        advice = messages.text("advice.does_not_fit")
        raise StokerError("STK202", needed=needed, available=there, card=plan.card, advice=advice)


def _require_tier(run: Run, plan: Plan) -> None:
    """Refuse a resume that `save.resume` rules out before anything starts."""
    if plan.resume and run.save.resume == "exact" and plan.resume.tier not in ("EXACT", "FORK"):
        changed = plan.resume.changed or moves.unprovable(plan)
        raise StokerError("STK420", tier=plan.resume.tier, changed=changed)
