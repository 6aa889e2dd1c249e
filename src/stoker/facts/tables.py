"""Reads the tables in `data/`: CSV, with lines that start with `#` saying where the figures are from."""

import csv
from collections.abc import Iterator
from importlib import resources


def rows(file: str) -> Iterator[dict[str, str]]:
    """The rows of a table, by column name."""
    text = resources.files("stoker.facts").joinpath("data", file).read_text(encoding="utf-8")
    yield from csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
