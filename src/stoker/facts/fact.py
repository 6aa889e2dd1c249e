"""What tables of facts are made of: `Fact`, an entry, frozen and without unknown fields, and the rows of a CSV file."""

import csv
from collections.abc import Iterator
from importlib import resources

from pydantic import BaseModel, ConfigDict


class Fact(BaseModel):
    """One entry."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def rows(file: str) -> Iterator[dict[str, str]]:
    """The rows of a CSV file in `data/`, by column name; lines that start with `#` say where the figures are from."""
    text = resources.files("stoker.facts").joinpath("data", file).read_text(encoding="utf-8")
    yield from csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
