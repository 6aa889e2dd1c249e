"""What ends a run early, what a plan does after memory ran out, and what is done about bad steps."""

import dataclasses
from pathlib import Path

import pytest
from plan_case import SEVEN, SMALL, machine, plan, processor

from stoker import messages
from stoker.config import load
from stoker.errors import StokerError
from stoker.facts import prices, shapes
from stoker.facts.machine import Machine
from stoker.plan import remarks
from stoker.plan.plan import Plan, Rung


def rung(made: Plan, step: int = 7) -> Rung:
    return Rung(
        strategy=made.strategy,
        gradient_checkpointing=made.gradient_checkpointing,
        offload_activations=made.offload_activations,
        micro=made.batch.micro,
        card=made.card,
        step=step,
    )


def ladder(text: str, on: Machine, model: str = SMALL, sizes: str = "length: 64") -> list[Plan]:
    """Plans, each made after the one before ran out of memory, until nothing is left."""
    made: list[Plan] = []
    while True:
        failed = tuple(rung(one) for one in made)
        try:
            one = plan(text, on, model=model, sizes=sizes, out_of_memory=failed)
        except StokerError as error:
            said = error
            break
        made.append(one)
    assert (said.code, said.fields["tried"]) == ("STK675", len(made))
    return made


def test_after_memory_ran_out_the_next_rung_needs_less_and_keeps_the_batch() -> None:
    plans = ladder("train: {batch: 16}\ntune: {method: lora}", machine("A100-80G-SXM"))
    assert [one.batch.micro for one in plans[:5]] == [16, 8, 4, 2, 1]
    assert not any(one.gradient_checkpointing for one in plans[:5])
    assert all(one.gradient_checkpointing for one in plans[5:])
    used = [one.memory.peak_allocated_bytes for one in plans]
    assert used == sorted(used, reverse=True)
    assert len(set(used)) == len(used)
    for one in plans:
        batch = one.batch
        assert batch.effective == batch.micro * batch.accumulation * batch.devices == 16
        assert (one.steps, one.data) == (plans[0].steps, plans[0].data)


def test_sharding_is_the_last_rung() -> None:
    plans = ladder("train: {batch: 16}\ntune: {method: lora}", machine("A100-80G-SXM", 2), model=SEVEN)
    strategies = [one.strategy for one in plans]
    assert strategies == sorted(strategies)  # ddp before fsdp2
    assert set(strategies) == {"ddp", "fsdp2"}


def test_what_was_fixed_by_hand_is_left_alone() -> None:
    plans = ladder("train: {batch: 16}\nwhere: {micro: 4, gradient_checkpointing: false}", machine("A100-80G-SXM"))
    assert [one.batch.micro for one in plans] == [4]


def test_a_failed_rung_is_a_reason_and_is_kept() -> None:
    first = plan("train: {batch: 16}", processor())
    again = plan("train: {batch: 16}", processor(), out_of_memory=(rung(first),))
    (why,) = [one for one in again.reasons if one.key == "why.out_of_memory"]
    assert why.fields["micro"] == first.batch.micro
    assert why.fields["step"] == 7
    assert again.out_of_memory == [rung(first)]


def test_another_machines_failures_do_not_count() -> None:
    first = plan("train: {batch: 16}", machine("T4"))
    other = plan("train: {batch: 16}", machine("A100-80G-SXM"), out_of_memory=(rung(first),))
    assert other.batch == plan("train: {batch: 16}", machine("A100-80G-SXM")).batch


def test_a_time_budget_is_a_limit() -> None:
    assert plan("budget: {time: 90m}").limits.time_seconds == 5400
    assert plan().limits.time_seconds is None


def test_money_lasts_by_the_plans_price_and_devices() -> None:
    offer = prices.cheapest("RTX4090", 2, "CNY")
    assert offer is not None
    assert offer.currency == "CNY"
    made = plan("budget: {money: 50 CNY}\ntrain: {batch: 16}", machine("RTX4090", 2), offer=offer)
    assert made.limits.money_seconds == pytest.approx(50 / (offer.price_per_hour * offer.billed(2)) * 3600)
    (why,) = [one for one in made.reasons if one.about == "limits.money_seconds"]
    assert why.key == "why.limit.money"


def test_a_machine_without_a_card_is_billed_once_whatever_its_processes() -> None:
    words = "budget: {money: 10 CNY}\ntrain: {batch: 16}\nwhere: {gpus: 0, processes: 2, price: 1 CNY/h}"
    made = plan(words, processor(), offer=prices.stated("where.price", 1.0, "CNY"))
    assert made.batch.devices == 2
    assert made.limits.money_seconds == pytest.approx(10 * 3600)


def test_money_without_a_price_in_its_currency_is_no_limit() -> None:
    offer = prices.cheapest("RTX4090", 1, "CNY")
    assert plan("budget: {money: 50 EUR}", offer=offer).limits.money_seconds is None
    assert plan("budget: {money: 50 CNY}", offer=None).limits.money_seconds is None


@pytest.mark.parametrize("money", ["50 EUR", "50 CNY"])
def test_a_plan_says_that_money_without_a_price_cannot_be_applied(money: str) -> None:
    offer = prices.cheapest("RTX4090", 1, "CNY") if money.endswith("EUR") else None
    made = plan(f"budget: {{money: {money}}}", machine("RTX4090"), offer=offer)
    (why,) = [one for one in made.reasons if one.about == "limits.money_seconds"]
    assert why.key == "why.limit.no_price"
    assert why.fields == {"currency": money[-3:], "card": "RTX4090"}
    for language in messages.CATALOGUES:
        said = messages.in_language(language, why.key, **why.fields)
        assert all(word in said for word in ("where.price", "--price", "budget.time"))


@pytest.mark.parametrize(
    ("budget", "about"),
    [
        ("{time: 36s}", "limits.time_seconds"),
        ("{money: 0.001 CNY, time: 9h}", "limits.money_seconds"),
        ("{time: 99999h}", None),
    ],
)
def test_a_plan_says_where_a_budget_ends_it_early(budget: str, about: str | None) -> None:
    made = plan(f"budget: {budget}", machine("RTX4090"), offer=prices.cheapest("RTX4090", 1, "CNY"))
    assert [one.about for one in made.reasons if one.key == "why.limit.short"] == ([about] if about else [])


def test_a_deadline_is_a_limit_with_its_reason() -> None:
    made = plan(deadline="2026-11-15T20:00:00+00:00")
    assert made.limits.deadline == "2026-11-15T20:00:00+00:00"
    assert "why.limit.deadline" in [one.key for one in made.reasons]


def test_the_guard_is_as_asked() -> None:
    assert plan().guard.on_bad_step == "stop"
    made = plan("train: {on_bad_step: skip, spike: 3}")
    assert (made.guard.on_bad_step, made.guard.spike) == ("skip", 3)


def test_passing_over_steps_does_not_go_with_zero() -> None:
    with pytest.raises(StokerError) as caught:
        plan("train: {on_bad_step: skip, batch: 16}\nwhere: {strategy: zero2}", machine("A100-80G-SXM", 2))
    assert (caught.value.code, caught.value.fields["word"]) == ("STK216", "train.on_bad_step")


def test_a_length_beyond_the_positions_of_the_model_is_said() -> None:
    found = shapes.resolve(SMALL, Path("nowhere"))
    found = dataclasses.replace(found, shape=dataclasses.replace(found.shape, context=2048))
    (said,) = remarks.of_model(load.parse(f"model: {SMALL}\ndata: {{train: a, length: 2049}}\n", "run.yaml"), found)
    assert (said.about, said.fields) == ("data.length", {"length": 2049, "context": 2048})
    assert "`data.length: 2049`" in said.text
    assert not remarks.of_model(load.parse(f"model: {SMALL}\ndata: {{train: a}}\n", "run.yaml"), found)
