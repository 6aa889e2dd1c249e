"""The same run on every card: which fit, ranked by money or time, and what would fit if none does. Pure.

Batch and length are the run's on every row. Time and money are those of the whole stay (`bill.py`). What is proposed
where nothing fits changes one thing: the method, the loss, the optimizer's states, the length, the card or the count.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from stoker.config import values
from stoker.config.run import Lora, Qlora, Run, Tune
from stoker.errors import StokerError
from stoker.facts import platforms, prices, setup_times
from stoker.facts.cards import Card
from stoker.facts.machine import Machine
from stoker.facts.prices import ANYWHERE, Market
from stoker.plan import choices, clocks, make, money
from stoker.plan.clocks import Stay
from stoker.plan.make import Found, Inputs
from stoker.plan.plan import Cost
from stoker.plan.search import Fits
from stoker.rent import bill as bills
from stoker.rent.bill import Bill

Goal = Literal["money", "speed"]

COUNTS = (1, 2, 4, 8)
_SMALL_STATES = "adamw_8bit"
_WHOLE_STATES = ("adamw", "adamw_torch", "adamw_torch_fused")
AS_FAST = 1.1
"""Within this much of the fastest, the cheaper one is the better answer."""
NOBODY_TAKES = 100.0
"""A row that takes so many times as long as the answer is no choice."""
WORTH_RENT = 4.0
"""A machine that is there is not worth the wait where one for rent takes so many times less, and no time was asked."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What an answer has to keep to."""

    goal: Goal = "money"
    budget: tuple[float, str] | None = None
    """Money, and its currency."""
    by_seconds: float | None = None
    """From switching the machine on to the finished model."""
    market: Market = ANYWHERE

    @classmethod
    def of(cls, run: Run, goal: Goal = "money") -> "Terms":
        """The run's own budget."""
        return cls(
            goal=goal,
            budget=values.money(run.budget.money) if run.budget.money else None,
            by_seconds=values.duration_seconds(run.budget.time) if run.budget.time else None,
        )

    def keep(self, bill: Bill | None, seconds: float) -> bool:
        """Whether a stay keeps to them; what has no price keeps to no budget."""
        if self.by_seconds is not None and seconds > self.by_seconds:
            return False
        if self.budget is None:
            return True
        if bill is None:
            return False
        most, currency = self.budget
        return money.in_order(bill.cost) <= most * prices.usd(currency)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run on a number of one card."""

    card: str
    devices: int
    """Over all nodes."""
    found: Found | None
    """None where it was refused."""
    refused: StokerError | None
    bill: Bill | None = None
    """The cheapest stay on demand; None if it has no price, or does not fit."""
    spot: Bill | None = None
    """The cheapest stay on machines that may be taken away."""
    free: tuple[Bill, ...] = ()
    """Platforms that lend it for nothing."""
    setup: dict[str, float] = dataclasses.field(default_factory=dict)
    """Seconds besides training, by part."""

    @property
    def cost(self) -> Cost | None:
        """Money of the whole stay."""
        return self.bill.cost if self.bill else None

    @property
    def fits(self) -> Fits:
        """Whether it runs there."""
        return self.found.fits if self.found else "no"

    @property
    def sure(self) -> bool:
        """Whether it surely runs there, as planned or in the safe way."""
        return self.found is not None and self.found.sure

    @property
    def rank(self) -> int:
        """What surely runs comes first, then what may, then what does not."""
        return 0 if self.sure else 1 if self.fits == "tight" else 2

    @property
    def seconds(self) -> float:
        """Expected time of the whole stay; infinite if it does not fit."""
        if self.found is None or self.fits == "no":
            return float("inf")
        return self.found.seconds[0] + math.fsum(self.setup.values())

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

    kind: Literal["method", "key", "count", "card"]
    method: str
    """The method, or for `key` the words of the run file that change."""
    row: Row


@dataclass(frozen=True)
class Advice:
    """The stay to take, or the one that is nearest to what was asked."""

    row: Row
    bill: Bill | None
    kept: bool
    """Whether it keeps to the terms."""


def compare(
    inputs: Inputs, cards: Iterable[Card], counts: Sequence[int] = COUNTS, market: Market = ANYWHERE
) -> list[Row]:
    """A row for every card and count, in the catalogue's order; a Mac has one GPU, and a provider what it offers.

    An error on every card is raised, not listed.
    """
    asked = [(card, count) for card in cards for count in counts if _counts(card, count)]
    rows = [on(inputs, card, count, market) for card, count in asked if offered(card, count, market)]
    if all(one.refused for one in rows) and rows[0].refused:
        raise rows[0].refused
    return rows


def offered(card: Card, count: int, market: Market) -> bool:
    """Whether so many of a card are for rent or lent in a market; a market of no provider has every card."""
    if market.provider is None or prices.maintained(card.name, market):
        return True
    lent = [one for platform in platforms.platforms() if platform.name == market.provider for one in platform.cards]
    return any(one.free and one.card == card.name and one.count >= count for one in lent)


def on(inputs: Inputs, card: Card, count: int, market: Market = ANYWHERE) -> Row:
    """The row of one card and count, on each of the run's nodes, at what a market asks for it.

    The run's own price is of its own machine, and of no card here.
    """
    # `where.processes` is for CPUs; on GPUs there is one per card.
    where = inputs.run.where.model_copy(update={"gpus": count, "processes": "auto"})
    run = inputs.run.model_copy(update={"where": where})
    machine = Machine.of_card(card, count, nodes=choices.nodes(run))
    row = _decided(dataclasses.replace(inputs, run=run, machine=machine, offer=None), card.name, count)
    if row.found is None or row.fits == "no":
        return row
    found = row.found
    offers = prices.maintained(card.name, market)
    demand = min((bills.on_demand(found, offer) for offer in offers), key=_price, default=None)
    spot = min((bills.on_spot(found, offer) for offer in offers if offer.spot_price_per_hour), key=_price, default=None)
    lent = bills.free_of_charge(found, card.name, market.currency or prices.CURRENCIES["global"])
    free = tuple(one for one in lent if market.provider in (None, one.provider) and market.region != "cn")
    setup = demand.setup if demand else bills.setup(found, "", market.region or "")
    return dataclasses.replace(row, bill=demand, spot=spot, free=free, setup=setup)


def here(inputs: Inputs, name: str, count: int) -> Row:
    """The row of a given machine, which is on; it costs what the run file says, if anything."""
    row = _decided(inputs, name, count)
    if row.found is None or row.fits == "no":
        return row
    own = bills.on_demand(row.found, inputs.offer) if inputs.offer and inputs.offer.cloud == money.OWN else None
    return dataclasses.replace(row, bill=own, setup=bills.setup(row.found, setup_times.LOCAL))


def _decided(inputs: Inputs, name: str, count: int) -> Row:
    """A row without money."""
    try:
        found = make.find(inputs)
    except StokerError as refused:
        return Row(card=name, devices=count, found=None, refused=refused)
    return Row(card=name, devices=found.constraints.devices, found=found, refused=None)


def _price(bill: Bill) -> tuple[float, float]:
    return money.in_order(bill.cost), bill.seconds[0]


def ranked(rows: Iterable[Row], goal: Goal) -> list[Row]:
    """What surely runs, then the cheapest or the fastest first; of what is as fast as the fastest, the cheapest."""
    rows = list(rows)
    best = {rank: min((row.seconds for row in rows if row.rank == rank), default=0.0) for rank in range(3)}

    def aims(row: Row) -> tuple[float, float]:
        if goal == "money":
            return row.money, row.seconds
        if row.seconds <= AS_FAST * best[row.rank]:
            return 0.0, row.money
        return row.seconds, row.money

    return sorted(rows, key=lambda row: (row.rank, *aims(row), _lacking(row)))


def frontier(rows: Iterable[Row]) -> list[Row]:
    """Rows that surely fit and that no other beats in both time and money, fastest first."""
    kept: list[Row] = []
    for row in sorted((row for row in rows if row.sure and row.cost), key=lambda row: (row.seconds, row.money)):
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


def answer(rows: list[Row], terms: Terms) -> Advice | None:
    """What to take of a ranked list: on demand, else free of charge, the fastest first, else spot, the cheapest first.

    Else what has no price; else what is nearest. None where nothing fits.
    """
    able = [row for row in rows if row.fits != "no"]
    if taken := recommend([row for row in able if row.bill], terms):
        return Advice(taken, taken.bill, kept=True)
    lent = [(row, bill) for row in able for bill in row.free]
    spots = [(row, row.spot) for row in able if row.spot]
    others = sorted(lent, key=lambda each: (each[0].rank, each[1].seconds[0]))
    others += sorted(spots, key=lambda each: (each[0].rank, _price(each[1])))
    for row, bill in others:
        if terms.keep(bill, bill.seconds[0]):
            return Advice(row, bill, kept=True)
    if taken := recommend(able, terms):
        return Advice(taken, None, kept=True)
    near = nearest(able, terms)
    return Advice(near, near.bill, kept=False) if near else None


def or_own(found: Advice | None, own: Row, terms: Terms) -> Advice:
    """The same answer, or this machine, which fits and costs nothing.

    Args:
        found: The answer of all that has a price.
        own: This machine.
        terms: What was asked; this machine keeps to any budget.
    """
    mine = Advice(own, None, kept=terms.by_seconds is None or own.seconds <= terms.by_seconds)
    if found is None or found.kept < mine.kept:
        return mine
    times = own.seconds / (found.bill.seconds[0] if found.bill else found.row.seconds)
    if terms.goal == "speed" or not mine.kept:
        better = times <= AS_FAST
    else:
        better = times <= WORTH_RENT or terms.by_seconds is not None
    return mine if better and own.rank <= found.row.rank and mine.kept == found.kept else found


def recommend(rows: list[Row], terms: Terms) -> Row | None:
    """The first of a ranked list that fits and keeps to the terms; one without a price only where none has one."""
    able = [row for row in rows if row.fits != "no" and terms.keep(row.bill, row.seconds)]
    return next((row for row in able if row.bill), able[0] if able else None)


def nearest(rows: list[Row], terms: Terms) -> Row | None:
    """The cheapest in time; if none is, the fastest."""
    able = [row for row in rows if row.fits != "no"]
    sure = [row for row in able if row.sure] or able
    priced = [row for row in sure if row.bill] or sure
    in_time = [row for row in priced if terms.by_seconds is None or row.seconds <= terms.by_seconds]
    if in_time:
        return min(in_time, key=lambda row: (row.money, row.seconds))
    return min(priced, key=lambda row: (row.seconds, row.money), default=None)


def faster(rows: list[Row], than: Row, terms: Terms, times: float = 2.0) -> Row | None:
    """The cheapest that keeps to the terms and is `times` as fast."""
    able = [row for row in rows if row.sure and row.bill and terms.keep(row.bill, row.seconds)]
    quick = [row for row in able if row.seconds * times <= than.seconds]
    return min(quick, key=lambda row: row.money, default=None)


def a_choice(row: Row, taken: Row | None) -> bool:
    """Whether anyone would take a row instead of the one that is advised; one that does not run says why."""
    return taken is None or row.fits == "no" or row.seconds <= NOBODY_TAKES * taken.seconds


def milder(
    inputs: Inputs, cards: Sequence[Card], counts: Sequence[int] = COUNTS, market: Market = ANYWHERE
) -> list[Change]:
    """For each method and each key that needs less memory, the row with the least total memory that fits."""
    able = [(card, count) for card in cards for count in counts if _counts(card, count)]
    able.sort(key=lambda each: each[0].memory_bytes * each[1])
    runs = [dataclasses.replace(inputs, run=run) for run in _methods(inputs.run)]
    found = [_change("method", asked.run.tune.method, (on(asked, *each, market) for each in able)) for asked in runs]
    found += [_change("key", words, (on(asked, *each, market) for each in able)) for words, asked in _keys(inputs)]
    return [change for change in found if change]


def ways_out(inputs: Inputs, cards: Sequence[Card], card: Card | None, count: int, terms: Terms) -> list[Change]:
    """What makes a run fit: a milder method, more of the card, or the card that the table of all would recommend.

    Args:
        inputs: What does not fit.
        cards: The catalogue.
        card: The card it does not fit on; None for a processor.
        count: How many of it on each node.
        terms: What the table's answer has to keep to.
    """
    found: list[Change | None] = [*milder(inputs, [card] if card else cards, [count] if card else COUNTS, terms.market)]
    if card:
        more = (on(inputs, card, each, terms.market) for each in COUNTS if each > count and card.kind == "cuda")
        found.append(_change("count", inputs.run.tune.method, more))
    able = [(one, each) for one in cards if one != card for each in COUNTS if _counts(one, each)]
    others = ranked((on(inputs, *each, terms.market) for each in able), terms.goal)
    best = recommend(others, terms) or others[0]
    found.append(_change("card", inputs.run.tune.method, [best]))
    return [change for change in found if change]


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
    train = run.train.model_copy(update={"precision": "fp32"})  # of all weights; an adapter is in fp32
    for tune in tunes:
        yield run.model_copy(update={"tune": tune, "train": train})


def _keys(inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    """The run with each key that needs less memory, and its words: loss, optimizer states, weights, length."""
    run = inputs.run

    def changed(section: Literal["where", "train"], key: str, value: str) -> tuple[str, Inputs]:
        part = getattr(run, section).model_copy(update={key: value})
        return f"{section}.{key}: {value}", dataclasses.replace(inputs, run=run.model_copy(update={section: part}))

    if run.where.loss == "plain":
        yield changed("where", "loss", "fused")
    if run.train.optimizer in _WHOLE_STATES:
        yield changed("train", "optimizer", _SMALL_STATES)
    if run.tune.method == "full" and run.train.optimizer == "adamw" and run.train.precision == "fp32":
        yield changed("train", "precision", "bf16")
    length = run.data.length // 2
    rows = inputs.data.sequences * (2 if run.data.pack else 1)
    data = run.data.model_copy(update={"length": length})
    facts = dataclasses.replace(
        inputs.data,
        longest=min(length, inputs.data.longest),
        longest_segment=min(length, inputs.data.longest_segment),
        sequences=rows,
        tokens=min(inputs.data.tokens, rows * length),  # rows that are not packed are cut
    )
    yield f"data.length: {length}", dataclasses.replace(inputs, run=run.model_copy(update={"data": data}), data=facts)


def _change(kind: Literal["method", "key", "count", "card"], words: str, rows: Iterable[Row]) -> Change | None:
    """The first row that surely fits, else the first that may."""
    tight: Row | None = None
    for row in rows:
        if row.sure:
            return Change(kind, words, row)
        tight = tight or (row if row.fits == "tight" else None)
    return Change(kind, words, tight) if tight else None
