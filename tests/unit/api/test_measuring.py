"""What is left of a run at the pace of its first steps."""

from pathlib import Path

import pytest
from plan_case import SEVEN

from stoker.api import measuring
from stoker.config import load
from stoker.facts import cards, setup_times, shapes
from stoker.facts.machine import Machine
from stoker.launch.calibration import Measured
from stoker.plan import data, make
from stoker.plan.make import Inputs
from stoker.rent import bill


def test_an_evaluation_takes_the_measured_pace_and_nothing_else_does() -> None:
    text = f"model: {SEVEN}\ndata: {{train: a.jsonl, eval: 5%, tokens: 5000000, length: 1024}}\ntrain: {{batch: 16}}\n"
    run = load.parse(text, "run.yaml")
    shape = shapes.resolve(run.model, Path("nowhere"), run.tokenizer, run.data.length)
    found = make.find(Inputs(run, Machine.of_card(cards.find("A100-80-SXM4")), shape, data.declared(run)))
    planned = bill.setup(found, setup_times.LOCAL)
    twice = 2 * found.tokens_per_second[0]
    seen = Measured(steps=15, tokens_per_second=twice, tokens_per_second_range=(twice, twice), memory_bytes=0)
    measured = measuring.setup_seconds(found, seen)
    assert planned["evaluation"] > 0
    assert measured.pop("evaluation") == pytest.approx(planned.pop("evaluation") / 2)
    assert measured == planned
