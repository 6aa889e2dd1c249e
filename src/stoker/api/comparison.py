"""A run on every card in words: the cells of one ranked table, the recommendation, and what would make it fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rich.cells import cell_len, set_cell_size

from stoker import messages
from stoker.api import comparison_json, figures, html_tables, plan_page
from stoker.api.html_tables import Cell
from stoker.config.run import Run
from stoker.facts import prices, setup_times
from stoker.facts.prices import STALE_DAYS
from stoker.plan import clocks, remarks
from stoker.plan.make import Found
from stoker.plan.plan import Plan, Resume
from stoker.rent import compare
from stoker.rent.bill import Bill, in_safe_way
from stoker.rent.compare import Advice, Change, Goal, Row, Terms

_SHOWN = 12
_UNITS = {1: "compare.seconds", 60: "compare.minutes", 3600: "compare.hours"}
_LEAST_UNITS = 2
"""A table counts in the largest unit of which its first row takes at least so many."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """The same run on every card of the catalogue, ranked; a notebook shows it as a table."""

    run: Run
    terms: Terms
    """What an answer has to keep to."""
    here: Row
    """This machine."""
    rows: list[Row]
    """Every card and count, best first."""
    changes: list[Change]
    """What would make it fit, where it fits nowhere."""
    resume: Resume | None
    """How a run that was begun goes on on this machine."""

    @property
    def goal(self) -> Goal:
        """What comes first: `money` or `speed`."""
        return self.terms.goal

    @cached_property
    def answer(self) -> Advice | None:
        """What to take, or what is nearest to what was asked; None where nothing fits."""
        return compare.or_own(self._rented, self._unpriced, self.terms) if self._unpriced else self._rented

    @cached_property
    def _rented(self) -> Advice | None:
        """What to take of all that has a price; this machine, if the run file states one."""
        own = [self.here] if self._asks_here and self.here.bill and self.here.fits != "no" else []
        return compare.answer(compare.ranked([*own, *self.rows], self.goal), self.terms)

    @property
    def _unpriced(self) -> Row | None:
        """This machine, where it is asked about, the run fits it, and nothing is to be paid for it."""
        return self.here if self._asks_here and self.here.bill is None and self.here.fits != "no" else None

    @property
    def _asks_here(self) -> bool:
        """Whether this machine is one of those that are asked about: a provider's are not."""
        return self.terms.market.provider is None

    @property
    def recommended(self) -> Row | None:
        """The row of the answer, if it keeps to what was asked."""
        return self.answer.row if self.answer and self.answer.kept else None

    @cached_property
    def frontier(self) -> list[Row]:
        """Rows that no other beats in both time and money."""
        rented, own = compare.frontier(self.rows), self._unpriced
        if own is None or not own.sure:
            return rented
        return [*(row for row in rented if row.seconds < own.seconds), own]

    @cached_property
    def shortlist(self) -> list[Row]:
        """The rows worth showing."""
        marked = [row for row in self.frontier if row is not self.here]
        return compare.shortlist(self.choices, marked, self._advised, _SHOWN)

    @cached_property
    def choices(self) -> list[Row]:
        """The rows that somebody might take."""
        taken = self._rented.row if self._rented else None
        return [row for row in self.rows if compare.a_choice(row, taken)]

    @property
    def _advised(self) -> list[Row]:
        """The row of the answer and the best of all that has a price; where there is one, a much faster one."""
        found = [one.row for one in (self.answer, self._rented) if one]
        return [row for row in (*found, self._faster) if row and row is not self.here]

    @property
    def _faster(self) -> Row | None:
        taken = self.recommended
        return compare.faster(self.rows, taken, self.terms) if taken and taken.sure else None

    @property
    def title(self) -> str:
        """`{name}: every card, money first`."""
        return messages.text("compare.title", name=self.run.name, goal=messages.text(f"compare.goal.{self.goal}"))

    def table(self, rows: Sequence[Row]) -> tuple[list[str], list[list[Cell]]]:
        """Headings and cells of these rows, this machine first; where the run does not fit it, last."""
        first = rows[0].found.seconds[0] if rows and rows[0].found else 0.0
        unit = max((unit for unit in _UNITS if first >= _LEAST_UNITS * unit), default=1)
        keys = ("compare.card", "compare.count", "compare.fits", "compare.memory", "compare.speed", _UNITS[unit])
        headings = ["", *(messages.text(key) for key in keys)]
        currency = self.terms.market.currency
        headings += [currency or messages.text("compare.money"), messages.text("compare.why")]
        cells: list[list[Cell]] = []
        taken = self.answer.row if self.answer else None
        own = self._asks_here and (taken is self.here or compare.a_choice(self.here, taken))
        listed = [*rows, self.here] if self.here.fits == "no" else [self.here, *rows]
        for row in listed if own else rows:
            name = messages.text("compare.here") if row is self.here else row.card
            mark = "*" if any(row is one for one in self.frontier) else ""
            cells.append([mark, name, str(row.devices), *_cells(row, unit, currency), _why(row)])
        return headings, cells

    def answer_sentence(self) -> str:
        """What to take, in one line."""
        said = self._advice_sentence()
        if self.answer is None or not self.answer.kept:
            return said
        said = _likely(said, self.answer)
        if self.answer.bill is None:
            return said
        reach = _beyond(self.terms, self.answer.bill)
        return messages.text("compare.may_reach", said=said, most=reach) if reach else said

    def _advice_sentence(self) -> str:
        found = self.answer
        if found is None:
            return messages.text("compare.none")
        offered = _offered(found.row, found.bill, own=found.row is self.here)
        if not found.kept:
            asked = _asked(self.terms)
            if len(asked) == 2:
                return messages.text("compare.over.both", money=asked[0], time=asked[1], offer=offered)
            return messages.text("compare.over", asked=asked, offer=offered)
        if found.bill and found.bill.kind == "free":
            said = _free_of_charge(found.row, found.bill)
            asked = _asked(self.terms) if any(row.bill for row in self.rows) else []
            return messages.text("compare.only_free", asked=asked, said=said) if asked else said
        if found.bill and found.bill.kind == "spot":
            return _spot(found.bill, offered)
        rented = found.bill is not None and found.bill.provider != setup_times.LOCAL
        sure = "compare.take" if rented else "compare.take.own"
        return messages.text(sure if found.row.sure else "compare.tight_only", offer=offered)

    def sentences(self) -> list[str]:
        """What else there is: faster, taken away, free of charge, what would fit."""
        if self.answer is None:
            return change_lines(self.changes)
        said = []
        if quick := self._faster:
            said.append(messages.text("compare.faster", offer=_offered(quick, quick.bill)))
        taken = self.answer.bill
        able = [row for row in self.rows if row.sure and row.spot and self._keeps(row.spot)]
        spot = min(able, key=_spot_money, default=None)
        if spot and spot.spot and (taken is None or taken.kind != "spot"):
            said.append(_spot(spot.spot, _offered(spot, spot.spot)))
        said += [_free_of_charge(row, bill) for row, bill in self._free() if bill is not taken]
        if self.run.where.price:
            said.append(messages.text("compare.one_price", price=self.run.where.price))
        return [
            *said,
            *self._generating(),
            *self._not_planned(),
            *self._data_remark(),
            *self._length_remarks(),
            *self._refusal(),
        ]

    def _generating(self) -> list[str]:
        """What part of the answer's time is generating, and what 1,000 prompts cost."""
        row = self.answer.row if self.answer else None
        found = comparison_json.generating(row) if row else None
        if row is None or row.found is None or found is None:
            return []
        fields = plan_page.generating_fields(found, row.found.way.pace.step_seconds)
        if row.cost is None:
            return [messages.text("compare.generating", **fields)]
        cost = plan_page.prompts_cost(found, row.cost.currency)
        return [messages.text("compare.generating_paid", cost=cost, **fields)]

    def _keeps(self, bill: Bill) -> bool:
        return self.terms.keep(bill, bill.seconds[0])

    def _free(self) -> list[tuple[Row, Bill]]:
        """Where it runs for nothing and in time; of each platform the fastest."""
        best: dict[str, tuple[Row, Bill]] = {}
        for row in sorted((row for row in self.rows if row.fits != "no"), key=lambda row: row.seconds):
            for bill in row.free:
                if self._keeps(bill):
                    best.setdefault(bill.provider, (row, bill))
        return list(best.values())

    def _not_planned(self) -> list[str]:
        """Options that no figure of the answer's row knows."""
        found = self.answer.row.found if self.answer else None
        if found is None:
            return []
        return [one.text for one in remarks.not_planned(self.run, found.way, found.constraints.precision)]

    def _data_remark(self) -> list[str]:
        """That tokens are declared, or estimated from files that are not prepared; bad rows, and rows not used."""
        data = next((row.found.inputs.data for row in (self.here, *self.rows) if row.found), None)
        if data is None or not data.estimated:
            return []
        found = [one.text for one in data.reasons if one.key.startswith(("why.data.bad", "why.data.stated"))]
        return [*plan_page.data_remark(data.reasons), *found]

    def _length_remarks(self) -> list[str]:
        """Too few steps, too many passes, or rows longer than the model was made for, on whatever card."""
        found = next((row.found for row in (self.here, *self.rows) if row.found), None)
        if found is None:
            return []
        said = remarks.of_steps(self.run, found.steps, found.inputs.data.sequences)
        said += remarks.of_model(self.run, found.inputs.shape)
        return plan_page.length_remarks(said)

    def _refusal(self) -> list[str]:
        """That `stoker train` will refuse, where another training has the name."""
        inputs = next((row.found.inputs for row in (self.here, *self.rows) if row.found), None)
        return [one.text for one in inputs.setup if one.key == "why.other_run"] if inputs else []

    def resume_sentence(self) -> str:
        """How it goes on here; empty for a run that was not begun."""
        return messages.text("compare.resume", said=plan_page.resume_text(self.resume)) if self.resume else ""

    def to_json(self) -> dict[str, Any]:
        """Everything the table is made of."""
        advised = self.recommended
        budget = self.terms.budget
        return {
            "name": self.run.name,
            "for": self.goal,
            "terms": {
                "budget": {"amount": budget[0], "currency": budget[1]} if budget else None,
                "by_seconds": self.terms.by_seconds,
                **vars(self.terms.market),
            },
            "answer": comparison_json.of_answer(self.answer, self.answer_sentence()),
            "recommended": _row_json(advised, self.frontier) if advised else None,
            "here": _row_json(self.here, self.frontier),
            "rows": [_row_json(row, self.frontier) for row in self.rows],
            "changes": changes_json(self.changes),
            "resume": self.resume.model_dump() if self.resume else None,
        }

    def __repr__(self) -> str:
        headings, cells = self.table(self.shortlist)
        table = _aligned([headings, *map(_one_line, cells)])
        lines = [self.answer_sentence(), "", self.title, *table, "", *self.sentences()]
        return "\n".join([*lines, self.resume_sentence()]).rstrip()

    def _repr_html_(self) -> str:
        headings, cells = self.table(self.shortlist)
        said = [*self.sentences(), self.resume_sentence(), messages.text("compare.legend")]
        paragraphs = "".join(html_tables.paragraph(line) for line in said if line)
        head = html_tables.paragraph(self.answer_sentence()) + html_tables.paragraph(self.title)
        return head + html_tables.table(cells, headings) + paragraphs


def plan_json(made: Plan, changes: Sequence[Change]) -> dict[str, Any]:
    """A plan, and what would make it fit: what `--json` prints of one card."""
    return {**plan_page.to_json(made), "changes": changes_json(changes)}


def changes_json(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """What would fit."""
    return [{"kind": change.kind, "method": change.method, "row": _row_json(change.row, [])} for change in changes]


def _row_json(row: Row, marked: list[Row]) -> dict[str, Any]:
    return comparison_json.of_row(row, _why(row), marked)


def change_lines(changes: Sequence[Change]) -> list[str]:
    """What would fit, a line each."""
    if not changes:
        return [messages.text("change.none")]
    return [messages.text("plan.way_out"), *(f"  {_change(change)}" for change in changes)]


def _price_source(row: Row) -> str:
    """Whose price it is, and how long the machine takes besides training."""
    if row.bill is None:
        lent = [one.provider for one in row.free]
        return messages.text("compare.lent", providers=lent) if lent else messages.text("compare.no_price")
    own = row.bill.provider == setup_times.LOCAL
    said = messages.text("plan.price_own") if own else _whose(row.bill)
    if row.bill.cost.billed_devices > row.devices:
        said += "; " + messages.text("compare.whole_machines", count=row.bill.cost.billed_devices)
    return said + " " + messages.text("compare.setup", minutes=round(row.bill.setup_seconds / 60))


# ---- the table


def _one_line(cells: list[Cell]) -> list[str]:
    """Cells without their intervals and further lines."""
    return [(cell if isinstance(cell, str) else cell[0]).partition("\n")[0] for cell in cells]


def _aligned(rows: list[list[str]]) -> list[str]:
    """Rows as lines, each column as wide as its widest cell."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(set_cell_size, row, widths)).rstrip() for row in rows]


def _cells(row: Row, unit_seconds: int, currency: str | None) -> list[Cell]:
    runs = row.found is not None and row.found.supported
    verdict = "likely" if row.sure and row.fits == "tight" else row.fits
    fits = messages.text(f"compare.fits.{verdict}" if runs else "compare.fits.cannot")
    if row.found is None:
        return [fits, "", "", "", ""]
    memory = _memory(row.found)
    if row.fits == "no":
        return [fits, memory, "", "", ""]
    pace, slowest, fastest = row.found.tokens_per_second
    time, least, most = (figures.short(each / unit_seconds) for each in row.found.seconds)
    return [
        fits,
        memory,
        (f"{pace:,.0f}", f"{figures.thousands(slowest)}-{figures.thousands(fastest)}"),
        (time, f"{least}-{most}"),
        _money(row, currency),
    ]


def _memory(found: Found) -> Cell:
    used, there = found.way.memory.device / 2**30, found.inputs.machine.memory_per_device / 2**30
    low, high = (figures.short(each / 2**30) for each in found.way.memory_range)
    return f"{figures.short(used)}/{there:.0f}", f"{low}-{high}"


def _money(row: Row, currency: str | None) -> Cell:
    if row.cost is None:
        return "-"
    amount, least, most = map(figures.money, (row.cost.amount, *row.cost.amount_range))
    return amount if currency == row.cost.currency else f"{amount} {row.cost.currency}", f"{least}-{most}"


def _why(row: Row) -> str:
    found = row.found
    if row.refused:
        return messages.text("compare.cannot", why=row.refused.what)
    assert found is not None
    if not found.supported:
        old = messages.text("compare.old", capability=found.inputs.machine.compute_capability)
        return messages.text("compare.cannot", why=old)
    if row.fits == "no":
        short = (found.way.memory.device - found.inputs.machine.memory_per_device) / 2**30
        return messages.text("compare.lacks", gib=figures.short(max(short, 0.1)))
    return f"{_way(found)}\n{_price_source(row)}" if row.cost or found.inputs.machine.devices else _way(found)


def _way(found: Found) -> str:
    """`ddp 2x8x4 recompute`."""
    step = found.way
    split = f"{step.micro}x{step.step.accumulation}x{found.constraints.devices}"
    words = [] if step.strategy == "single" else [step.strategy]
    words.append(split)
    if step.checkpointing:
        words.append(messages.text("compare.offload" if step.step.kept_away else "compare.recompute"))
    return " ".join(words)


# ---- sentences


def _offered(row: Row, bill: Bill | None, *, own: bool = False) -> str:
    """A stay in words: from whom, for how much, training and setup apart, what is billed."""
    assert row.found is not None
    is_cuda = row.found.inputs.machine.kind == "cuda"
    fields = {
        "devices": messages.text("compare.cards", count=row.devices, card=row.card) if is_cuda else row.card,
        "training": figures.time_range(row.found.seconds),
        "setup": figures.duration(sum((bill.setup if bill else row.setup).values())),
    }
    if bill is None:
        return messages.text("compare.offer.here" if own else "compare.offer.unpriced", **fields)
    fields |= {"billed": figures.duration(bill.billed_seconds), "amount": figures.paid(bill.cost)}
    if bill.provider == setup_times.LOCAL:
        return messages.text("compare.offer.own", **fields)
    stale = bill.cost.age_days > STALE_DAYS
    key = "compare.offer.stale" if stale else "compare.offer"
    return messages.text(key, provider=_whose(bill), days=bill.cost.age_days, **fields)


def _likely(said: str, found: Advice) -> str:
    """An answer with what happens if it does not fit as planned, where that may be."""
    decided = found.row.found
    if decided is None or decided.way.safe is None:
        return said
    seconds, amount = in_safe_way(decided, decided.way.safe, found.bill)
    time = figures.duration(seconds)
    if amount is None or found.bill is None:
        return messages.text("compare.likely", said=said, time=time)
    paid = f"{amount:,.2f} {found.bill.cost.currency}"
    return messages.text("compare.likely.paid", said=said, time=time, amount=paid)


def _whose(bill: Bill) -> str:
    """The provider; a price that the user stated is marked."""
    return figures.own_price(bill.provider) if bill.own_price else bill.provider


def _asked(terms: Terms) -> list[str]:
    """The terms in words."""
    budget = [f"{terms.budget[0]:g} {terms.budget[1]}"] if terms.budget else []
    return budget + ([figures.limit(terms.by_seconds)] if terms.by_seconds is not None else [])


def _beyond(terms: Terms, bill: Bill) -> list[str]:
    """The ends of a stay's intervals that lie beyond the terms."""
    cost, found = bill.cost, []
    if terms.budget and cost.amount_range[1] * prices.usd(cost.currency) > terms.budget[0] * prices.usd(
        terms.budget[1]
    ):
        found.append(f"{cost.amount_range[1]:,.2f} {cost.currency}")
    if terms.by_seconds is not None and bill.seconds[2] > terms.by_seconds:
        found.append(figures.duration(bill.seconds[2]))
    return found


def _spot(bill: Bill, offered: str) -> str:
    restarts = f"{bill.restarts:.1f}"
    if not float(restarts):
        return messages.text("compare.spot.seldom", offer=offered)
    return messages.text("compare.spot", offer=offered, restarts=restarts)


def _spot_money(row: Row) -> float:
    assert row.spot is not None
    return row.spot.cost.amount


def _free_of_charge(row: Row, bill: Bill) -> str:
    assert row.found is not None
    assert bill.stay is not None
    sessions = clocks.sessions_reason(bill.stay).text
    fields = {"count": row.devices, "card": row.card, "sessions": sessions}
    fields["time"] = figures.duration(bill.seconds[0])
    high, there = row.found.way.memory_range[1], row.found.inputs.machine.memory_per_device
    perhaps = {} if row.sure else {"high": f"{high / 2**30:.1f}", "there": f"{there / 2**30:.1f}"}
    said = messages.text("compare.free_perhaps" if perhaps else "compare.free", **fields, **perhaps)
    disk = clocks.disk_reasons(bill.stay, clocks.kept_bytes(row.found.disk))
    return messages.text("compare.free_disk", said=said, disk=disk[0].text) if disk else said


def _change(change: Change) -> str:
    row = change.row
    assert row.found is not None
    used, there = row.found.way.memory.device / 2**30, row.found.inputs.machine.memory_per_device / 2**30
    paid = messages.text("compare.no_price")
    if row.bill:
        paid = messages.text("compare.paid", amount=figures.paid(row.bill.cost), source=row.bill.provider)
    time = figures.time_range(row.found.seconds)
    said = messages.text("change.figures", used=f"{used:.1f}", there=f"{there:.0f}", time=time, money=paid)
    return messages.text(f"change.{change.kind}", method=change.method, count=row.devices, card=row.card, figures=said)
