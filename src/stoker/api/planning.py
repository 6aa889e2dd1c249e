"""Plans a run for one machine, or for every card of the catalogue."""

from collections.abc import Mapping
from typing import Any, get_args

from stoker import messages
from stoker.api import comparison, loading
from stoker.api.comparison import Comparison
from stoker.api.loading import RunSource
from stoker.api.plan_page import PlanPage
from stoker.config import values
from stoker.config.load import RunFile
from stoker.config.run import Run
from stoker.errors import StokerError, closest
from stoker.facts import cards
from stoker.facts.machine import Machine
from stoker.launch import plan_inputs
from stoker.plan import moves
from stoker.plan.make import Inputs, make_plan
from stoker.plan.plan import Plan, Reason, Resume
from stoker.rent import compare as comparing
from stoker.rent.compare import Change, Goal


def plan(run: RunSource, overrides: Mapping[str, Any] | None = None, *, card: str | None = None) -> PlanPage:
    """What will happen on this machine, or on a card of the catalogue: whether it fits, how long, how much, and why.

    Args:
        run: A run file's path, a recipe's name, or what `load` returned.
        overrides: Values by key, such as `{"train.epochs": 1}`.
        card: A card's name, as `stoker gpus` lists them; `where.gpus` says how many.
    """
    run_file = loading.load(run, overrides)
    with run_file.located():
        made, changes = planned(run_file, card)
        return PlanPage.of(made, comparison.change_lines(changes) if made.fits == "no" else [])


def planned(run_file: RunFile, card: str | None, goal: Goal = "money") -> tuple[Plan, list[Change]]:
    """The plan for a card, or for this machine, and what would make it fit where it does not."""
    inputs = inputs_for(run_file, card)
    made = make_plan(inputs)
    made = made.model_copy(update={"reasons": [*card_reasons(card), *made.reasons]})
    return made, _ways_out(inputs, made, goal)


def card_reasons(name: str | None) -> list[Reason]:
    """Which card was taken, where a short name may mean several."""
    if name is None or not (others := cards.namesakes(name)):
        return []
    fields = {"given": name, "card": cards.find(name).name, "others": [other.name for other in others]}
    return [Reason(about="card", key="why.card.taken", fields=fields)]


def inputs_for(run_file: RunFile, card: str | None) -> Inputs:
    """What the plan for a card, or for this machine, follows from."""
    return plan_inputs.inputs(run_file, None, plan_inputs.machine(card, run_file.run))


def compare(run: RunSource, overrides: Mapping[str, Any] | None = None, *, goal: Goal = "money") -> Comparison:
    """The same run on every card of the catalogue, ranked.

    Args:
        run: A run file's path, a recipe's name, or what `load` returned.
        overrides: Values by key, such as `{"train.epochs": 1}`.
        goal: What comes first: `money` or `speed`.
    """
    goal = checked_goal(goal, "goal")
    run_file = loading.load(run, overrides)
    with run_file.located():
        return compared(run_file, goal)


def checked_goal(text: str, where: str) -> Goal:
    """`money` or `speed`; anything else is refused."""
    if text == "money":
        return "money"
    if text == "speed":
        return "speed"
    goals = list(get_args(Goal))
    raise StokerError("STK108", where, given=f"`{text}`", choices=goals, nearest=closest(text, goals))


def compared(run_file: RunFile, goal: Goal) -> Comparison:
    """The rows of every card, this machine's, and what would fit where none does."""
    found = plan_inputs.machine(None, run_file.run)
    inputs = plan_inputs.inputs(run_file, None, found)
    here = comparing.here(inputs, found.name, max(1, len(found.devices)))
    rows = comparing.ranked(comparing.compare(inputs, cards.cards()), goal)
    changes = comparing.milder(inputs, cards.cards()) if all(row.fits == "no" for row in rows) else []
    return Comparison(run_file.run, goal, here, rows, changes, resume_here(inputs))


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
    return comparing.ways_out(inputs, cards.cards(), _card(inputs.machine), count, goal)


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
