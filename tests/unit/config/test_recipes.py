"""The shipped recipes: all load, those of a guide carry its figures, the text of the offline one is there."""

import math
from typing import Any

import pytest

import stoker
from stoker.config import load, objectives
from stoker.config.data_section import Source
from stoker.config.run import Shape, TrainTokenizer
from stoker.rundir import inputs

_TABLE: dict[str, dict[str, Any]] = {
    "scratch_tiny": {
        "model.width": 128,
        "model.heads": 2,
        "tokenizer.vocab": 1024,
        "data.length": 128,
        "data.eval": "5%",
        "train.objective": "pretrain",
    },
    "sft_tiny": {
        "model": "run:scratch_tiny",
        "data.train": "recipe:text/answers.jsonl",
        "tune.method": "lora",
        "train.objective": "sft",
    },
    "scratch_wikitext2": {
        "model.layers": 6,
        "model.width": 512,
        "model.heads": 8,
        "data.length": 512,
        "train.batch": 16,
        "train.epochs": 10,
    },
    "scratch_wikitext2_768": {
        "model.layers": 6,
        "model.width": 768,
        "model.heads": 12,
        "data.length": 512,
        "train.batch": 8,
        "train.epochs": 20,
    },
    "scratch_own_text": {
        "tokenizer.vocab": 32000,
        "data.train": "data/raw",
        "train.batch": 32,
        "train.learning_rate": 5e-5,
        "train.epochs": 10,
    },
    "qlora_qwen2.5_7b": {
        "model": "Qwen/Qwen2.5-7B",
        "tune.method": "qlora",
        "tune.rank": 16,
        "tune.alpha": 32,
        "data.length": 2048,
        "train.batch": 16,
        "train.epochs": 3,
    },
    "lora_medical_20k": {"tune.method": "lora", "data.rows": 20_000, "save.every": "500 steps", "save.keep": 3},
    "lora_medical_50k": {"tune.method": "lora", "data.rows": 50_000, "save.every": "500 steps", "save.keep": 3},
    "lora_medical_100k": {"tune.method": "lora", "data.rows": 100_000, "save.every": "500 steps", "save.keep": 3},
    "lora_qwen2.5_7b_rank64": {
        "tune.method": "lora",
        "tune.rank": 64,
        "data.rows": 2500,
        "train.batch": 64,
        "train.epochs": 3,
        "save.every": "epoch",
    },
    "lora_qwen2.5_7b_rank320": {"tune.method": "lora", "tune.rank": 320, "data.rows": 2500, "train.batch": 64},
}
"""What the guides state, by recipe; a recipe that follows no guide needs no entry."""


def _value(run: object, path: str) -> Any:
    for part in path.split("."):
        run = getattr(run, part)
    return run


def test_the_recipes_of_the_guides_ship() -> None:
    assert set(_TABLE) <= set(load.recipe_names())


@pytest.mark.parametrize("name", _TABLE)
def test_a_recipe_carries_the_figures_of_its_guide(name: str) -> None:
    run_file = load.load(name)
    assert {path: _value(run_file.run, path) for path in _TABLE[name]} == _TABLE[name]
    assert "guide 00" in run_file.text.split("model:")[0]


@pytest.mark.parametrize("name", load.recipe_names())
def test_a_recipe_can_be_planned_before_its_data_is_at_hand(name: str) -> None:
    run = load.load(name).run
    data, segments = run.data, objectives.facts(run.train.objective).segments
    assert data.rows is not None
    assert data.tokens is not None
    if not data.pack:
        assert data.tokens <= data.rows * data.length * segments


@pytest.mark.parametrize("name", sorted(_TABLE.keys() - {"scratch_tiny"}))
def test_the_batch_of_a_guide_counts_rows(name: str) -> None:
    assert not load.load(name).run.data.pack


@pytest.mark.parametrize("name", load.recipe_names())
def test_a_recipe_is_hardware_free_and_says_what_it_is(name: str) -> None:
    run_file = load.load(name)
    assert run_file.run.name == name
    assert run_file.text.startswith("# ")
    assert "\n# zh: " in run_file.text, "what it is, in Chinese, for the reference page"
    assert run_file.run.where == type(run_file.run.where)()


def test_the_paper_setting_saves_at_steps_40_80_and_120() -> None:
    run = load.load("lora_qwen2.5_7b_rank64").run
    assert run.data.eval is None, "eval rows would be taken from the 2,500"
    assert run.data.rows is not None
    per_epoch = math.ceil(run.data.rows / run.train.batch)
    assert [per_epoch * epoch for epoch in range(1, run.train.epochs + 1)] == [40, 80, 120]
    assert run.save.keep >= run.train.epochs


@pytest.mark.parametrize(
    "name",
    ["lora_medical_20k", "lora_medical_50k", "lora_medical_100k", "lora_qwen2.5_7b_rank64", "lora_qwen2.5_7b_rank320"],
)
def test_a_part_of_a_hub_set_is_as_long_as_declared(name: str) -> None:
    data = load.load(name).run.data
    assert isinstance(data.train, Source)
    assert data.train.path.startswith("hub:")
    assert data.train.split == f"train[:{data.rows}]"


def test_scratch_tiny_brings_its_text_and_where_that_is_from() -> None:
    run_file = load.load("scratch_tiny")
    assert isinstance(run_file.run.data.train, str)
    (text,) = inputs.expand(run_file.run.data.train, run_file.folder)
    assert 200_000 <= text.stat().st_size <= 250_000
    assert text.read_text(encoding="utf-8").startswith("First Citizen:")
    assert "public domain" in (text.parent / "README.md").read_text(encoding="utf-8")


def test_an_old_name_loads_the_recipe_and_keeps_its_run() -> None:
    for old, new in load.RENAMED.items():
        read = load.load(old)
        assert read.renamed == new
        assert read.text == load.load(new).text
        assert read.run.name == old, "the same command must resume the run it started"
        assert old not in load.recipe_names()
    assert load.load("scratch_tiny").renamed == ""


@pytest.mark.parametrize("name", [name for name in load.recipe_names() if load.recipe_card(load.load(name).text)])
def test_a_recipe_fits_the_card_that_it_names(name: str) -> None:
    plan = stoker.plan(name, card=load.recipe_card(load.load(name).text))
    assert plan.fits in ("yes", "tight")


def test_today_s_models_have_recipes() -> None:
    models = {str(load.load(name).run.model) for name in load.recipe_names()}
    assert {"Qwen/Qwen3-8B", "Qwen/Qwen3.5-4B", "google/gemma-4-E4B-it", "unsloth/gpt-oss-20b-BF16"} <= models


@pytest.mark.parametrize("name", [name for name in _TABLE if name.startswith("scratch")])
def test_shapes_have_heads_of_64_and_a_tokenizer_of_their_own(name: str) -> None:
    run = load.load(name).run
    assert isinstance(run.model, Shape)
    assert run.model.width // run.model.heads == 64
    assert isinstance(run.tokenizer, TrainTokenizer)
