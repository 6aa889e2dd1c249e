"""The plan of one machine, its arithmetic, and the table of every card, in a terminal."""

from rich.table import Column, Table
from rich.text import Text

from stoker import messages
from stoker.api import arithmetic, plan_page
from stoker.api.comparison import Comparison
from stoker.api.html_tables import Cell
from stoker.config.run import Run
from stoker.plan.make import Found
from stoker.plan.plan import Plan
from stoker.report import outlook
from stoker.rundir.layout import RunDir
from stoker.terminal import console

_RIGHT = {2, 4, 5, 6, 7}
_FOLDED = 8
"""Columns of the comparison: figures on the right; the reasons may take several lines."""


def show_outlook(run: Run, made: Plan, run_dir: RunDir, *, why: bool) -> None:
    """Print what is about to happen in three lines, and what is uncertain; with `why`, the plan with its reasons."""
    for line in outlook.lines(run, made, run_dir):
        console.sentence(line)
    if why:
        console.data("")
        show(made)
        return
    for line in outlook.uncertain(made):
        console.sentence(line)


def show(made: Plan) -> None:
    """Print a plan."""
    console.data(plan_page.title(made))
    table = Table.grid("", Column(overflow="fold"), padding=(0, 2))
    for label, value in plan_page.rows_of(made):
        table.add_row(label, value)
    console.table(table)
    console.data("")
    for line in plan_page.reasons(made):
        console.sentence(line, indent="  ")
    for line in plan_page.estimated_remark(made):
        console.data("")
        console.sentence(line)


def show_comparison(found: Comparison, *, everything: bool) -> None:
    """Print the ranked table with the sentences that belong to it."""
    shown = found.choices if everything else found.shortlist
    console.sentence(found.answer_sentence())
    console.data("")
    console.data(found.title)
    headings, rows = found.table(shown)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        if number == _FOLDED:
            table.add_column(heading, overflow="fold")
        else:
            table.add_column(heading, justify="right" if number in _RIGHT else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(_styled, row))
    console.table(table)
    more = found.sentences()
    if more:
        console.data("")
    for line in more:
        console.sentence(line)
    hidden = [row for row in found.choices if not any(row is one for one in shown)]
    if hidden:
        said = messages.text("compare.more", count=len(hidden), no=sum(row.fits == "no" for row in hidden))
        console.sentence(said, screen=console.stderr)
    console.sentence(messages.text("compare.legend"), screen=console.stderr)
    if found.resume:
        console.data("")
        console.sentence(found.resume_sentence())


def show_arithmetic(found: Found) -> None:
    """Print the arithmetic behind a plan, section by section."""
    name, card = found.inputs.run.name, found.inputs.machine.name
    console.data(messages.text("explain.title", name=name, card=card, count=found.constraints.devices))
    table = Table.grid("", Column(overflow="fold"), padding=(0, 2))
    for section, lines in arithmetic.sections(found).items():
        for number, line in enumerate(lines):
            table.add_row(messages.text(f"explain.section.{section}") if number == 0 else "", line)
    console.table(table)


def _styled(cell: Cell) -> str | Text:
    """A figure, and below it the interval that nine in ten measurements lie in."""
    return cell if isinstance(cell, str) else Text.assemble(cell[0], "\n", (cell[1], "dim"))
