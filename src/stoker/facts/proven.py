"""Cards on which somebody ran `stoker prove`: the rows of `data/proven/`, as `stoker prove --share` prints them."""

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from stoker.facts.fact import Fact
from stoker.facts.machine import Machine
from stoker.facts.tested import release

CPU = "cpu"
"""Stands for a card's name in a row of a machine without one."""


class ProvenCheck(Fact):
    """What one check found there."""

    outcome: Literal["passed", "failed", "absent"]
    figures: dict[str, Any]
    reason: str = ""
    """Why it failed or could not be tried."""


class ProvenRow(Fact):
    """One machine, one day."""

    card: str
    """The catalogue's name, or `cpu`."""
    count: int
    """How many of them."""
    memory_bytes: int
    """Of each."""
    driver: str
    power_limit_watts: float | None
    date: str
    stoker: str
    """Its version, with a digest of its code."""
    packages: dict[str, str]
    checks: dict[str, ProvenCheck]

    def passed(self, check: str) -> bool:
        """Whether a check passed there."""
        return check in self.checks and self.checks[check].outcome == "passed"

    @property
    def failed(self) -> list[str]:
        """Checks that failed there."""
        return [name for name, check in self.checks.items() if check.outcome == "failed"]

    @property
    def torch(self) -> str:
        """`2.13` of `2.13.0+cu128`."""
        return ".".join(release(self.packages.get("torch", "?")).split(".")[:2])

    @property
    def fields(self) -> dict[str, object]:
        """For a sentence about the row."""
        return {"card": self.card, "torch": self.torch, "date": self.date, "failed": self.failed}


@functools.cache
def rows() -> tuple[ProvenRow, ...]:
    """Every row, the newest first."""
    folder = resources.files("stoker.facts").joinpath("data", "proven")
    texts = [entry.read_text(encoding="utf-8") for entry in folder.iterdir() if entry.name.endswith(".json")]
    found = [ProvenRow.model_validate(json.loads(text)) for text in texts]
    return tuple(sorted(found, key=lambda row: row.date, reverse=True))


def of_card(card: str | None) -> ProvenRow | None:
    """The newest row of a card; None where nobody has run it."""
    return next((row for row in rows() if row.card == card), None)


def cards_with(check: str) -> list[ProvenRow]:
    """The newest row of each card on which a check passed."""
    found = {row.card: row for row in reversed(rows()) if row.passed(check) and row.card != CPU}
    return sorted(found.values(), key=lambda row: row.card)


def memory_ratios(card: str, version: str) -> list[list[float]]:
    """Measured over planned memory of the points that this version of Stoker trained on such cards, by machine."""
    found = [row for row in rows() if row.card == card and row.stoker.split()[0] == version]
    checked = [row.checks["memory"].figures for row in found if "memory" in row.checks]
    machines = [[ratio for point in each.get("points", []) if (ratio := _ratio(point))] for each in checked]
    return [ratios for ratios in machines if ratios]


def _ratio(point: dict[str, Any]) -> float | None:
    """By the driver, else by torch's allocator; None where neither was read."""
    for read, planned in (("driver_bytes", "planned_device_bytes"), ("reserved_bytes", "planned_reserved_bytes")):
        if point[read]:
            return float(point[read] / point[planned])
    return None


@dataclass(frozen=True)
class ProvenReason:
    """What a plan says about a card's proof."""

    about: str
    key: str
    fields: dict[str, object]


def said(machine: Machine, *, deterministic: bool) -> list[ProvenReason]:
    """Whether somebody has run this card and, where a plan claims EXACT on CUDA, whether a resume was EXACT there."""
    if not machine.devices:
        return []
    row = of_card(machine.devices[0].card)
    if row is None:
        found = [ProvenReason("card", "why.proven.nobody", {"card": machine.name})]
    else:
        found = [ProvenReason("card", "why.proven.failed" if row.failed else "why.proven", row.fields)]
    exact = row is not None and row.passed("resume_exact")
    if deterministic and machine.kind == "cuda" and not exact:
        found.append(ProvenReason("deterministic", "why.proven.not_exact", {}))
    return found
