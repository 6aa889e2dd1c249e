"""What a text is counted as, by script."""

import itertools
import re

import pytest

from stoker.rows import token_rates

TEXTS = {
    "han": "炉火不熄，列车不停",
    "hangul": "기차는 멈추지 않고 불은 꺼지지 않는다",
    "kana": "きかんしゃはとまらない",
    "cyrillic": "поезд идёт",
    "thai": "รถไฟไม่หยุด",
}


@pytest.mark.parametrize("script", TEXTS)
def test_a_text_of_one_script_is_counted_as_no_other(script: str) -> None:
    counted = token_rates.count(TEXTS[script])
    found = {name for name in token_rates.SCRIPTS if counted[name]} - {"wide"}
    assert found == {script}
    assert counted["other"] == 0


def test_no_character_is_of_two_scripts() -> None:
    of = {name: re.compile(f"[{characters}]") for name, characters in token_rates.SCRIPTS.items()}
    found = {name: {code for code in range(0x10000) if pattern.match(chr(code))} for name, pattern in of.items()}
    for one, other in itertools.combinations(found, 2):
        assert not found[one] & found[other], (one, other)


def test_compatibility_ideographs_are_han() -> None:
    assert token_rates.count("\uf900\ufa6d")["han"] == 2


@pytest.mark.parametrize("family", ["qwen2", "llama", "gemma3", "gpt2"])
def test_korean_is_not_estimated_as_a_fraction_of_chinese(family: str) -> None:
    """A syllable of Hangul is a character of its own in every vocabulary, as one of Han is."""
    for vocab in (32_000, 128_256, 151_936, 262_144):
        rates = token_rates.of(family, vocab).rates
        assert rates["hangul"] > rates["han"] / 2
