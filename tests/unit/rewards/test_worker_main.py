"""Built-in rewards and what is made of a function's result, without a process of their own."""

import json
from typing import Any

import pytest

from stoker.rewards import worker_main
from stoker.rewards.worker_main import exact, last_block, length, regex, valid_json

ANSWER = {"column": "answer", "pattern": None}
BOXED = {"column": "answer", "pattern": r"\\boxed\{([^}]*)\}"}


@pytest.mark.parametrize(
    ("options", "completion", "wanted", "value"),
    [
        (ANSWER, " 42\n", "42", 1),
        (ANSWER, "42", " 42 ", 1),
        (ANSWER, "42", 42, 1),
        (ANSWER, "true", True, 1),
        (ANSWER, "[1, 2]", [1, 2], 1),
        (ANSWER, "四十二", "四十二", 1),
        (ANSWER, "42.0", 42, 0),
        (ANSWER, "Paris", "paris", 0),
        (ANSWER, "it is 42", "42", 0),
        (BOXED, r"so \boxed{41}, no: \boxed{ 42 }", "42", 1),
        (BOXED, r"so \boxed{42}, no: \boxed{41}", "42", 0),
        (BOXED, "42", "42", 0),
        (BOXED, r"\boxed{}", "", 1),
        ({"column": "answer", "pattern": r"\d+"}, "it is 42", "42", 1),
        ({"column": "answer", "pattern": r"(a)|b"}, "b", "a", 0),
    ],
)
def test_exact(options: dict[str, Any], completion: str, wanted: Any, value: float) -> None:
    assert exact(options, completion, wanted) == value


@pytest.mark.parametrize(
    ("pattern", "completion", "value"),
    [("b", "abc", 1), ("^b", "abc", 0), ("(?s)<a>.*</a>", "<a>\n</a>", 1), ("<a>.*</a>", "<a>\n</a>", 0)],
)
def test_regex(pattern: str, completion: str, value: float) -> None:
    assert regex({"pattern": pattern}, completion, None) == value


@pytest.mark.parametrize(
    ("completion", "value"),
    [
        ("{}", 1),
        (" [1]\n", 1),
        ('Sure:\n```json\n{"a": 1}\n```\n', 1),
        ("{'a': 1}", 0),
        ("", 0),
        ("[" * 100_000, 0),
        ("1" * 100_000, 0),
    ],
)
def test_valid_json_without_a_schema(completion: str, value: float) -> None:
    assert valid_json({"fits": None, "column": None}, completion, None) == value


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(("completion", "value"), [('{"a": 1}', 1), ('{"a": "1"}', 0), ("{}", 0), ("[]", 0), ("{", 0)])
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"fits": SCHEMA, "column": None}, None),
        ({"fits": None, "column": "schema"}, SCHEMA),
        ({"fits": None, "column": "schema"}, json.dumps(SCHEMA)),
    ],
)
def test_valid_json_with_a_schema(options: dict[str, Any], wanted: Any, completion: str, value: float) -> None:
    assert valid_json(options, completion, wanted) == value


def test_a_schema_elsewhere_is_not_fetched() -> None:
    elsewhere = {"$ref": "http://127.0.0.1:9/schema.json"}
    with pytest.raises(Exception, match=r"127\.0\.0\.1") as error:
        valid_json({"fits": elsewhere, "column": None}, "{}", None)
    assert "Unresolvable" in repr(error.value)


@pytest.mark.parametrize(
    ("size", "within", "value"),
    [
        (100, 0, 1),
        (50, 0, 0.5),
        (150, 0, 0.5),
        (0, 0, 0),
        (900, 0, 0),
        (90, 10, 1),
        (45, 10, 0.5),
        (0, 10, 0),
        (200, 10, 0),
        (0, 100, 1),
        (250, 100, 0.5),
    ],
)
def test_length(size: int, within: int, value: float) -> None:
    assert length({"target": 100, "within": within}, "字" * size, None) == value


@pytest.mark.parametrize(
    ("completion", "block"),
    [
        ("a", "a"),
        ("```\na\n```", "a\n"),
        ("```python\na\n```\nor\n```py\nb\n```", "b\n"),
        ("```python\nnever closed", "```python\nnever closed"),
        ("x = '```'", "x = '```'"),
    ],
)
def test_the_last_block_counts(completion: str, block: str) -> None:
    assert last_block(completion) == block


@pytest.mark.parametrize("value", [1, 1.0, True, 0])
def test_numbers_are_values(value: Any) -> None:
    assert worker_main.outcome(value) == {"value": float(value)}


@pytest.mark.parametrize("value", ["1", float("nan"), float("inf"), [1], object(), 10**400])
def test_what_is_no_finite_number_is_a_problem(value: Any) -> None:
    assert worker_main.outcome(value)["problem"]["key"] == "no_number"


def test_one_completion_that_fails_does_not_stop_the_others() -> None:
    setup = {"kind": "valid_json", "options": {"fits": None, "column": "schema"}, "seconds": 5}
    rows: list[Any] = [{"schema": {}}, {"schema": "not JSON"}, {}, {"schema": {}}]
    found = list(worker_main.score_each(setup, [{"completion": "1", "row": row} for row in rows]))
    assert [one.get("value") for one in found] == [1, None, None, 1]
    assert [one.get("problem", {}).get("key") for one in found] == [None, "raised", "column", None]
