"""Plans for the tests: a run file's text, a card of the catalogue (or a processor), declared data."""

from pathlib import Path
from typing import Any

from stoker.config import load
from stoker.facts import cards, shapes
from stoker.facts.machine import Machine
from stoker.plan import data
from stoker.plan.make import Inputs, make_plan
from stoker.plan.plan import Plan

SMALL = "Qwen/Qwen2.5-0.5B"
SEVEN = "Qwen/Qwen2.5-7B"


def machine(card: str = "RTX4090", count: int = 1, **facts: Any) -> Machine:
    return Machine.of_card(cards.find(card), count).model_copy(update=facts)


def processor(**facts: Any) -> Machine:
    """A machine without a GPU."""
    known = {"kind": "cpu", "devices": (), "processor": "a CPU", "cpu_count": 8, "memory_bytes": 32 << 30}
    return machine(**{**known, **facts})


def inputs(
    text: str = "",
    on: Machine | None = None,
    *,
    model: str = SMALL,
    tokens: int = 1_000_000,
    sizes: str = "",
    **more: Any,
) -> Inputs:
    """All a plan follows from, for a run file with these further words."""
    content = f"model: {model}\ndata: {{train: a.jsonl, tokens: {tokens}{', ' + sizes if sizes else ''}}}\n{text}"
    run = load.parse(content, "run.yaml")
    shape = shapes.resolve(run.model, Path("nowhere"), run.tokenizer, run.data.length)
    return Inputs(run=run, machine=on or machine(), shape=shape, data=data.declared(run), **more)


def plan(text: str = "", on: Machine | None = None, **more: Any) -> Plan:
    """The plan of a run file with these further words."""
    return make_plan(inputs(text, on, **more))


def reason(made: Plan, about: str) -> str:
    """The key of the sentence that explains something."""
    (found,) = [one.key for one in made.reasons if one.about == about]
    return found
