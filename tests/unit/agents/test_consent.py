"""What an agent may start: the plan that was shown, within the budget that was named."""

from pathlib import Path
from typing import Any

import pytest

from stoker.agents import consent
from stoker.agents.consent import AgreedBudget
from stoker.config import load
from stoker.config.load import RunFile
from stoker.errors import StokerError

PLAN: dict[str, Any] = {
    "card": "RTX4090",
    "fits": "yes",
    "batch": {"effective": 16},
    "precision": "bf16",
    "strategy": "single",
    "steps": {"total": 100},
    "data": {"digest": ""},
    "time_seconds": 7200.0,
    "cost": {"amount": 4.5, "currency": "USD"},
    "disk_bytes": 10,
}


def run(*overrides: str) -> RunFile:
    return load.load("scratch_tiny", overrides)


def test_a_digest_covers_run_place_and_figures_and_nothing_that_moves_by_itself() -> None:
    shown = consent.digest(run(), "local", PLAN)
    assert consent.digest(run(), "local", {**PLAN, "disk_bytes": 11}) == shown
    others = [
        consent.digest(run("train.epochs=4"), "local", PLAN),
        consent.digest(run(), "box", PLAN),
        *(consent.digest(run(), "local", {**PLAN, name: "other"}) for name in consent._FIGURES),
    ]
    assert len({shown, *others}) == len(others) + 1
    consent.require_shown(shown, shown)
    for other in others:
        with pytest.raises(StokerError) as caught:
            consent.require_shown(shown, other)
        assert (caught.value.code, caught.value.fields) == ("STK553", {"call": "plan"})


def test_the_same_run_file_in_another_folder_or_by_another_name_has_another_digest(tmp_path: Path) -> None:
    """Its data and its model are others."""
    asked = []
    for folder, name in (("one", "run"), ("two", "run"), ("one", "other")):
        path = tmp_path / folder / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text("model: Qwen/Qwen2.5-0.5B\ndata: {train: a.jsonl}\n", encoding="utf-8")
        asked.append(consent.digest(load.load(str(path)), "local", PLAN))
    assert len(set(asked)) == 3
    assert consent.digest(load.load(str(tmp_path / "one" / "run.yaml")), "local", PLAN) == asked[0]


@pytest.mark.parametrize(
    ("budget", "code"),
    [
        (AgreedBudget(), "STK554"),
        (AgreedBudget(time="a while"), "STK109"),
        (AgreedBudget(money="little"), "STK109"),
        (AgreedBudget(time="1h"), "STK555"),
        (AgreedBudget(money="4USD"), "STK555"),
        (AgreedBudget(time="3h", money="4USD"), "STK555"),
        (AgreedBudget(money="40CNY"), "STK671"),
    ],
)
def test_a_budget_that_does_not_hold_the_plan_is_refused(budget: AgreedBudget, code: str) -> None:
    with pytest.raises(StokerError) as caught:
        _checked(budget)
    assert caught.value.code == code


def _checked(budget: AgreedBudget) -> None:
    budget.require()
    budget.require_enough(PLAN)


@pytest.mark.parametrize(
    "budget", [AgreedBudget(time="2h"), AgreedBudget(money="4.5USD"), AgreedBudget(time="3h", money="5USD")]
)
def test_a_budget_that_holds_it_is_taken(budget: AgreedBudget) -> None:
    _checked(budget)


def test_money_without_a_price_cannot_be_held() -> None:
    with pytest.raises(StokerError) as caught:
        AgreedBudget(money="5USD").require_enough({**PLAN, "cost": None})
    assert caught.value.code == "STK671"


def test_a_smaller_budget_of_the_run_file_stays(tmp_path: Path) -> None:
    asked = AgreedBudget(time="3h", money="5USD")
    assert asked.overrides(run()) == {"budget.time": "3h", "budget.money": "5USD"}
    assert asked.overrides(run("budget.time=1h", "budget.money=9 USD")) == {"budget.money": "5USD"}
    assert asked.overrides(run("budget.time=5h", "budget.money=1 USD")) == {"budget.time": "3h"}
