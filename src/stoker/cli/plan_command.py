"""`stoker plan`: what will happen, on every card or on one, as a page or as JSON."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from rich.table import Column, Table

from stoker import messages
from stoker.cli import measured
from stoker.config import load, values
from stoker.config.load import RunFile
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.facts import cards
from stoker.facts.machine import Machine
from stoker.facts.prices import STALE_DAYS
from stoker.launch import drawing, plan_inputs
from stoker.plan import compare, make, money
from stoker.plan.compare import Change, Goal
from stoker.plan.make import Inputs, make_plan
from stoker.plan.plan import Cost, Plan, Resume
from stoker.terminal import comparison as listing
from stoker.terminal import console, explanation, figures

_PAGES = ("--card", "--gpus", "--explain", "--trace", "--calibrate")
_APART = [
    *itertools.product(("--all", "--plot"), _PAGES),
    *itertools.product(("--calibrate",), ("--card", "--explain", "--trace")),
    *itertools.product(("--explain",), ("--card", "--trace")),
]
"""Flags that ask for different answers."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What of a plan is to be shown."""

    card: str | None
    """This card instead of all."""
    explain: str | None
    """The arithmetic for this card."""
    plot: str | None
    """Draw the table to this file."""
    trace: bool
    """Trace the step of one plan."""
    calibrate: bool
    """Measure the first steps here."""
    here: bool
    """This machine instead of all cards."""
    goal: str
    price: str | None
    everything: bool
    as_json: bool

    @property
    def one(self) -> bool:
        """Whether one machine's page is asked for, not the table."""
        return self.card is not None or self.here

    def check(self) -> None:
        """Refuse flags that ask for two answers at once."""
        flags = {
            "--card": self.card,
            "--gpus": self.here,
            "--explain": self.explain,
            "--plot": self.plot,
            "--trace": self.trace,
            "--calibrate": self.calibrate,
            "--all": self.everything,
        }
        for one, other in _APART:
            if flags[one] and flags[other]:
                raise StokerError("STK224", one=one, other=other)


def plan(name: str, overrides: list[str], asked: Asked) -> None:
    """Print the plan of a run file or recipe: the table of all cards, or the page of one."""
    asked.check()
    goal, target = _goal(asked.goal), drawing.check(asked.plot) if asked.plot else None
    overrides = [*overrides, *_price(asked.price)]
    if asked.calibrate:
        measured.calibrate(name, overrides, as_json=asked.as_json)
        return
    run_file = load.load(name, overrides)
    with run_file.located():
        if asked.explain:
            _explanation(run_file, asked.explain, as_json=asked.as_json)
        elif asked.trace:
            inputs = plan_inputs.inputs(run_file, None, plan_inputs.machine(asked.card, run_file.run))
            measured.trace(make.find(inputs), as_json=asked.as_json)
        elif asked.one:
            _page(run_file, asked)
        else:
            _listing(run_file, goal, target, asked)


def _goal(text: str) -> Goal:
    if text == "money":
        return "money"
    if text == "speed":
        return "speed"
    raise StokerError("STK108", "--for", given=f"`{text}`", choices=", ".join(get_args(Goal)))


def _price(text: str | None) -> list[str]:
    """`--price` is the short form of a word of the run file."""
    if text is None:
        return []
    if not values.is_price(text):
        raise StokerError("STK109", "--price", given=f"`{text}`", example="`2.5CNY/h`")
    return [f"{money.OWN}={text}"]


def _page(run_file: RunFile, asked: Asked) -> None:
    inputs = plan_inputs.inputs(run_file, None, plan_inputs.machine(asked.card, run_file.run))
    made = make_plan(inputs)
    changes = ways_out(inputs, made)
    if asked.as_json:
        console.data_json({**to_json(made), "changes": listing.changes_json(changes)})
        return
    show(made)
    if made.fits == "no":
        console.data("")
        for line in listing.change_lines(changes):
            console.data(line)


def _explanation(run_file: RunFile, card: str, *, as_json: bool) -> None:
    inputs = plan_inputs.inputs(run_file, None, plan_inputs.machine(card, run_file.run))
    found = make.find(inputs)
    if as_json:
        console.data_json({**to_json(make_plan(inputs)), "explanation": explanation.sections(found)})
        return
    explanation.show(found)
    if going_on := _resume_here(inputs):
        console.data(resume(going_on))


def _listing(run_file: RunFile, goal: Goal, target: Path | None, asked: Asked) -> None:
    found = plan_inputs.machine(None, run_file.run)
    inputs = plan_inputs.inputs(run_file, None, found)
    here = compare.here(inputs, found.name, max(1, len(found.devices)))
    rows = compare.ranked(compare.compare(inputs, cards.cards()), goal)
    changes = compare.ways_out(inputs, cards.cards()) if all(row.fits == "no" for row in rows) else []
    going_on = _resume_here(inputs)
    if asked.as_json:
        table = listing.to_json(run_file.run, here, rows, changes, goal)
        console.data_json({**table, "resume": going_on.model_dump() if going_on else None})
    else:
        listing.show(run_file.run, here, rows, changes, goal, everything=asked.everything)
        if going_on:
            console.data("")
            console.data(messages.text("compare.resume", said=resume(going_on)))
    if target:
        drawing.draw(listing.to_json(run_file.run, here, rows, changes, goal), target)
        console.talk("compare.drawn", path=target)


def _resume_here(inputs: Inputs) -> Resume | None:
    """How a run that was begun goes on on this machine, if it does."""
    if inputs.earlier is None:
        return None
    try:
        return make_plan(inputs).resume
    except StokerError:  # the table has a row for that
        return None


def ways_out(inputs: Inputs, made: Plan) -> list[Change]:
    """What would make it fit, where it does not."""
    if made.fits != "no":
        return []
    count = made.batch.devices // inputs.machine.nodes
    return compare.ways_out(inputs, cards.cards(), _card(inputs.machine), count)


def _card(machine: Machine) -> cards.Card | None:
    known = [card for card in cards.cards() if machine.devices and card.name == machine.devices[0].card]
    return known[0] if known else None


def to_json(made: Plan) -> dict[str, object]:
    """The plan as JSON, with each reason in words."""
    out = made.model_dump()
    for reason, entry in zip(made.reasons, out["reasons"], strict=True):
        entry["text"] = reason.text
    return out


def show(made: Plan) -> None:
    """The plan as people read it."""
    card = f"{made.batch.devices} x {made.card}" if made.batch.devices > 1 else made.card
    console.data(messages.text("plan.title", name=made.name, card=card))
    table = Table.grid("", Column(overflow="fold"), padding=(0, 2))
    for key, value in _figures(made):
        table.add_row(messages.text(key), value)
    console.table(table)
    console.data("")
    for reason in made.reasons:
        console.data(f"  {reason.about}: {reason.text}")
    if "data" in made.estimated:
        console.data("")
        console.data(messages.text("plan.data_estimated"))


def _figures(made: Plan) -> list[tuple[str, str]]:
    used, there = made.memory.peak_device_bytes / 2**30, made.memory.available_bytes / 2**30
    low, high = (f"{each / 2**30:.1f}" for each in made.memory.device_bytes_range)
    slowest, fastest = (f"{each:,.0f}" for each in made.speed.tokens_per_second_range)
    steps = made.steps
    rows = [
        ("plan.fits_row", messages.text(f"plan.fits.{made.fits}")),
        (
            "plan.memory",
            messages.text("plan.memory_value", used=f"{used:.1f}", there=f"{there:.1f}", low=low, high=high),
        ),
        ("plan.model", messages.text("plan.model_value", **_model_fields(made))),
        (
            "plan.steps",
            messages.text("plan.steps_value", total=steps.total, per_epoch=steps.per_epoch, epochs=steps.epochs),
        ),
        (
            "plan.speed",
            messages.text("plan.speed_value", speed=f"{made.speed.tokens_per_second:,.0f}", low=slowest, high=fastest),
        ),
        ("plan.time", figures.time_range((made.time_seconds, *made.time_seconds_range))),
        ("plan.disk", _disk(made)),
    ]
    if made.cost:
        rows.append(("plan.cost", _cost(made.cost)))
    if made.resume:
        rows.append(("plan.resume", resume(made.resume)))
    return rows


def resume(found: Resume) -> str:
    """How the run goes on, in the words of the trainer's own verdict."""
    said = messages.text("train.tier", tier=found.tier, step=found.step)
    if not found.changed:
        return said
    return f"{said} {messages.text('train.tier_changed', changed=', '.join(found.changed))}"


def _cost(cost: Cost) -> str:
    return messages.text("plan.cost_value", amount=figures.paid(cost), source=_source(cost))


def _source(cost: Cost) -> str:
    """Whose price, and how old where it is."""
    if cost.source == money.OWN:
        return messages.text("plan.price_own")
    if cost.age_days <= STALE_DAYS:
        return cost.source
    return messages.text("plan.price_age", source=cost.source, days=cost.age_days)


def _disk(made: Plan) -> str:
    parts = [
        f"{size / 1e9:.1f} {messages.text(f'disk.{part}')}" for part, size in made.disk_parts.items() if size >= 5e7
    ]
    return (
        f"{made.disk_bytes / 1e9:.1f} GB = {' + '.join(parts)}" if len(parts) > 1 else f"{made.disk_bytes / 1e9:.1f} GB"
    )


def _model_fields(made: Plan) -> dict[str, str]:
    return {
        "parameters": f"{made.model.parameters / 1e6:,.1f}",
        "trainable": f"{made.model.trainable_parameters / 1e6:,.1f}",
        "origin": messages.text(f"origin.{made.model.origin}"),
    }


def _require_tier(run: Run, plan: Plan) -> None:
    """What the trainer would refuse for `save.resume` is refused before anything starts."""
    if plan.resume and run.save.resume == "exact" and plan.resume.tier != "EXACT":
        changed = ", ".join(plan.resume.changed) or plan.device
        raise StokerError("STK420", tier=plan.resume.tier, changed=changed)


def require_possible(run: Run, plan: Plan) -> None:
    """It fits, the card is one PyTorch runs on, and a budget in money has a price to be counted by."""
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
