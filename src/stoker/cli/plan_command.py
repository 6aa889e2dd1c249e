"""`stoker plan`: what will happen, on every card or on one, as a page or as JSON."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker import messages
from stoker.agents import consent
from stoker.api import arithmetic, comparison, measuring, plan_page, planning, preparation
from stoker.api.planning import MarketQuestion
from stoker.cli import remote
from stoker.cli.prepare_command import ensure_prepared
from stoker.config import problems, values
from stoker.config.load import RunFile
from stoker.errors import StokerError
from stoker.facts import cards
from stoker.launch import drawing, programs, traced_step
from stoker.plan import make, money
from stoker.plan.make import Found, make_plan
from stoker.plan.plan import Plan
from stoker.rent.compare import Change
from stoker.terminal import console, measured, plan_pages, recipe_table

_PAGES = ("--card", "--gpus", "--on", "--explain", "--trace", "--calibrate")
_HERE = "local"
_QUESTIONS = ("budget", "by", "provider", "currency", "region")
_APART = [
    *itertools.product(("--all", "--plot", *(f"--{word}" for word in _QUESTIONS)), _PAGES),
    *itertools.product(("--calibrate",), ("--card", "--on", "--explain", "--trace")),
    *itertools.product(("--explain",), ("--card", "--on", "--trace")),
    *itertools.product(("--on",), ("--card", "--trace")),
]
"""Flags that exclude each other."""


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What to show of a plan."""

    card: str | None
    """This card instead of all."""
    on: str | None
    """This host instead of all cards; `local` is this machine."""
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
    question: MarketQuestion
    """What is asked of the table."""
    price: str | None
    everything: bool
    as_json: bool

    @property
    def one(self) -> bool:
        """Whether the page of one machine is shown instead of the table."""
        return self.card is not None or self.here or self.on == _HERE

    def check(self) -> None:
        """Refuse flags that exclude each other, and cards that do not exist."""
        flags = {
            "--card": self.card,
            "--on": self.on,
            "--gpus": self.here,
            "--explain": self.explain,
            "--plot": self.plot,
            "--trace": self.trace,
            "--calibrate": self.calibrate,
            "--all": self.everything,
            **{f"--{word}": getattr(self.question, word) for word in _QUESTIONS},
        }
        for one, other in _APART:
            if flags[one] and flags[other]:
                raise StokerError("STK224", one=one, other=other)
        for flag, card in (("--card", self.card), ("--explain", self.explain)):
            if card:
                cards.find(card, flag)


def plan(name: str, overrides: list[str], asked: PlanRequest) -> None:
    """Print the plan of a run file or recipe: the table of all cards, or the page of one."""
    asked.check()
    goal = planning.checked_goal(asked.question.goal, "--for")
    target = drawing.check(asked.plot) if asked.plot else None
    overrides = [*overrides, *_price(asked.price)]
    if asked.calibrate:
        _calibrate(name, overrides, as_json=asked.as_json)
        return
    run_file = recipe_table.named(name, overrides)
    consent.require_agreed(run_file)
    with run_file.located():
        if asked.explain:
            _explanation(run_file, asked.explain, as_json=asked.as_json)
        elif asked.trace:
            _trace(make.find(planning.inputs_for(run_file, asked.card)), as_json=asked.as_json)
        elif asked.one:
            _page(*planning.planned(run_file, asked.card, goal), as_json=asked.as_json)
        elif asked.on:
            _page(remote.planned(run_file, asked.on), [], as_json=asked.as_json)
        else:
            _listing(run_file, target, asked)


def _price(text: str | None) -> list[str]:
    """`--price` is short for a key of the run file."""
    if text is None:
        return []
    if not values.is_price(text):
        raise problems.unparsable("--price", text, "`2.5CNY/h`", values.is_price)
    return [f"{money.OWN}={text}"]


def _page(made: Plan, changes: Sequence[Change], *, as_json: bool) -> None:
    if as_json:
        console.data_json(comparison.plan_json(made, changes))
        return
    plan_pages.show(made)
    if made.fits == "no":
        console.data("")
        for line in comparison.change_lines(changes):
            console.data(line)


def _explanation(run_file: RunFile, card: str, *, as_json: bool) -> None:
    inputs = planning.inputs_for(run_file, card)
    found = make.find(inputs)
    if as_json:
        page = plan_page.to_json(make_plan(inputs))
        console.data_json({**page, "explanation": arithmetic.sections(found)})
        return
    plan_pages.show_arithmetic(found)
    for reason in planning.card_reasons(card):
        console.data(messages.text("plan.reason", about=reason.about, text=reason.text))
    if resume := planning.resume_here(inputs):
        console.data(plan_page.resume_text(resume))


def _listing(run_file: RunFile, target: Path | None, asked: PlanRequest) -> None:
    found = planning.compared(run_file, planning.terms(run_file.run, asked.question, flags="--"))
    if asked.as_json:
        console.data_json(found.to_json())
    else:
        plan_pages.show_comparison(found, everything=asked.everything)
    if target:
        drawing.draw(found.to_json(), target)
        console.talk("compare.drawn", path=target)


def _trace(found: Found, *, as_json: bool) -> None:
    """Trace the step of a plan, and print it beside the closed form."""
    traced_step.check(found)
    with console.status() as status:
        status.show(messages.text("trace.running"))
        traced = traced_step.trace(found)
    measured.show_trace(found, traced, as_json=as_json)


def _calibrate(name: str, overrides: list[str], *, as_json: bool) -> None:
    """Measure the first steps here, and print the remaining time and money at that pace."""
    programs.check_engine()
    run_file = recipe_table.named(name, overrides)
    with run_file.located(), preparation.created(run_file) as run_dir:
        ensure_prepared(run_dir)
    with console.status() as status:
        found = measuring.calibrate(name, run_file, lambda done: status.show(measured.progress(done)))
    measured.show_calibration(found, as_json=as_json)
