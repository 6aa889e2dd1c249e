"""Which words make another training, also between versions of Stoker whose run files have other keys."""

from typing import Any

import pytest

from stoker.config import data_section
from stoker.config import run as run_file
from stoker.config.run import Run
from stoker.rundir import training_words

TEXT: dict[str, Any] = {
    "model": "a/b",
    "data": {"train": [{"path": "a.jsonl"}, {"path": "b.jsonl", "weight": 2}]},
    "tune": {"method": "lora"},
    "native": {"trainer": {"label_smoothing_factor": 0.1}},
}


class LaterSource(data_section.Source):
    shuffled: bool = False


class LaterData(data_section.Data):
    train: list[LaterSource]


class LaterLora(run_file.Lora):
    scaled: bool = False


class LaterTrain(run_file.Train):
    label_smoothing: float = 0.0


class LaterRun(Run):
    data: LaterData
    tune: LaterLora
    train: LaterTrain = LaterTrain()


def later(**more: Any) -> dict[str, Any]:
    return training_words.of(LaterRun.model_validate({**TEXT, **more}))


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Words of a run that was begun before the keys of `LaterRun` existed."""
    words = training_words.of(Run.model_validate(TEXT))
    monkeypatch.setattr(training_words, "Run", LaterRun)
    return words


def test_a_new_key_at_its_default_is_the_same_training(before: dict[str, Any]) -> None:
    assert later() != before
    assert training_words.differing(before, later()) == []
    assert training_words.differing(later(), before) == []


def test_a_new_key_at_another_value_is_another_training(before: dict[str, Any]) -> None:
    assert training_words.differing(before, later(train={"label_smoothing": 0.1})) == ["train.label_smoothing - -> 0.1"]
    assert training_words.differing(before, later(tune={"method": "lora", "scaled": True})) == ["tune.scaled - -> true"]
    sources = {"train": [{"path": "a.jsonl", "shuffled": True}, {"path": "b.jsonl", "weight": 2}]}
    (change,) = training_words.differing(before, later(data=sources))
    assert change.startswith("data.train ")


def test_a_key_that_is_gone_is_no_difference() -> None:
    words = training_words.of(Run.model_validate(TEXT))
    assert training_words.differing({**words, "train.of_old": 5}, words) == []
    assert training_words.differing(words, {**words, "train.of_old": 5}) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"native": {}}, ["native.trainer.label_smoothing_factor 0.1 -> -"]),
        ({"native": {"deepspeed": "ds.json", **TEXT["native"]}}, ["native.deepspeed - -> ds.json"]),
        ({"train": {"epochs": 3}}, ["train.epochs 1 -> 3"]),
        ({"tune": {"method": "full"}}, ["tune.method lora -> full"]),
    ],
)
def test_what_is_set_otherwise_is_another_training(change: dict[str, Any], said: list[str]) -> None:
    runs = (Run.model_validate(TEXT), Run.model_validate({**TEXT, **change}))
    assert training_words.changed(*runs) == said


def test_another_origin_is_another_training() -> None:
    words = training_words.of(Run.model_validate(TEXT))
    fork = training_words.of(Run.model_validate(TEXT), {"run": "a", "step": 4})
    assert training_words.differing(words, fork) == ["forked_from.run - -> a", "forked_from.step - -> 4"]


def mixed(*sets: dict[str, Any]) -> Run:
    return Run.model_validate({"model": "a/b", "data": {"set": list(sets)}})


def test_another_mixture_of_sets_is_another_training_and_another_place_of_them_is_not() -> None:
    before = mixed({"path": "run:wiki", "share": "60%"}, {"path": "run:code", "share": "40%"})
    moved = mixed({"path": "s3://b/wiki", "share": "60%"}, {"path": "s3://b/code", "share": "40%"})
    assert training_words.changed(before, moved) == []
    for other in (
        mixed({"path": "run:wiki", "share": "10%"}, {"path": "run:code", "share": "90%"}),
        mixed({"path": "run:wiki", "share": "60%", "name": "w"}, {"path": "run:code", "share": "40%"}),
        mixed({"path": "run:wiki", "epochs": 1}, {"path": "run:code", "epochs": 1}),
        Run.model_validate({"model": "a/b", "data": {"set": "run:wiki"}}),
    ):
        assert [change.split()[0] for change in training_words.changed(before, other)] == ["data.set"]


def scored(**limits: Any) -> Run:
    rewards = [{"function": "rewards.py:own", **limits}]
    train = {"objective": "grpo", "grpo": {"rewards": rewards}}
    return Run.model_validate({"model": "m", "data": {"train": "a.jsonl", "pack": False}, "train": train})


def test_limits_of_a_reward_may_change_and_what_it_is_worth_may_not() -> None:
    other = scored(timeout="60s", memory="8 GB", isolation="none")
    assert training_words.changed(scored(), other) == []
    assert training_words.changed(scored(), scored(weight=0.5)) != []
