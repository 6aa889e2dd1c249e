"""YAML's complaints in our words, in both languages."""

import pytest

from stoker.config import reader
from stoker.errors import StokerError, StokerErrors
from stoker.messages.en import ENGLISH

BROKEN = {
    "yaml.quote": "a: 'x\nb: 1",
    "yaml.bracket": "a: {b: 1",
    "yaml.escape": 'a: "\\d"',
    "yaml.tab": "a: b\n\tc: d",
    "yaml.character": "a: @x",
    "yaml.reference": "a: *.jsonl",
    "yaml.colon": "a: b: c",
    "yaml.dash": "a: - b",
    "yaml.after_quote": 'a: "b" c',
    "yaml.indent": "a:\n  - x\n y: 2",
    "yaml.no_colon": "a: >\nb",
    "yaml.document": "x: 1\n---\ny: 1",
    "yaml.control": "a: \x07",
    "yaml.deep": "[" * 99,
    "yaml.number": "a: 1\nb: " + "9" * 5000,
    "yaml.key": "? [a]\n: 1",
    "yaml.space": "a:1\nb: 2",
    "yaml.space_character": "a: 1\n\u00a0b: 2",
    "yaml.full_width": "a：1\nb: 2",
    "yaml.full_width_inside": "a: {b：1}",
}


def sentence(text: str) -> str:
    with pytest.raises((StokerError, StokerErrors)) as caught:
        reader.parse(text, "f")
    first = caught.value.errors[0] if isinstance(caught.value, StokerErrors) else caught.value
    return str(first.fields["problem"])


@pytest.mark.parametrize("key", BROKEN)
def test_a_mistake_is_said_in_our_words(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", "en")
    start = ENGLISH[key].partition("{")[0].partition("`")[0]
    assert sentence(BROKEN[key]).startswith(start)
    monkeypatch.setenv("STOKER_LANG", "zh")
    assert any("\u4e00" <= letter <= "\u9fff" for letter in sentence(BROKEN[key]))


def test_every_sentence_about_yaml_is_met() -> None:
    assert set(BROKEN) == {key for key in ENGLISH if key.startswith("yaml.")}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb:2\nc: 3\n", 2),
        ("a: 1\nb: {c：2, d: 3}\n", 2),
        ("a: 1\nb: {c: x，d：3}\n", 2),
        ("a: [\n  x，y]\n", 2),
        ("a: 1\n# b：2\nc: 'x\n", 3),
        ("a: '你好：世界'\nb: c: d\n", 2),
        ("a: {b: 1\nc: 2\nd: 3\n", 1),
        ("a: 1\nb: \"x\nc: 2\n", 2),
        ("a: http://x\nb: c: d\n", 2),
    ],
)  # fmt: skip
def test_the_line_is_the_one_on_which_the_mistake_was_made(text: str, line: int) -> None:
    with pytest.raises(StokerError) as caught:
        reader.parse(text, "f")
    assert caught.value.where == f"f:{line}"


def test_full_width_text_that_is_quoted_or_outside_of_braces_is_text() -> None:
    text = "a: 你好，世界\nb: {c: '问：答', d: [\"一，二\"]}\n"
    assert reader.parse(text, "f").values == {"a": "你好，世界", "b": {"c": "问：答", "d": ["一，二"]}}
