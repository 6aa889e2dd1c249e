"""`stoker models`: what works with which family of models, each cell from a test of this version."""

from pathlib import Path
from typing import Any

from rich.table import Table

from stoker import messages
from stoker.errors import StokerError
from stoker.facts import families, machine, model_configs, proven, shapes
from stoker.facts.families import CELLS, FamilyCell, KnownFamily
from stoker.terminal import console

_HEADS = {
    "pretrain": "models.pretrain",
    "full": "models.full",
    "lora": "models.lora",
    "qlora": "models.qlora",
    "packing": "models.packing",
    "merge": "models.merge",
    "export": "models.export",
    "gguf": "models.gguf",
    "vllm": "models.vllm",
}


def models(name: str, *, as_json: bool) -> None:
    """List families.

    Args:
        name: A family, part of its name, or a model's; empty for all.
        as_json: Print all facts as JSON.
    """
    found = _asked(name)
    here = machine.installed(("transformers",)).get("transformers", "")
    if as_json:
        console.data_json([_facts(row, here) for row in found])
        return
    console.table(_table(found) if len(found) > 1 else _one(found[0]))
    cells = [cell for row in found for cell in row.cells.values()]
    dates = sorted(cell.date for cell in cells)
    versions = sorted({cell.transformers for cell in cells})
    console.talk("models.tested", dates=_between(dates[0], dates[-1]), transformers=versions)
    if any(families.other_transformers(cell, here) for cell in cells):
        console.talk("models.other_version", here=here)
    _say_proven()
    if len(found) > 1:
        console.talk("models.more")


def _say_proven() -> None:
    """On which cards Stoker has run at all: a cell is of a CPU."""
    seen = [row for row in proven.rows() if row.card != proven.CPU]
    if seen:
        cards = dict.fromkeys(messages.text("models.proven.card", **row.fields) for row in seen)
        console.talk("models.proven", cards=list(cards))
    else:
        console.talk("models.unproven")


def _asked(name: str) -> list[KnownFamily]:
    rows = families.tried()
    if exact := [row for row in rows if row.family == name]:
        return exact
    if found := [row for row in rows if name.lower() in row.family]:
        return found
    family = _family(name)
    row = families.named(family) if family else None
    if row is None:
        said = messages.text("models.of_family", family=family) if family else ""
        raise StokerError("STK236", name=name, family=said)
    return [row]


def _between(first: str, last: str) -> str:
    return first if first == last else messages.text("models.dates", first=first, last=last)


def _family(model: str) -> str | None:
    """The family of a model's name, as far as it is known without loading it."""
    if found := model_configs.here(model, Path()):
        return str(found.config["model_type"])
    shipped = {name.lower(): shape for name, shape in shapes.shipped().items()}
    if shape := shipped.get(model.lower()):
        row = families.of_shape(shape)
        return row.family if row else shape.family
    found = model_configs.hub(model)
    return str(found.config["model_type"]) if found else None


def _facts(row: KnownFamily, here: str) -> dict[str, Any]:
    cells = {
        name: {**cell.model_dump(), "reason": cell.reason, "other_version": families.other_transformers(cell, here)}
        for name, cell in row.cells.items()
    }
    return {**row.model_dump(exclude={"cells"}), "cells": cells}


def _table(found: list[KnownFamily]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(messages.text("models.family"), no_wrap=True)
    for cell in CELLS:
        table.add_column(messages.text(_HEADS[cell]), no_wrap=True)
    for row in found:
        table.add_row(row.family, *(_word(row.cells.get(name)) for name in CELLS))
    return table


def _one(row: KnownFamily) -> Table:
    """One family: a line for each cell, with the reason where there is one."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(row.family, no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column(row.model_class, overflow="fold")
    for name in CELLS:
        cell, same = row.cells.get(name), families.same_reason(row, name)
        reason = messages.text("models.as", other=messages.text(_HEADS[same])) if same else cell.said if cell else ""
        table.add_row(messages.text(_HEADS[name]), _word(cell), reason)
    return table


def _word(cell: FamilyCell | None) -> str:
    if cell is None:
        return "-"
    return messages.text(cell.word)
