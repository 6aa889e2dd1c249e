"""Digests of the plan of every recipe on 1, 2 and 8 of every card: a change of structure must not change a plan.

`python benchmarks/plan_snapshot.py FILE [EARLIER]` writes FILE. EARLIER is the snapshot of an earlier commit, made by
this script with `PYTHONPATH` set to that commit's `src`; plans that differ are listed, and the exit code is 1.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker.config import load
from stoker.errors import StokerError
from stoker.facts import cards
from stoker.launch import plan_inputs
from stoker.plan import make
from stoker.plan.make import Inputs
from stoker.rent import compare

COUNTS = (1, 2, 8)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("earlier", type=Path, nargs="?")
    parser.add_argument("--recipe", action="append", help="only this one")
    asked = parser.parse_args()
    made = dict(_digests(asked.recipe or load.recipe_names()))
    asked.file.write_text(json.dumps(made, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    if asked.earlier is None:
        return 0
    before = json.loads(asked.earlier.read_text(encoding="utf-8"))
    changed = sorted(name for name in made | before if made.get(name) != before.get(name))
    print(*changed, f"{len(made)} plans, {len(changed)} differ", sep="\n")
    return 1 if changed else 0


def _digests(recipes: list[str]) -> Iterator[tuple[str, str]]:
    for recipe in recipes:
        for card in cards.cards():
            for count in COUNTS:
                run_file = load.load(recipe, [f"where.gpus={count}"])
                machine = plan_inputs.machine(card.name, run_file.run)
                yield f"{recipe} {count}x {card.name}", _digest(_plan(plan_inputs.inputs(run_file, None, machine)))
        yield f"{recipe} compared", _digest(_compared(recipe))


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _plan(inputs: Inputs) -> Any:
    """What plan.json has, without the age of a price; the sentences of reasons and errors are not part of it."""
    try:
        return make.make_plan(inputs).model_dump(mode="json", exclude={"cost": {"age_days"}})
    except StokerError as refused:
        return refused.code


def _compared(recipe: str) -> Any:
    """The ranked rows of `plan --compare`; from a card of the catalogue, not from the machine that runs this."""
    run_file = load.load(recipe)
    inputs = plan_inputs.inputs(run_file, None, plan_inputs.machine(cards.cards()[0].name, run_file.run))
    rows = compare.ranked(compare.compare(inputs, cards.cards(), COUNTS), "money")
    frontier = {id(row) for row in compare.frontier(rows)}
    return [
        (row.card, row.devices, row.fits, row.seconds, row.money, row.refused and row.refused.code, id(row) in frontier)
        for row in rows
    ]


if __name__ == "__main__":
    sys.exit(main())
