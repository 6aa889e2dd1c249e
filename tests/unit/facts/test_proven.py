"""Rows of `stoker prove`: what is read from them, and that a row that is not one is refused."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from stoker.facts import cards, proven
from stoker.facts.proven import ProvenRow

ROW = {
    "card": "RTX4090",
    "count": 1,
    "memory_bytes": 24 << 30,
    "driver": "580.82.07",
    "power_limit_watts": 450.0,
    "date": "2026-12-01",
    "stoker": "0.1.0 0123456789ab",
    "packages": {"torch": "2.13.0+cu128", "transformers": "5.22.2"},
    "checks": {"resume_exact": {"outcome": "passed", "figures": {"elements_differing": 0}, "reason": ""}},
}


def row(**changes: Any) -> ProvenRow:
    return ProvenRow.model_validate({**ROW, **changes})


def checks(**outcomes: str) -> dict[str, Any]:
    return {name: {"outcome": outcome, "figures": {}} for name, outcome in outcomes.items()}


@pytest.fixture
def _rows(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = row(date="2026-12-05", checks=checks(resume_exact="failed", vllm="absent"))
    cpu = row(card=proven.CPU)
    monkeypatch.setattr(proven, "rows", lambda: (newer, row(), cpu))


def test_a_row_says_the_torch_it_was_made_with_and_what_failed() -> None:
    found = row(checks=checks(resume_exact="failed", ddp="absent", saves="passed"))
    assert found.torch == "2.13"
    assert found.failed == ["resume_exact"]
    assert (found.passed("saves"), found.passed("ddp"), found.passed("nothing")) == (True, False, False)


@pytest.mark.usefixtures("_rows")
def test_the_newest_row_of_a_card_counts() -> None:
    found = proven.of_card("RTX4090")
    assert found is not None
    assert found.date == "2026-12-05"
    assert proven.of_card("A100-80") is None
    assert proven.of_card(None) is None


@pytest.mark.usefixtures("_rows")
def test_a_check_is_proven_by_the_rows_of_cards_where_it_passed() -> None:
    assert [one.date for one in proven.cards_with("resume_exact")] == ["2026-12-01"], "not the CPU, not the newer one"
    assert proven.cards_with("vllm") == []


@pytest.mark.parametrize(
    "changes",
    [{"host": "box"}, {"card": None}, {"checks": checks(saves="perhaps")}, {"count": "many"}],
    ids=["a further field", "no card", "another outcome", "no number"],
)
def test_what_is_no_row_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        row(**changes)


def test_every_shipped_row_is_a_row_of_a_card_of_the_catalogue() -> None:
    folder = Path(str(resources.files("stoker.facts").joinpath("data", "proven")))
    files = sorted(folder.glob("*.json"))
    assert len(proven.rows()) == len(files)
    names = {card.name for card in cards.cards()} | {proven.CPU}
    for path in files:
        found = ProvenRow.model_validate(json.loads(path.read_text(encoding="utf-8")))
        assert found.card in names
        assert path.name == f"{found.card}-{found.date}.json"
