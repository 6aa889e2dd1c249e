"""Rewards in a run file: one kind each, patterns that are patterns, limits in the words of the file."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from stoker import messages
from stoker.config import reader, rewards
from stoker.config.rewards import KINDS, Reward, Rewards
from stoker.errors import StokerError

FILE = """
train:
  grpo:
    rewards:
"""
RIGHT = [
    "{exact: {column: answer}}",
    r"{exact: {column: answer, pattern: 'answer: (\d+)'}, weight: 2}",
    "{regex: {pattern: '<think>.*</think>'}}",
    "{valid_json: {}}",
    "{valid_json: {fits: {type: object}}}",
    "{valid_json: {column: schema}}",
    "{length: {target: 200, within: 50}}",
    "{code: {tests: test_list}, timeout: 3s, memory: 500 MB}",
    "{function: 'rewards.py:brevity', weight: -0.5, fallback: -1, isolation: none}",
    "{function: '../奖励.py:简短'}",
    "{verifiers: {environment: owner/my-env}}",
    "{verifiers: {environment: my-env, args: {task: {strict: true}}}, timeout: 10s, isolation: none}",
]


def problems(entry: str) -> list[StokerError]:
    document = reader.parse(f"{FILE}      - {entry}\n", "run.yaml")
    given = TypeAdapter(Rewards).validate_python(document.values["train"]["grpo"]["rewards"])
    return rewards.conflicts(given, document, ("train", "grpo", "rewards"))


@pytest.mark.parametrize("entry", RIGHT)
def test_a_reward_is_read(entry: str) -> None:
    assert problems(entry) == []


def test_every_kind_is_tried_above() -> None:
    assert {kind for kind in KINDS if any(entry.startswith(f"{{{kind}:") for entry in RIGHT)} == set(KINDS)


@pytest.mark.parametrize(
    ("entry", "code", "where"),
    [
        ("{weight: 2}", "STK457", "run.yaml:5: train.grpo.rewards[0]"),
        ("{exact: {column: a}, regex: {pattern: b}}", "STK457", "run.yaml:5: train.grpo.rewards[0]"),
        ("{regex: {pattern: '('}}", "STK458", "run.yaml:5: train.grpo.rewards[0].regex.pattern"),
        ("{exact: {column: a, pattern: '[z-a]'}}", "STK458", "run.yaml:5: train.grpo.rewards[0].exact.pattern"),
        ("{valid_json: {fits: {}, column: a}}", "STK459", "run.yaml:5: train.grpo.rewards[0].valid_json"),
    ],
)
@pytest.mark.parametrize("language", messages.CATALOGUES)
def test_a_mistake_is_named_with_its_place(
    entry: str, code: str, where: str, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_LANG", language)
    [error] = problems(entry)
    assert (error.code, error.where) == (code, where)
    assert error.what
    assert error.hint


@pytest.mark.parametrize(
    "given",
    [
        {"function": "rewards.py"},
        {"function": "rewards:name"},
        {"function": "rewards.py:not a name"},
        {"length": {"target": 0}},
        {"length": {"target": True}},
        {"exact": {}},
        {"code": {"tests": ""}},
        {"regex": {"pattern": "a"}, "weight": float("inf")},
        {"regex": {"pattern": "a"}, "timeout": "soon"},
        {"regex": {"pattern": "a"}, "memory": "much"},
        {"function": "a.py:b", "isolation": "container"},
        {"regexp": {"pattern": "a"}},
    ],
)
def test_what_is_no_reward_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Reward.model_validate(given)


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Rewards).validate_python([])


def test_limits_are_figures() -> None:
    reward = Reward.model_validate({"code": {"tests": "t"}, "timeout": "2m", "memory": "1.5 GB"})
    assert (reward.timeout_seconds, reward.memory_bytes) == (120, 1_500_000_000)
    own = Reward.model_validate({"function": "a.py:b"})
    assert own.timeout_seconds > Reward.model_validate({"code": {"tests": "t"}}).timeout_seconds


def test_the_column_that_rows_need_is_known() -> None:
    rewards = [
        {"exact": {"column": "a"}},
        {"code": {"tests": "b"}},
        {"valid_json": {"column": "c"}},
        {"valid_json": {}},
    ]
    assert [Reward.model_validate(one).column for one in rewards] == ["a", "b", "c", None]
    assert Reward.model_validate({"function": "a.py:b"}).column is None
