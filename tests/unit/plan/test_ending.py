"""What becomes of the machine, and what spot machines are expected to cost."""

import pytest
from plan_case import machine, plan, processor

from stoker.facts import failures, platforms, prices
from stoker.plan import spot


@pytest.mark.parametrize(
    ("platform", "asked", "after", "why"),
    [
        ("autodl", "auto", "stop", "why.after.stop"),
        ("autodl", "stop", "stop", "why.after.stop"),
        ("autodl", "stay", "stay", "why.asked"),
        ("autodl", "release", "stop", "why.after.stop"),  # it has no such command from inside
        ("runpod", "auto", "stop", "why.after.stop"),
        ("runpod", "release", "release", "why.after.release"),
        ("vast", "auto", "stop", "why.after.stop"),
        ("featurize", "auto", "stay", "why.after.only_release"),
        ("featurize", "stop", "stay", "why.after.only_release"),
        ("featurize", "release", "release", "why.after.release"),
        ("matpool", "auto", "stay", "why.after.only_release"),
        ("kaggle", "auto", "stay", "why.after.no_verb"),
        (None, "auto", "stay", None),
        (None, "release", "stay", "why.after.unknown"),
    ],
)
def test_only_the_run_files_word_releases(platform: str | None, asked: str, after: str, why: str | None) -> None:
    known = platforms.find(platform) if platform else None
    made = plan(f"where: {{after: {asked}}}", processor(), platform=known)
    assert made.after == after
    assert made.platform == (platform or "")
    found = [one for one in made.reasons if one.about == "after"]
    assert (found[0].key if found else None) == why
    assert all(one.text for one in found)


def test_without_a_store_the_plan_says_that_the_machine_waits_for_a_pull() -> None:
    keys = [one.key for one in plan("", processor(), platform=platforms.find("autodl")).reasons]
    assert "why.after.no_store" in keys
    stored = plan("save: {store: s3://a/b}", processor(), platform=platforms.find("autodl"))
    assert "why.after.no_store" not in [one.key for one in stored.reasons]


def test_a_machine_that_bills_its_disk_when_stopped_is_named() -> None:
    keys = [one.key for one in plan("", processor(), platform=platforms.find("vast")).reasons]
    assert "why.after.disk_bills" in keys


# ---- spot


def test_spot_is_compared_only_where_it_is_allowed_and_has_a_price() -> None:
    on, offer = machine("A100-80-SXM4"), prices.cheapest("A100-80-SXM4")
    assert plan("", on, offer=offer).spot is None
    assert plan("where: {spot: true}", on, offer=None).spot is None
    found = plan("where: {spot: true}", on, offer=offer, tokens=10_000_000_000).spot
    assert found is not None
    assert found.restarts > 1
    assert found.source


def test_both_costs_are_said() -> None:
    offer = prices.cheapest("A100-80-SXM4", 1, "USD")
    made = plan("where: {spot: true}", machine("A100-80-SXM4"), offer=offer, tokens=10_000_000_000)
    assert made.cost is not None
    (why,) = [one for one in made.reasons if one.about == "spot"]
    assert f"{made.cost.amount:,.2f}" in why.text
    assert made.spot is not None
    assert f"{made.spot.amount:,.2f}" in why.text
    cheaper = made.spot.amount * prices.usd(made.spot.currency) < made.cost.amount * prices.usd(made.cost.currency)
    assert made.spot.cheaper == cheaper
    assert why.key == ("why.spot.cheaper" if cheaper else "why.spot.dearer")


def test_a_spot_price_is_compared_with_a_price_on_demand_in_the_same_currency() -> None:
    """Nobody has spot machines for CNY here: what they are paid in is what they are compared in."""
    own, on = prices.stated("where.price", 9.0, "CNY"), machine("A100-80-SXM4")
    made = plan("where: {spot: true}", on, offer=own, tokens=10_000_000_000)
    dollars = plan("", on, offer=prices.cheapest("A100-80-SXM4", 1, "USD"), tokens=10_000_000_000).cost
    (why,) = [one for one in made.reasons if one.about == "spot"]
    assert made.cost is not None
    assert made.spot is not None
    assert dollars is not None
    assert (made.cost.currency, made.spot.currency) == ("CNY", "USD")
    assert why.fields["demand"] == f"{dollars.amount:,.2f} USD"
    assert made.spot.cheaper == (made.spot.amount < dollars.amount)


def test_the_expected_time_follows_dalys_formula() -> None:
    """Against a simulation of the same thing, told apart from the formula: work, saves, ends at random, restarts."""
    from random import Random

    work, between, restart, save = 36000.0, 7200.0, 600.0, 5.0
    every = min((2 * save * between) ** 0.5, 1800.0)
    chance, times = Random(7), []
    for _ in range(400):
        now, done, ends = 0.0, 0.0, chance.expovariate(1 / between)
        while done < work:
            piece = min(every, work - done)
            if now + piece + save <= ends:
                now, done = now + piece + save, done + piece
                continue
            # Restarts may be cut short, too.
            now = ends
            ends = now + chance.expovariate(1 / between)
            while now + restart > ends:
                now, ends = ends, ends + chance.expovariate(1 / between)
            now += restart
        times.append(now)
    assert spot.expected_seconds(work, between, restart, save) == pytest.approx(sum(times) / len(times), rel=0.03)


def test_without_ends_the_time_is_the_works_and_its_saves() -> None:
    assert spot.expected_seconds(3600, 1e12, 600, 1) == pytest.approx(3600, rel=0.01)


def test_spot_is_dearer_where_restarts_eat_the_discount(monkeypatch: pytest.MonkeyPatch) -> None:
    offer = prices.cheapest("A100-80-SXM4")
    monkeypatch.setattr(failures, "restart_seconds", lambda: 50_000.0)
    made = plan("where: {spot: true}", machine("A100-80-SXM4"), offer=offer, tokens=10_000_000_000)
    assert made.spot is not None
    assert not made.spot.cheaper
