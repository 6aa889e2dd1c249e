"""What a program reads of an error: its place taken apart, and what may stand there instead."""

import pytest

from stoker.errors import ClosestNames, StokerError, closest


@pytest.mark.parametrize(
    ("where", "file", "line", "key"),
    [
        ("run.yaml:7: train.epohcs", "run.yaml", 7, "train.epohcs"),
        (r"C:\data\run.yaml:7: data.train[0].path", r"C:\data\run.yaml", 7, "data.train[0].path"),
        ("data/train.jsonl:12", "data/train.jsonl", 12, None),
        ("train.json", "train.json", None, None),
        ("--card", None, None, "--card"),
        ("--set train.epohcs", None, None, "train.epohcs"),
        ("budget.money", None, None, "budget.money"),
        ("native.shelf.colour (stoker-shelf 1.0)", None, None, "native.shelf.colour"),
        ("", None, None, None),
    ],
)
def test_a_place_is_taken_apart(where: str, file: str | None, line: int | None, key: str | None) -> None:
    found = StokerError("STK120", where).as_dict()
    assert (found["file"], found["line"], found["key"]) == (file, line, key)


def test_choices_are_names_closest_first_and_once() -> None:
    error = StokerError(
        "STK108",
        "a",
        given="`cosin`",
        choices=["`linear`", "`cosine` (the default)"],
        nearest=closest("cosin", ["cosine"]),
    )
    assert error.choices == ["cosine", "linear"]
    assert "closest: `cosine`; " in error.hint
    assert error.to_json()["fields"]["nearest"] == "closest: `cosine`; "


def test_a_sentence_is_no_choice() -> None:
    assert StokerError("STK720", name="box", known="-").choices == []
    assert StokerError("STK104", "a", key="b", nearest="remove it").choices == []
    assert ClosestNames([]) == ""


def test_a_value_in_plain_characters_is_the_choice() -> None:
    assert StokerError("STK155", "a", given="`８`", plain="8").choices == ["8"]
