"""Trainings that are too short or too long to learn well are remarked on, with what to change."""

import itertools
import re

import pytest
from plan_case import plan

from stoker.config import load
from stoker.messages import CATALOGUES, in_language
from stoker.rows import training_length, usual_rates
from stoker.rows.training_length import FEWEST_STEPS, MOST_EPOCHS, Remark


def remarks(sequences: int, words: str = "", data: str = "") -> list[Remark]:
    run = load.parse(f"model: m\ndata: {{train: a.jsonl{data}}}\ntrain: {{batch: 16{words}}}\n", "run.yaml")
    per_epoch = -(-sequences // 16)
    total = run.train.steps or round(run.train.epochs * per_epoch)
    return training_length.remarks(run, sequences, total, -(-total // per_epoch))


def test_enough_steps_in_a_few_passes_need_no_remark() -> None:
    assert remarks(16 * FEWEST_STEPS, ", epochs: 1") == []
    assert remarks(16 * FEWEST_STEPS, f", epochs: {MOST_EPOCHS}") == []


@pytest.mark.parametrize(
    ("sequences", "words", "data", "about", "key"),
    [
        (16, ", epochs: 3", "", "train.batch", "why.steps.few"),
        (2, ", epochs: 3", "", "train.epochs", "why.steps.few.packed"),
        (2, ", epochs: 3", ", pack: false", "train.epochs", "why.steps.few.rows"),
        (1000, ", steps: 5", "", "train.steps", "why.steps.asked"),
        (16 * FEWEST_STEPS, f", epochs: {MOST_EPOCHS + 1}", "", "train.epochs", "why.epochs.many"),
        (48, ", steps: 50", "", "train.steps", "why.epochs.many"),
    ],
)
def test_too_few_steps_and_too_many_passes_are_said(
    sequences: int, words: str, data: str, about: str, key: str
) -> None:
    ((said_about, said_key, fields),) = remarks(sequences, words, data)
    assert (said_about, said_key) == (about, key)
    for language in CATALOGUES:
        assert "{" not in in_language(language, key, **fields)


@pytest.mark.parametrize(
    ("every", "is_said"),
    [("100 steps", True), ("99 steps", False), ("auto", False), ("10m", False), ("epoch", False), ("500 steps", True)],
)
def test_saves_that_are_never_reached_are_said(every: str, is_said: bool) -> None:
    text = f"model: m\ndata: {{train: a.jsonl}}\ntrain: {{steps: 100}}\nsave: {{every: {every}}}\n"
    found = [key for _, key, _ in training_length.remarks(load.parse(text, "run.yaml"), 1000, 100, 2)]
    assert found == ["why.save.beyond"] * is_said


def test_the_proposed_batch_gives_enough_steps() -> None:
    ((_, _, fields),) = remarks(40, ", epochs: 3")
    assert 3 * -(-40 // fields["smaller"]) >= FEWEST_STEPS


def test_the_proposed_epochs_give_enough_steps() -> None:
    ((_, _, fields),) = remarks(2, ", epochs: 3")
    assert fields["more"] * 1 >= FEWEST_STEPS


@pytest.mark.parametrize("tokens", [16_000, 16_000_000])
def test_a_plan_has_the_remark(tokens: int) -> None:
    made = plan("train: {epochs: 3, batch: 16}\n", tokens=tokens)
    few = [one.key for one in made.reasons if re.match(r"why\.steps", one.key)]
    assert bool(few) == (made.steps.total < FEWEST_STEPS) == (tokens == 16_000)


MODELS = {
    "scratch": ("{shape: llama, layers: 2, width: 64, heads: 2, vocab: 300}", "{method: full}"),
    "full": ("m", "{method: full}"),
    "lora": ("m", "{method: lora}"),
    "qlora": ("m", "{method: qlora}"),
}


def rates(kind: str, rate: float, words: str = "") -> list[Remark]:
    model, tune = MODELS[kind]
    train = f"{{learning_rate: {rate:.1e}{words}}}"
    text = f"model: {model}\ntokenizer: t\ndata: {{train: a.jsonl, pack: false}}\ntune: {tune}\ntrain: {train}\n"
    return usual_rates.remarks(load.parse(text, "run.yaml"))


@pytest.mark.parametrize(
    ("kind", "objective"),
    [("scratch", "pretrain"), *itertools.product(("full", "lora", "qlora"), ("sft", "pretrain", "dpo"))],
)
def test_a_rate_far_from_the_usual_is_remarked_by_method_and_what_init_proposes_is_not(
    kind: str, objective: str
) -> None:
    words = f", objective: {objective}"
    for rate, key in ((0.5, "why.rate.high"), (1e-9, "why.rate.low")):
        ((about, said, fields),) = rates(kind, rate, words)
        assert (about, said) == ("train.learning_rate", key)
        assert rates(kind, float(fields["start"]), words) == []
        for language in CATALOGUES:
            assert fields["start"] in in_language(language, key, **fields)


def test_full_tuning_is_remarked_where_an_adapter_is_not() -> None:
    assert rates("lora", 1e-3) == []
    assert rates("full", 1e-3) != []


def test_rates_of_optimizers_unlike_adam_are_not_judged() -> None:
    assert rates("lora", 0.5, ", optimizer: sgd") == []


@pytest.mark.parametrize("name", load.recipe_names())
def test_no_recipe_is_remarked(name: str) -> None:
    assert usual_rates.remarks(load.load(name).run) == []
