"""The same run on every card: which fit, ranked by money or time, and what would fit if none does. Pure.

Batch and length are the run's on every row; only method, card and count are ever proposed to change.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from stoker.config import values
from stoker.config.run import Lora, Qlora, Run, Tune
from stoker.errors import StokerError
from stoker.facts import prices
from stoker.facts.cards import Card
from stoker.facts.machine import Machine
from stoker.plan import choices, clocks, make, money
from stoker.plan.clocks import Stay
from stoker.plan.make import Found, Inputs
from stoker.plan.plan import Cost
from stoker.plan.search import Fits

Goal = Literal["money", "speed"]

COUNTS = (1, 2, 4, 8)
_VERDICTS: tuple[Fits, ...] = ("yes", "tight", "no")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run on a number of one card."""

    card: str
    devices: int
    """Over all nodes."""
    found: Found | None
    """None where it was refused."""
    refused: StokerError | None
    cost: Cost | None

    @property
    def fits(self) -> Fits:
        """Whether it runs there."""
        return self.found.fits if self.found else "no"

    @property
    def seconds(self) -> float:
        """Expected time; infinite if it does not fit."""
        return self.found.seconds[0] if self.found and self.fits != "no" else float("inf")

    @property
    def money(self) -> float:
        """Expected money in one currency, for sorting only."""
        return money.in_order(self.cost) if self.fits != "no" else float("inf")

    @property
    def stays(self) -> list[Stay]:
        """Platforms that offer it, with their session limits."""
        if self.found is None:
            return []
        nodes = self.found.inputs.machine.nodes
        return clocks.stays(self.card, self.devices, self.found.seconds, self.found.disk, nodes)


@dataclass(frozen=True)
class Change:
    """A change that makes it fit, and the row it leads to."""

    kind: Literal["method", "count", "card"]
    method: str
    row: Row


def compare(inputs: Inputs, cards: Iterable[Card], counts: Sequence[int] = COUNTS) -> list[Row]:
    """A row for every card and count, in the catalogue's order; a Mac has one GPU.

    An error on every card is raised, not listed.
    """
    rows = [on(inputs, card, count) for card in cards for count in counts if count == 1 or card.kind == "cuda"]
    if all(one.refused for one in rows) and rows[0].refused:
        raise rows[0].refused
    return rows


def on(inputs: Inputs, card: Card, count: int) -> Row:
    """The row of one card and count, on each of the run's nodes."""
    # `where.processes` is for CPUs; on GPUs there is one per card.
    where = inputs.run.where.model_copy(update={"gpus": count, "processes": "auto"})
    run = inputs.run.model_copy(update={"where": where})
    offer = money.offer(run, card.name, count)
    machine = Machine.of_card(card, count, nodes=choices.nodes(run))
    return here(dataclasses.replace(inputs, run=run, machine=machine, offer=offer), card.name, count)


def here(inputs: Inputs, name: str, count: int) -> Row:
    """The row of a given machine."""
    try:
        found = make.find(inputs)
    except StokerError as refused:
        return Row(card=name, devices=count, found=None, refused=refused, cost=None)
    cost = money.cost(found.seconds, found.constraints.devices, inputs.offer, inputs.machine.nodes)
    return Row(card=name, devices=found.constraints.devices, found=found, refused=None, cost=cost)


def ranked(rows: Iterable[Row], goal: Goal) -> list[Row]:
    """Rows by verdict, then the cheapest or the fastest first."""
    return sorted(rows, key=lambda row: (_VERDICTS.index(row.fits), *_aims(row, goal), _lacking(row)))


def frontier(rows: Iterable[Row]) -> list[Row]:
    """Rows that surely fit and that no other beats in both time and money, fastest first."""
    kept: list[Row] = []
    for row in sorted(
        (row for row in rows if row.fits == "yes" and row.cost), key=lambda row: (row.seconds, row.money)
    ):
        if not kept or row.money < kept[-1].money:
            kept.append(row)
    return kept


def shortlist(rows: list[Row], marked: list[Row], advised: list[Row], size: int) -> list[Row]:
    """The best of a ranked list: the advised rows, the frontier, evenly thinned, then each card's best, by rank.

    If nothing fits, the nearest misses.
    """
    room = max(1, size // 2)
    step = max(1, -(-len(marked) // room))
    chosen = marked[::step]
    for row in (*marked[-1:], *advised):
        if all(row is not one for one in chosen):
            chosen.append(row)
    seen = {row.card for row in chosen}
    for row in rows:
        if len(chosen) >= size:
            break
        if row.card not in seen and row.fits != "no":
            chosen.append(row)
            seen.add(row.card)
    taken = {id(row) for row in chosen or rows[: size // 3]}
    return [row for row in rows if id(row) in taken]


def recommend(rows: list[Row], run: Run) -> Row | None:
    """The first of a ranked list that fits and is within the run's budget."""
    return next((row for row in rows if row.fits != "no" and within(row, run)), None)


def faster(rows: list[Row], than: Row, run: Run, times: float = 2.0) -> Row | None:
    """The cheapest within the run's budget that is `times` as fast."""
    able = [row for row in rows if row.fits == "yes" and row.cost and within(row, run)]
    quick = [row for row in able if row.seconds * times <= than.seconds]
    return min(quick, key=lambda row: row.money, default=None)


def within(row: Row, run: Run) -> bool:
    """Whether expected time and money stay within the budget; another currency is compared by a rough rate.

    A card without a price is not known to.
    """
    if run.budget.time and row.seconds > values.duration_seconds(run.budget.time):
        return False
    if not run.budget.money:
        return True
    if row.cost is None:
        return False
    most, currency = values.money(run.budget.money)
    return row.cost.amount * prices.usd(row.cost.currency) <= most * prices.usd(currency)


def milder(inputs: Inputs, cards: Sequence[Card], counts: Sequence[int] = COUNTS) -> list[Change]:
    """For each method that needs less memory, the row with the least total memory that fits."""
    able = [(card, count) for card in cards for count in counts if _counts(card, count)]
    able.sort(key=lambda each: each[0].memory_bytes * each[1])
    runs = [dataclasses.replace(inputs, run=run) for run in _methods(inputs.run)]
    found = [_change("method", asked.run, (on(asked, *each) for each in able)) for asked in runs]
    return [change for change in found if change]


def ways_out(inputs: Inputs, cards: Sequence[Card], card: Card | None, count: int, goal: Goal) -> list[Change]:
    """What makes a run fit: a milder method, more of the card, or the card that the table of all would recommend.

    Args:
        inputs: What does not fit.
        cards: The catalogue.
        card: The card it does not fit on; None for a processor.
        count: How many of it on each node.
        goal: What the table is ranked by.
    """
    found: list[Change | None] = [*milder(inputs, [card] if card else cards, [count] if card else COUNTS)]
    if card:
        more = (on(inputs, card, each) for each in COUNTS if each > count and card.kind == "cuda")
        found.append(_change("count", inputs.run, more))
    able = [(one, each) for one in cards if one != card for each in COUNTS if _counts(one, each)]
    others = ranked((on(inputs, *each) for each in able), goal)
    found.append(_change("card", inputs.run, [recommend(others, inputs.run) or others[0]]))
    return [change for change in found if change]


def _aims(row: Row, goal: Goal) -> tuple[float, float]:
    return (row.money, row.seconds) if goal == "money" else (row.seconds, row.money)


def _lacking(row: Row) -> float:
    """Needed over available memory, to sort what does not fit."""
    if row.found is None:
        return float("inf")
    return row.found.way.memory.device / row.found.inputs.machine.memory_per_device


def _counts(card: Card, count: int) -> bool:
    return count == 1 or card.kind == "cuda"


def _methods(run: Run) -> Iterator[Run]:
    """The run with each method that needs less memory; a model from scratch has nothing to adapt."""
    if not isinstance(run.model, str) or run.tune.method == "qlora":
        return
    tunes: list[Tune] = []
    if run.tune.method == "full":
        tunes.append(Lora(method="lora"))
    kept = run.tune.model_dump(exclude={"method"}) if run.tune.method == "lora" else {}
    tunes.append(Qlora(method="qlora", **kept))
    for tune in tunes:
        yield run.model_copy(update={"tune": tune})


def _change(kind: Literal["method", "count", "card"], run: Run, rows: Iterable[Row]) -> Change | None:
    """The first row that surely fits, else the first that may."""
    tight: Row | None = None
    for row in rows:
        if row.fits == "yes":
            return Change(kind, run.tune.method, row)
        tight = tight or (row if row.fits == "tight" else None)
    return Change(kind, run.tune.method, tight) if tight else None
