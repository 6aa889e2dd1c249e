"""`stoker runs --store`: the runs that a store holds."""

from pathlib import Path
from typing import Any

from rich.table import Table

from stoker import messages
from stoker.errors import StokerError
from stoker.store import copies, opening
from stoker.store.shelf import Fault, Patience, Patient
from stoker.terminal import console
from stoker.terminal.figures import size

ALOUD = Patience(told=lambda fault: console.talk("store.again", reason=fault))
"""Somebody waits at a terminal, perhaps for minutes."""


def runs(address: str, *, as_json: bool) -> None:
    """List a store's runs by name."""
    try:
        store = opening.open_store(address, Path.cwd(), patience=ALOUD)
        names = store.names("")
        found = [_facts(store, name, names) for name in copies.run_names(names)]
    except Fault as fault:
        raise StokerError("STK652", store=address, reason=fault) from fault
    if as_json:
        console.data_json(found)
    elif found:
        console.table(_table(found))
    else:
        console.talk("runs.none_in_store", store=address)


def _facts(store: Patient, name: str, names: dict[str, int]) -> dict[str, Any]:
    own = {one: size for one, size in names.items() if one.startswith(f"{name}/")}
    there = copies.committed(store, name, own)
    return {
        "name": name,
        "steps": [copy.commit.step for copy in there],
        "newest": there[-1].commit.created if there else None,
        "final": f"{name}/artifacts/final/{copies.FILES_NAME}" in own,
        "size_bytes": sum(own.values()),
    }


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(messages.text("runs.name"), overflow="fold")
    table.add_column(messages.text("runs.copies"), justify="right")
    table.add_column(messages.text("runs.final"), no_wrap=True)
    table.add_column(messages.text("runs.size"), justify="right", no_wrap=True)
    for run in found:
        steps = ", ".join(str(step) for step in run["steps"]) or "-"
        table.add_row(run["name"], steps, "✓" if run["final"] else "-", size(run["size_bytes"]))
    return table
