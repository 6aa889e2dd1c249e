"""`Run`: defaults, frozen, and the schema people complete their run files with."""

import json
from typing import Any

import pydantic
import pytest

from stoker.config.data_section import Source
from stoker.config.run import Full, Lora, Run, Shape, TrainTokenizer


def run(**words: Any) -> Run:
    return Run.model_validate({"model": "m", "data": {"train": "a"}, **words})


def test_the_defaults() -> None:
    asked = run()
    assert asked.tune == Full()
    assert asked.tokenizer == "auto"
    assert (asked.data.length, asked.data.pack, asked.data.eval, asked.data.on_bad_row) == (2048, True, None, "stop")
    assert (asked.train.objective, asked.train.epochs, asked.train.batch) == ("sft", 1, 16)
    assert (asked.train.learning_rate, asked.train.warmup, asked.train.clip, asked.train.seed) == (2e-4, "3%", 1.0, 42)
    assert (asked.train.exact, asked.train.deterministic, asked.train.eval_every) == ("auto", False, "epoch")
    assert (asked.save.every, asked.save.keep, asked.save.best, asked.save.store) == ("auto", 3, None, None)
    assert (asked.where.place, asked.where.gpus, asked.where.micro) == ("local", "all", "auto")
    assert (asked.budget.money, asked.budget.time) == (None, None)
    assert asked.native.trainer == {}


def test_an_adapter_has_a_rank_and_no_alpha_unless_told() -> None:
    tune = run(tune={"method": "lora"}).tune
    assert isinstance(tune, Lora)
    assert (tune.rank, tune.alpha, tune.dropout, tune.targets) == (16, None, 0.0, "all-linear")


@pytest.mark.parametrize("path", ["name", "train.epochs", "data.length", "tune.method", "save.keep", "where.micro"])
def test_a_run_is_frozen(path: str) -> None:
    asked: Any = run()
    *sections, last = path.split(".")
    for section in sections:
        asked = getattr(asked, section)
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        setattr(asked, last, 1)


def test_unions_take_each_of_their_members() -> None:
    assert isinstance(run(model={"shape": "llama", "layers": 1, "width": 64, "heads": 1}).model, Shape)
    assert isinstance(run(tokenizer={"train": "bpe", "vocab": 300}).tokenizer, TrainTokenizer)
    assert run(data={"train": {"path": "a", "weight": 2}}).data.train == Source(path="a", weight=2)
    assert run(data={"train": [{"path": "a"}, {"path": "b"}]}).data.train == [Source(path="a"), Source(path="b")]
    assert run(tune={"method": "lora", "targets": ["q_proj"]}).tune.targets == ["q_proj"]  # type: ignore[union-attr]
    assert [run(train={"warmup": one}).train.warmup for one in (0, 10, "3%")] == [0, 10, "3%"]
    assert [run(where={"gpus": one}).where.gpus for one in (0, "all", "0,2")] == [0, "all", "0,2"]
    assert [run(where={"micro": one}).where.micro for one in ("auto", 4)] == ["auto", 4]
    assert [run(train={"exact": one}).train.exact for one in ("auto", True, False)] == ["auto", True, False]


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("train", {"epochs": True}),
        ("train", {"learning_rate": False}),
        ("train", {"learning_rate": float("nan")}),
        ("train", {"clip": float("inf")}),
        ("train", {"warmup": "101%"}),
        ("where", {"gpus": True}),
        ("where", {"micro": True}),
        ("save", {"every": "0 steps"}),
        ("save", {"every": "0.0h"}),
        ("train", {"eval_every": "0 steps"}),
        ("data", {"train": "a", "eval": "x%"}),
        ("data", {"train": "a", "length": False}),
    ],
)
def test_what_would_be_taken_for_a_number_or_a_share_and_is_none_is_refused(section: str, value: Any) -> None:
    with pytest.raises(pydantic.ValidationError):
        run(**{section: value})


@pytest.mark.parametrize("value", ["yes", "no", "on", "off", True, False])
def test_a_truth_may_be_written_in_the_words_of_yaml_1_1(value: Any) -> None:
    assert run(data={"train": "a", "pack": value}).data.pack is (value in ("yes", "on", True))


def test_a_run_survives_json() -> None:
    asked = run(
        model={"shape": "gpt2", "layers": 2, "width": 128, "heads": 2},
        tokenizer={"train": "bpe", "vocab": 300},
        data={"train": [{"path": "a", "weight": 0.5}], "eval": "2%"},
        train={"warmup": 5, "exact": True},
        where={"gpus": "0,2", "micro": 2},
        native={"trainer": {"neftune_noise_alpha": 5}},
    )
    assert Run.model_validate(json.loads(json.dumps(asked.model_dump()))) == asked


def test_the_schema_says_what_is_required_what_may_be_and_what_it_means() -> None:
    schema = Run.model_json_schema()
    assert schema["required"] == ["model", "data"]
    assert set(schema["$defs"]) == {
        "Shape",
        "TrainTokenizer",
        "Columns",
        "Roles",
        "Source",
        "PreparedSource",
        "Stage",
        "Block",
        "Decontamination",
        "Data",
        "Full",
        "Lora",
        "Qlora",
        "Dpo",
        "Simpo",
        "Orpo",
        "Kto",
        "Grpo",
        "Distill",
        "Reward",
        "Exact",
        "Regex",
        "ValidJson",
        "Length",
        "Code",
        "Verifiers",
        "Train",
        "Save",
        "Where",
        "Budget",
        "Native",
    }
    for name, model in [("Run", schema), *schema["$defs"].items()]:
        assert model["additionalProperties"] is False, name
        fields = (schema["$defs"][f["$ref"].split("/")[-1]] if "$ref" in f else f for f in model["properties"].values())
        assert all(field.get("description") for field in fields), name
    learning_rate = schema["$defs"]["Train"]["properties"]["learning_rate"]
    assert (learning_rate["exclusiveMinimum"], learning_rate["default"]) == (0, 2e-4)
    assert schema["$defs"]["Train"]["properties"]["epochs"]["minimum"] == 1
    assert schema["properties"]["tune"]["discriminator"]["propertyName"] == "method"
