"""What works of a family of models (`data/families.json`): each cell seen on its tiny model, with versions and date.

Written by `benchmarks/families.py` from its evidence. A family that is not in it was not tested: nothing is said of it.
"""

import functools
import json
import re
from importlib import resources
from typing import Literal

from pydantic import Field

from stoker.errors import StokerError
from stoker.facts.fact import Fact
from stoker.facts.shapes import ModelShape
from stoker.facts.tested import version_key

CELLS = ("pretrain", "full", "lora", "qlora", "packing", "merge", "export", "gguf", "vllm")
"""What is done with a family, in the order of a run."""
GROUPED = "grouped"
MERGED = "merged"
_WORDS = {
    "works": "models.works",
    "refused": "models.refused",
    "fails": "models.fails",
    GROUPED: "models.grouped",
    MERGED: "models.merged",
}


class FamilyCell(Fact):
    """One thing done with one family."""

    outcome: Literal["works", "refused", "fails"]
    code: str = ""
    """Of the error that refuses it."""
    fields: dict[str, str | int | float | list[str]] = Field(default_factory=dict)
    """Of that error's sentence."""
    how: str = ""
    """Of `packing`: `rows` where documents of one row do not see each other, `grouped` where each has its own.
    Of `vllm`: `merged` where the adapter cannot be served beside its base."""
    date: str
    transformers: str

    @property
    def word(self) -> str:
        """The message that names the outcome."""
        return _WORDS[self.how if self.how in _WORDS else self.outcome]

    @property
    def reason(self) -> str:
        """Why it is refused, in the user's language; empty where it is not."""
        return StokerError(self.code, "", **self.fields).what if self.code else ""

    @property
    def said(self) -> str:
        """The error's code and the reason."""
        return f"{self.code} {self.reason}".strip()


class KnownFamily(Fact):
    """A family, by its `model_type` in transformers."""

    family: str
    model_class: str
    """The class that training loads."""
    text: str
    """`model_type` of its language model."""
    straight: bool = False
    """Whether the class hands the output layer's logits to the loss as they are, so that the two can be fused."""
    cells: dict[str, FamilyCell]


def same_reason(row: KnownFamily, name: str) -> str:
    """The first cell of a family that is refused in the same words, in any order: sets are printed in none."""

    def words(cell: FamilyCell) -> list[str]:
        return sorted(re.findall(r"\w+", cell.said))

    cell = row.cells.get(name)
    first = next((one for one, other in row.cells.items() if cell and cell.code and words(other) == words(cell)), name)
    return first if first != name else ""


class FamilyTable(Fact):
    """The whole table."""

    about: str
    families: tuple[KnownFamily, ...]


@functools.cache
def table() -> FamilyTable:
    """The table."""
    text = resources.files("stoker.facts").joinpath("data/families.json").read_text(encoding="utf-8")
    return FamilyTable.model_validate(json.loads(text))


def tried() -> list[KnownFamily]:
    """Families of which any cell was run."""
    return [row for row in table().families if row.cells]


def named(model_type: str) -> KnownFamily | None:
    """A family by its name in transformers; one's language model alone counts as the whole only if it has no row."""
    rows = table().families
    return next((row for row in rows if row.family == model_type), None) or next(
        (row for row in rows if row.text == model_type), None
    )


def of_shape(shape: ModelShape) -> KnownFamily | None:
    """The row of the class that training loads."""
    if shape.parts is None:
        return named(shape.family)
    return next((row for row in table().families if row.model_class == shape.parts.model_class), None)


def leaks(shape: ModelShape) -> FamilyCell | None:
    """The cell that saw documents of one row see each other."""
    row = of_shape(shape)
    cell = row.cells.get("packing") if row else None
    return cell if cell and cell.how == GROUPED else None


def other_transformers(cell: FamilyCell, installed: str) -> bool:
    """Whether a cell was seen with another minor version than is installed."""
    return bool(installed) and version_key(cell.transformers)[:2] != version_key(installed)[:2]
