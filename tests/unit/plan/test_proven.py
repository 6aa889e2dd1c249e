"""What a plan says of a card that somebody has run, of one that nobody has, and of a CPU."""

from typing import Any

import pytest
from plan_case import machine, plan, processor

import stoker
from stoker.api import arithmetic
from stoker.estimate import ranges
from stoker.estimate.step import Step
from stoker.facts import cards, proven, shapes
from stoker.facts.proven import ProvenCheck, ProvenRow
from stoker.plan.plan import Plan


def proven_row(**outcomes: str) -> ProvenRow:
    checks = {name: {"outcome": outcome, "figures": {}} for name, outcome in outcomes.items()}
    return ProvenRow.model_validate(
        {
            "card": "RTX4090",
            "count": 1,
            "memory_bytes": 24 << 30,
            "driver": "580.82.07",
            "power_limit_watts": 450.0,
            "date": "2026-12-01",
            "stoker": "0.1.0",
            "packages": {"torch": "2.13.0+cu128"},
            "checks": checks,
        }
    )


def said(made: Plan) -> dict[str, str]:
    return {one.key: one.text for one in made.reasons if one.key.startswith("why.proven")}


@pytest.fixture(autouse=True)
def _english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", "en")


def with_rows(monkeypatch: pytest.MonkeyPatch, *rows: ProvenRow) -> None:
    monkeypatch.setattr(proven, "rows", lambda: rows)


def test_without_a_row_nobody_has_run_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    with_rows(monkeypatch)
    assert said(plan()) == {"why.proven.nobody": "nobody has run this card yet; `stoker prove` tries it in ten minutes"}


def test_a_row_changes_what_the_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with_rows(monkeypatch, proven_row(resume_exact="passed"))
    assert said(plan()) == {"why.proven": "proven on RTX4090, torch 2.13, 2026-12-01 (`stoker prove`)"}
    assert list(said(plan(on=machine("A100-80")))) == ["why.proven.nobody"], "another card"


def test_what_failed_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with_rows(monkeypatch, proven_row(resume_exact="passed", memory="failed"))
    assert said(plan())["why.proven.failed"].endswith("failed there: memory")


@pytest.mark.parametrize(
    ("outcomes", "unproven"), [({}, True), ({"resume_exact": "failed"}, True), ({"resume_exact": "passed"}, False)]
)
def test_exact_is_not_proven_until_a_resume_was(
    monkeypatch: pytest.MonkeyPatch, outcomes: dict[str, Any], unproven: bool
) -> None:
    with_rows(monkeypatch, proven_row(**outcomes))
    assert ("why.proven.not_exact" in said(plan("train: {deterministic: true}"))) == unproven
    assert "why.proven.not_exact" not in said(plan()), "without it EXACT is not claimed"


def test_a_processor_needs_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    with_rows(monkeypatch)
    assert said(plan(on=processor())) == {}


def measured(*ratios: float, version: str = stoker.__version__) -> ProvenRow:
    """A row whose machine held so many times what was planned at each point."""
    points = [
        {
            "driver_bytes": ratio * 1e9,
            "reserved_bytes": None,
            "planned_device_bytes": 1e9,
            "planned_reserved_bytes": 1e9,
        }
        for ratio in ratios
    ]
    row = proven_row()
    memory = ProvenCheck(outcome="passed", figures={"points": points})
    return row.model_copy(update={"stoker": f"{version} 0123456789ab", "checks": {"memory": memory}})


def spread(step: Step, card: str = "RTX4090") -> float:
    around = ranges.of("memory", step, cards.find(card))
    return around.high / around.low


def test_a_machine_proven_with_the_same_card_and_version_narrows_memory_a_ninth_of_the_way_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = Step(shape=shapes.shipped()["01-ai/Yi-9B"], micro=1, length=512)
    before, other_card = spread(step), spread(step, "A100-80")
    one = measured(1.0, 1.01, 0.99, 1.02, 1.0, 1.01)
    with_rows(monkeypatch, one)
    assert spread(step) == pytest.approx(before ** (8 / 9) * (1.02 / 0.99) ** (1 / 9)), "six points of one machine"
    with_rows(monkeypatch, *[one] * 9)
    assert spread(step) == pytest.approx(1.02 / 0.99), "nine machines need no other source"
    assert spread(step, "A100-80") == other_card
    with_rows(monkeypatch, measured(1.0, 1.01, 0.99, version="0.0.1"))
    assert spread(step) == before, "another version of Stoker counted otherwise"


def test_the_arithmetic_counts_points_of_a_machine_and_no_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step(shape=shapes.shipped()["01-ai/Yi-9B"], micro=1, length=512)
    with_rows(monkeypatch, measured(1.0, 1.01, 0.99))
    line = arithmetic._between(ranges.of("memory", step, cards.find("RTX4090")), "19.0", "23.0 GiB")
    assert "by 3 points that `stoker prove` measured (group: full single RTX4090; 89% borrowed" in line
    assert "source" not in line
