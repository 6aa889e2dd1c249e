"""The YAML reader: 1.2 semantics, lines, and what it refuses."""

import gzip
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stoker.config import reader
from stoker.errors import StokerError, StokerErrors


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("2E5", 2e5),
        ("-1.5e+3", -1500.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("12", 12),
        ("+12", 12),
        ("-7", -7),
        ("012", 12),
        ("0o17", 15),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2026-11-01", "2026-11-01"),
        ("true", True),
        ("True", True),
        ("FALSE", False),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("null", None),
        ("~", None),
        ("", None),
        ("none", "none"),
        ("2%", "2%"),
        ("0,2", "0,2"),
        ("1e", "1e"),
        ("e5", "e5"),
        (".", "."),
        ("-", "-"),
        ("0x", "0x"),
        ("0b1", "0b1"),
    ],
)
def test_a_plain_scalar_follows_yaml_1_2(text: str, value: Any) -> None:
    found = reader.scalar(text)
    assert found == value
    assert type(found) is type(value)


def test_the_special_numbers() -> None:
    assert reader.scalar(".inf") == math.inf
    assert reader.scalar("-.INF") == -math.inf
    assert math.isnan(reader.scalar(".nan"))


@pytest.mark.parametrize("text", ["'1e-4'", '"1e-4"'])
def test_what_stands_in_quotes_is_text(text: str) -> None:
    assert reader.parse(f"a: {text}", "f").values == {"a": "1e-4"}


def test_keys_are_text_whatever_they_look_like() -> None:
    assert reader.parse("1: a\ntrue: b\nnull: c\n'x': d", "f").values == {"1": "a", "true": "b", "null": "c", "x": "d"}


@settings(deadline=None)
@given(st.integers(-(2**64), 2**64) | st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_that_python_writes_is_read_back(number: float) -> None:
    assert reader.scalar(repr(number)) == number


@settings(deadline=None)
@given(st.text())
@example("2" + "0" * 19)
def test_any_scalar_is_read_as_something(text: str) -> None:
    try:
        assert isinstance(reader.scalar(text), str | int | float | bool | None)
    except OverflowError:  # a number that no key can mean
        assert len(text) > 3
        assert set(text.lower()) <= set("0123456789abcdefox+-.")


NESTED = """\
# a comment
model: m
data:
  train:
    - path: a
      weight: 2

    - path: b
  eval: 2%
tune: {method: lora,
  rank: 8}
"""


def test_every_key_and_list_item_has_its_line() -> None:
    document = reader.parse(NESTED, "run.yaml")
    assert document.lines == {
        (): 2,
        ("model",): 2,
        ("data",): 3,
        ("data", "train"): 4,
        ("data", "train", 0): 5,
        ("data", "train", 0, "path"): 5,
        ("data", "train", 0, "weight"): 6,
        ("data", "train", 1): 8,
        ("data", "train", 1, "path"): 8,
        ("data", "eval"): 9,
        ("tune",): 10,
        ("tune", "method"): 10,
        ("tune", "rank"): 11,
    }


@pytest.mark.parametrize(
    ("path", "where"),
    [
        (("data", "train", 1, "path"), "run.yaml:8: data.train[1].path"),
        (("data", "train", 1, "missing"), "run.yaml:8: data.train[1].missing"),
        (("train", "epochs"), "run.yaml:2: train.epochs"),
        ((), "run.yaml:2"),
    ],
)
def test_a_place_is_the_key_or_its_nearest_parent(path: reader.KeyPath, where: str) -> None:
    assert reader.parse(NESTED, "run.yaml").where(path) == where


def test_nothing_is_an_empty_mapping() -> None:
    assert reader.parse("", "f").values == {}
    assert reader.parse("# x\n", "f").values == {}


def test_all_duplicate_keys_are_named_at_once() -> None:
    with pytest.raises(StokerErrors) as caught:
        reader.parse("a: 1\nb: {c: 1, c: 2}\na: 2\n", "f")
    assert [(e.code, e.where, e.fields["first"]) for e in caught.value.errors] == [
        ("STK103", "f:2: b.c", 2),
        ("STK103", "f:3: a", 1),
    ]


@pytest.mark.parametrize("text", ["a: &x 1", "a: !!str 1", "a: !x {b: 1}", "a: [&x 1, *x]", "a: &x [*x]", "<<: *x"])
def test_anchors_aliases_and_tags_are_refused(text: str) -> None:
    with pytest.raises(StokerErrors) as caught:
        reader.parse(text, "f")
    assert {e.code for e in caught.value.errors} == {"STK114"}


def test_a_small_file_cannot_expand_without_bound() -> None:
    bomb = "a: &a [x, x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20)
    )
    with pytest.raises(StokerErrors):
        reader.parse(bomb, "f")


def test_nesting_is_bounded() -> None:
    assert reader.parse("[" * 20 + "]" * 20, "f").values
    with pytest.raises(StokerError) as caught:
        reader.parse("[" * 5000, "f")
    assert caught.value.code == "STK102"


HUGE = ["9" * 5000, "-" + "9" * 5000, "0x" + "f" * 5000, "0o" + "7" * 5000, "1e999", "-1e999", "9" * 400 + ".0"]


@pytest.mark.parametrize("number", HUGE, ids=[one[:4] + one[-3:] for one in HUGE])
def test_a_number_beyond_all_numbers_is_named(number: str) -> None:
    with pytest.raises(StokerError) as caught:
        reader.parse(f"a: 1\nb: {number}\nc: {number}\n", "f")
    assert [(one.code, one.where) for one in caught.value.errors] == [("STK102", "f:2: b"), ("STK102", "f:3: c")]
    assert "too large" in caught.value.what
    assert len(caught.value.what) < 200


@pytest.mark.parametrize("name", ["我的 数据/训练 (1).jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize(("codec", "bom"), [("gbk", ""), ("utf-16-le", "\ufeff")])
def test_the_line_that_converts_a_file_does_so_from_where_it_is_typed(
    name: str, codec: str, bom: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = f"{bom}列车".encode(codec)
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    advice = reader.encoding_advice(content[:2], tmp_path / name, among_others=True)
    subprocess.run(["bash", "-c", advice.split("`")[1]], check=True, cwd=tmp_path)
    (new,) = (path for path in tmp_path.rglob("*-utf8*"))
    made = new.read_bytes()
    assert (gzip.decompress(made) if name.endswith(".gz") else made).decode("utf-8-sig") == "列车"
    assert new.name.endswith(".jsonl.gz" if name.endswith(".gz") else ".jsonl")
    assert f"move `{name}` out of the folder" in advice


def test_line_ends_and_byte_order_marks_of_windows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert reader.read_text(path) == "a: 1\nb: 2\n"


def problems(text: str) -> list[StokerError]:
    try:
        reader.parse(text, "f")
    except StokerError as error:
        return [error]
    except StokerErrors as several:
        return several.errors
    return []


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_in_our_words(text: str) -> None:
    assert {error.code for error in problems(text)} <= {"STK102", "STK103", "STK114"}
    assert all(error.where.startswith("f:") and error.what for error in problems(text))


@settings(deadline=None)
@given(st.text(alphabet="ab:-{}[],'\"&*!#|>%@` \n\t\\?~", max_size=40))
def test_any_yaml_like_text_is_read_or_refused_in_our_words(text: str) -> None:
    assert {error.code for error in problems(text)} <= {"STK102", "STK103", "STK114"}
