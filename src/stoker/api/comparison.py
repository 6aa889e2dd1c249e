"""A run on every card in words: the cells of one ranked table, the recommendation, and what would make it fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rich.cells import cell_len, set_cell_size

from stoker import messages
from stoker.api import figures, html_tables, plan_page
from stoker.api.html_tables import Cell
from stoker.config.run import Run
from stoker.facts.prices import STALE_DAYS
from stoker.plan import clocks, money
from stoker.plan.clocks import Stay
from stoker.plan.make import Found
from stoker.plan.plan import Plan, Resume
from stoker.rent import compare
from stoker.rent.compare import Change, Goal, Row

_SHOWN = 12
_UNITS = {1: "compare.seconds", 60: "compare.minutes", 3600: "compare.hours"}
_LEAST_UNITS = 2
"""A table counts in the largest unit of which its first row takes at least so many."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """The same run on every card of the catalogue, ranked; a notebook shows it as a table."""

    run: Run
    goal: Goal
    """What comes first: `money` or `speed`."""
    here: Row
    """This machine."""
    rows: list[Row]
    """Every card and count, best first."""
    changes: list[Change]
    """What would make it fit, where it fits nowhere."""
    resume: Resume | None
    """How a run that was begun goes on on this machine."""

    @property
    def recommended(self) -> Row | None:
        """The first row that fits and stays within the run's budget."""
        return compare.recommend(self.rows, self.run)

    @cached_property
    def frontier(self) -> list[Row]:
        """Rows that no other beats in both time and money."""
        return compare.frontier(self.rows)

    @cached_property
    def shortlist(self) -> list[Row]:
        """The rows worth showing."""
        return compare.shortlist(self.rows, self.frontier, _advised(self.run, self.rows), _SHOWN)

    @property
    def title(self) -> str:
        """`{name}: every card, money first`."""
        return messages.text("compare.title", name=self.run.name, goal=messages.text(f"compare.goal.{self.goal}"))

    def table(self, rows: Sequence[Row]) -> tuple[list[str], list[list[Cell]]]:
        """Headings and cells of these rows, this machine first."""
        first = rows[0].seconds if rows else 0.0
        unit = max((unit for unit in _UNITS if first >= _LEAST_UNITS * unit), default=1)
        keys = ("compare.card", "compare.count", "compare.fits", "compare.memory", "compare.speed", _UNITS[unit])
        headings = ["", *(messages.text(key) for key in (*keys, "compare.money", "compare.why"))]
        cells: list[list[Cell]] = []
        for row in (self.here, *rows):
            name = messages.text("compare.here") if row is self.here else row.card
            mark = "*" if any(row is one for one in self.frontier) else ""
            cells.append([mark, name, str(row.devices), *_cells(row, unit), _why(row)])
        return headings, cells

    def sentences(self) -> list[str]:
        """What to take, what is free of charge, what would fit."""
        if all(row.fits == "no" for row in self.rows):
            return [messages.text("compare.none"), *change_lines(self.changes)]
        found = [_advice(self.run, self.rows), *_free(self.rows)]
        if self.run.where.price:
            found.append(messages.text("compare.one_price", price=self.run.where.price))
        return found

    def resume_sentence(self) -> str:
        """How it goes on here; empty for a run that was not begun."""
        return messages.text("compare.resume", said=plan_page.resume_text(self.resume)) if self.resume else ""

    def to_json(self) -> dict[str, Any]:
        """Everything the table is made of."""
        advised = self.recommended
        return {
            "name": self.run.name,
            "for": self.goal,
            "recommended": _row_json(advised, self.frontier) if advised else None,
            "here": _row_json(self.here, []),
            "rows": [_row_json(row, self.frontier) for row in self.rows],
            "changes": changes_json(self.changes),
            "resume": self.resume.model_dump() if self.resume else None,
        }

    def __repr__(self) -> str:
        headings, cells = self.table(self.shortlist)
        lines = [self.title, *_aligned([headings, *map(_one_line, cells)]), "", *self.sentences()]
        return "\n".join([*lines, self.resume_sentence()]).rstrip()

    def _repr_html_(self) -> str:
        headings, cells = self.table(self.shortlist)
        said = [*self.sentences(), self.resume_sentence(), messages.text("compare.legend")]
        paragraphs = "".join(html_tables.paragraph(line) for line in said if line)
        return html_tables.paragraph(self.title) + html_tables.table(cells, headings) + paragraphs


def plan_json(made: Plan, changes: Sequence[Change]) -> dict[str, Any]:
    """A plan, and what would make it fit: what `--json` prints of one card."""
    return {**plan_page.to_json(made), "changes": changes_json(changes)}


def changes_json(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """What would fit."""
    return [{"kind": change.kind, "method": change.method, "row": _row_json(change.row, [])} for change in changes]


def change_lines(changes: Sequence[Change]) -> list[str]:
    """What would fit, a line each."""
    if not changes:
        return [messages.text("change.none")]
    return [messages.text("plan.way_out"), *(f"  {_change(change)}" for change in changes)]


def _price_source(row: Row) -> str:
    """The price's source, and its age if it is old."""
    cost = row.cost
    if cost is None:
        return messages.text("compare.no_price")
    if cost.source == money.OWN:
        return messages.text("compare.own_price")
    cloud = cost.source.partition(",")[0]
    said = messages.text("compare.age", source=cloud, days=cost.age_days) if cost.age_days > STALE_DAYS else cloud
    if cost.billed_devices > row.devices:
        said += "; " + messages.text("compare.whole_machines", count=cost.billed_devices)
    return said


# ---- the table


def _one_line(cells: list[Cell]) -> list[str]:
    """Cells without their intervals and further lines."""
    return [(cell if isinstance(cell, str) else cell[0]).partition("\n")[0] for cell in cells]


def _aligned(rows: list[list[str]]) -> list[str]:
    """Rows as lines, each column as wide as its widest cell."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(set_cell_size, row, widths)).rstrip() for row in rows]


def _cells(row: Row, unit_seconds: int) -> list[Cell]:
    fits = messages.text(f"compare.fits.{row.fits}")
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
        _money(row),
    ]


def _memory(found: Found) -> Cell:
    used, there = found.way.memory.device / 2**30, found.inputs.machine.memory_per_device / 2**30
    low, high = (figures.short(each / 2**30) for each in found.way.memory_range)
    return f"{figures.short(used)}/{there:.0f}", f"{low}-{high}"


def _money(row: Row) -> Cell:
    if row.cost is None:
        return "-"
    amount, least, most = map(figures.money, (row.cost.amount, *row.cost.amount_range))
    return f"{amount} {row.cost.currency}", f"{least}-{most}"


def _why(row: Row) -> str:
    found = row.found
    if row.refused:
        return row.refused.what
    assert found is not None
    if not found.supported:
        return messages.text("compare.old", capability=found.inputs.machine.compute_capability)
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
        words.append(messages.text("compare.recompute"))
    return " ".join(words)


# ---- sentences


def _advised(run: Run, rows: list[Row]) -> list[Row]:
    """The row to take and, where there is one, a much faster one."""
    first = compare.recommend(rows, run)
    if first is None:
        return []
    quick = compare.faster(rows, first, run) if first.fits == "yes" else None
    return [first, quick] if quick else [first]


def _advice(run: Run, rows: list[Row]) -> str:
    advised = _advised(run, rows)
    if not advised:
        budget = [limit for limit in (run.budget.time, run.budget.money) if limit]
        return messages.text("compare.over_budget", budget=budget)
    fields = _taken(advised[0])
    if advised[0].fits == "tight":
        return messages.text("compare.tight_only", **fields)
    if len(advised) > 1:
        faster = {f"faster_{key}": value for key, value in _taken(advised[1]).items()}
        return messages.text("compare.take_faster", **fields, **faster)
    return messages.text("compare.take", **fields)


def _taken(row: Row) -> dict[str, Any]:
    assert row.found is not None
    return {"count": row.devices, "card": row.card, "time": figures.time_range(row.found.seconds), "money": _paid(row)}


def _paid(row: Row) -> str:
    if row.cost is None:
        return messages.text("compare.no_price")
    return messages.text("compare.paid", amount=figures.paid(row.cost), source=_price_source(row))


def _free(rows: list[Row]) -> list[str]:
    """Where it runs for nothing, and in how many sessions; of each platform the fastest."""
    best: dict[str, tuple[Row, Stay]] = {}
    for row in sorted((row for row in rows if row.fits != "no"), key=lambda row: row.seconds):
        for stay in row.stays:
            if stay.free and stay.session_hours:
                best.setdefault(stay.platform, (row, stay))
    return [_free_of_charge(row, clocks.sessions_reason(stay).text) for row, stay in best.values()]


def _free_of_charge(row: Row, sessions: str) -> str:
    assert row.found is not None
    fields = {"count": row.devices, "card": row.card, "sessions": sessions}
    if row.fits == "yes":
        return messages.text("compare.free", **fields)
    high, there = row.found.way.memory_range[1], row.found.inputs.machine.memory_per_device
    return messages.text("compare.free_perhaps", high=f"{high / 2**30:.1f}", there=f"{there / 2**30:.1f}", **fields)


def _change(change: Change) -> str:
    row = change.row
    assert row.found is not None
    used, there = row.found.way.memory.device / 2**30, row.found.inputs.machine.memory_per_device / 2**30
    taken = _taken(row)
    said = messages.text(
        "change.figures", used=f"{used:.1f}", there=f"{there:.0f}", time=taken["time"], money=taken["money"]
    )
    return messages.text(f"change.{change.kind}", method=change.method, count=row.devices, card=row.card, figures=said)


# ---- JSON


def _row_json(row: Row, marked: list[Row]) -> dict[str, Any]:
    out: dict[str, Any] = {"card": row.card, "devices": row.devices, "fits": row.fits, "why": _why(row)}
    out["frontier"] = any(row is one for one in marked)
    out["refused"] = row.refused.to_json() if row.refused else None
    found = row.found
    if found is None:
        return out
    pace, slowest, fastest = found.tokens_per_second
    seconds, least, most = found.seconds
    return out | {
        "memory_bytes": found.way.memory.device,
        "memory_bytes_range": found.way.memory_range,
        "available_bytes": found.inputs.machine.memory_per_device,
        "moment": found.way.memory.moment,
        "tokens_per_second": pace,
        "tokens_per_second_range": (slowest, fastest),
        "time_seconds": seconds,
        "time_seconds_range": (least, most),
        "cost": row.cost.model_dump() if row.cost else None,
        "strategy": found.way.strategy,
        "micro": found.way.micro,
        "accumulation": found.way.step.accumulation,
        "gradient_checkpointing": found.way.checkpointing,
        "precision": found.constraints.precision,
        "disk_bytes": sum(found.disk.values()),
        "platforms": [_stay_json(stay) for stay in row.stays],
    }


def _stay_json(stay: Stay) -> dict[str, Any]:
    return {
        "platform": stay.platform,
        "free": stay.free,
        "session_hours": stay.session_hours,
        "sessions": stay.sessions,
        "weekly_hours": stay.weekly_hours,
        "weeks": stay.weeks,
        "disk_too_small": stay.disk.path if stay.disk else None,
    }
