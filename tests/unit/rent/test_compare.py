"""The same run on every card: rows, ranks, the frontier, and what would fit where nothing does."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from plan_case import SEVEN, SMALL

from stoker.config import load
from stoker.errors import StokerError
from stoker.facts import cards, shapes
from stoker.facts.machine import Machine
from stoker.plan import data
from stoker.plan.make import Inputs
from stoker.rent import compare
from stoker.rent.compare import Row, Terms

LORA = "tune: {method: lora}\ntrain: {batch: 16}\n"


def inputs(text: str = LORA, model: str = SEVEN, sizes: str = "length: 1024") -> Inputs:
    run = load.parse(f"model: {model}\ndata: {{train: a.jsonl, tokens: 5000000, {sizes}}}\n{text}", "run.yaml")
    shape = shapes.resolve(run.model, Path("nowhere"), run.tokenizer, run.data.length)
    nothing = Machine.of_card(cards.find("T4"))
    return Inputs(run=run, machine=nothing, shape=shape, data=data.declared(run))


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return compare.compare(inputs(), cards.cards())


def one(rows: list[Row], card: str, count: int) -> Row:
    (found,) = [row for row in rows if (row.card, row.devices) == (card, count)]
    return found


def test_every_nvidia_card_has_a_row_per_count_and_every_mac_one(rows: list[Row]) -> None:
    expected = {(c.name, n) for c in cards.cards() for n in ((1, 2, 4, 8) if c.kind == "cuda" else (1,))}
    assert {(row.card, row.devices) for row in rows} == expected
    assert len(rows) == len(expected)


def test_batch_and_length_are_the_run_s_on_every_row(rows: list[Row]) -> None:
    for row in rows:
        assert row.found is not None, (row.card, row.refused)
        way = row.found.way
        assert way.micro * way.step.accumulation * row.devices == 16
        assert way.step.length == 1024


def test_a_batch_that_cannot_be_split_says_so_in_its_row() -> None:
    found = compare.compare(inputs("tune: {method: lora}\ntrain: {batch: 6}\n"), [cards.find("A100-80-SXM4")])
    assert [row.refused.code if row.refused else row.fits for row in found] == ["yes", "yes", "STK201", "STK201"]
    assert one(found, "A100-80-SXM4", 4).fits == "no"


@pytest.mark.parametrize("card", ["P100-16", "V100-32-SXM2"])
def test_a_card_that_torch_no_longer_runs_on_does_not_fit(rows: list[Row], card: str) -> None:
    row = one(rows, card, 8)
    assert row.found is not None
    assert (row.fits, row.found.supported) == ("no", False)


def test_what_no_card_can_do_is_an_error_and_not_a_table() -> None:
    with pytest.raises(StokerError, match="STK214"):
        compare.compare(inputs("", "gpt2", "length: 4096"), cards.cards())


def test_where_words_hold_on_every_row() -> None:
    found = compare.compare(inputs(LORA + "where: {micro: 2, gpus: 3}\n"), [cards.find("H200")])
    assert {row.found.way.micro for row in found if row.found} == {2}
    assert [row.devices for row in found] == [1, 2, 4, 8]


@pytest.mark.parametrize("goal", ["money", "speed"])
def test_what_surely_fits_comes_first_then_the_goal(rows: list[Row], goal: Any) -> None:
    ranked = compare.ranked(rows, goal)
    verdicts = [0 if row.sure else 1 if row.fits == "tight" else 2 for row in ranked]
    assert verdicts == sorted(verdicts)
    assert set(verdicts) == {0, 1, 2}
    sure = [row for row in ranked if row.sure]
    if goal == "money":
        assert [row.money for row in sure] == sorted(row.money for row in sure)
    else:
        fast = compare.AS_FAST * min(row.seconds for row in sure)
        first = [row for row in sure if row.seconds <= fast]
        assert sure[: len(first)] == sorted(first, key=lambda row: row.money)
        rest = [row.seconds for row in sure[len(first) :]]
        assert rest == sorted(rest)
    assert len(ranked) == len(rows)


def test_no_row_of_the_frontier_is_beaten_and_every_other_is(rows: list[Row]) -> None:
    marked = compare.frontier(rows)
    priced = [row for row in rows if row.sure and row.cost]
    assert marked

    def beaten(row: Row) -> bool:
        return any(
            other.seconds <= row.seconds
            and other.money <= row.money
            and (other.seconds, other.money) != (row.seconds, row.money)
            for other in priced
        )

    assert not any(map(beaten, marked))
    ties = {(row.seconds, row.money) for row in marked}
    assert all(beaten(row) for row in priced if (row.seconds, row.money) not in ties)


def test_the_short_list_has_the_ends_of_the_frontier_and_keeps_the_order(rows: list[Row]) -> None:
    ranked = compare.ranked(rows, "money")
    marked = compare.frontier(rows)
    short = compare.shortlist(ranked, marked, [], 12)
    assert len(short) == 12
    places = [ranked.index(row) for row in short]
    assert places == sorted(places)
    assert marked[0] in short
    assert marked[-1] in short
    assert places[0] == 0


def test_the_recommendation_stays_within_the_budget(rows: list[Row]) -> None:
    ranked = compare.ranked(rows, "money")
    plain = compare.recommend(ranked, Terms())
    assert plain is ranked[0]
    assert plain is not None
    chosen = compare.recommend(ranked, Terms(by_seconds=plain.seconds / 2))
    assert chosen is not None
    assert chosen.seconds <= plain.seconds / 2
    hurried = inputs(LORA + "budget: {time: 1s}\n").run
    assert compare.recommend(ranked, Terms.of(hurried)) is None


def test_money_of_another_currency_is_held_against_the_budget_by_a_rough_rate(rows: list[Row]) -> None:
    row = next(row for row in rows if row.cost and row.cost.currency == "USD" and row.fits == "yes")
    for money, kept in (("0.0001 USD", False), ("0.0001 CNY", False), ("100000 CNY", True)):
        asked = Terms.of(inputs(LORA + f"budget: {{money: {money}}}\n").run)
        assert asked.keep(row.bill, row.seconds) == kept


def test_another_method_count_or_card_changes_nothing_else() -> None:
    full = inputs("tune: {method: full}\ntrain: {batch: 16}\n")
    card = cards.find("RTX4090")
    assert compare.on(full, card, 1).fits == "no"
    changes = {change.kind: change for change in compare.ways_out(full, cards.cards(), card, 1, Terms.of(full.run))}
    method = changes["method"]
    assert (method.method, method.row.card, method.row.devices) == ("lora", "RTX4090", 1) or method.method == "qlora"
    for kind, change in changes.items():
        if kind == "key":
            continue
        assert change.row.fits != "no"
        found = change.row.found
        assert found is not None
        assert found.constraints.run.train == full.run.train
        assert found.constraints.run.data == full.run.data


@pytest.mark.parametrize("goal", ["money", "speed"])
def test_the_card_that_would_fit_is_the_one_the_table_recommends(goal: compare.Goal) -> None:
    full = inputs("tune: {method: full}\ntrain: {batch: 16}\n", SMALL)
    card = cards.find("RTX3080-10")
    change = next(
        c for c in compare.ways_out(full, cards.cards(), card, 1, Terms.of(full.run, goal)) if c.kind == "card"
    )
    best = compare.recommend(compare.ranked(compare.compare(full, cards.cards()), goal), Terms.of(full.run))
    assert best is not None
    assert (change.row.card, change.row.devices) == (best.card, best.devices)


def test_a_card_beyond_the_budget_is_proposed_where_none_is_within() -> None:
    full = inputs("tune: {method: full}\ntrain: {batch: 16}\nbudget: {money: 0.0001 USD}\n", SMALL)
    card = cards.find("RTX3080-10")
    change = next(c for c in compare.ways_out(full, cards.cards(), card, 1, Terms.of(full.run)) if c.kind == "card")
    assert change.row.sure


def test_an_adapter_is_proposed_to_who_trains_all_weights_in_bf16() -> None:
    full = inputs("tune: {method: full}\ntrain: {batch: 16, precision: bf16}\n", SMALL)
    methods = {run.tune.method for run in compare._methods(full.run)}
    rows = [
        compare.on(dataclasses.replace(full, run=run), cards.find("RTX4090"), 1) for run in compare._methods(full.run)
    ]
    assert methods == {"lora", "qlora"}
    assert [row.refused for row in rows] == [None, None]


def test_a_model_from_scratch_has_no_milder_method() -> None:
    shape = "{shape: llama, layers: 96, width: 12288, heads: 96, vocab: 32000}"
    scratch = inputs("tokenizer: {train: bpe, vocab: 32000}\ntrain: {batch: 8}\n", shape)
    assert [change for change in compare.milder(scratch, cards.cards()) if change.kind == "method"] == []


def test_the_row_of_this_machine_is_made_like_any_other() -> None:
    asked = inputs()
    there = dataclasses.replace(asked, machine=Machine.of_card(cards.find("H200"), 2))
    row = compare.here(there, "H200", 2)
    same = compare.on(asked, cards.find("H200"), 2)
    assert row.found is not None
    assert same.found is not None
    assert (row.fits, row.devices, row.found.seconds) == (same.fits, 2, same.found.seconds)
    assert set(same.setup) - set(row.setup) == {"boot", "environment"}


def test_what_would_fit_names_the_optimizer_s_states_the_weights_and_the_length() -> None:
    full = inputs("tune: {method: full}\ntrain: {batch: 16}\n", SMALL, "length: 8192")
    tried = dict(compare._keys(full))
    assert list(tried) == ["train.optimizer: adamw_8bit", "train.precision: bf16", "data.length: 4096"]
    card = cards.find("A100-80-SXM4")
    whole = compare.on(full, card, 1).found
    assert whole is not None
    for asked in tried.values():
        found = compare.on(asked, card, 1).found
        assert found is not None
        assert found.way.memory.device < whole.way.memory.device or found.way.micro > whole.way.micro


def test_rows_that_are_not_packed_are_cut_by_half_the_length() -> None:
    """1,000 rows of 5,000 tokens: at a length of 4,096 no row has more, and training reads 4,096,000."""
    whole = inputs("train: {batch: 16}\n", SMALL, "length: 8192, rows: 1000, pack: false")
    cut = dict(compare._keys(whole))["data.length: 4096"].data
    assert (whole.data.tokens, whole.data.sequences) == (5_000_000, 1000)
    assert (cut.tokens, cut.sequences, cut.longest) == (4_096_000, 1000, 4096)
