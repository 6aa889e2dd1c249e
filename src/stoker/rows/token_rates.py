"""How many tokens a text becomes, without its tokenizer: rates by script, fitted on real vocabularies and texts.

`benchmarks/token_rates.py` fits them (`data/token_rates.json`). A vocabulary
is known by the size and family of the models it is used with; another one gets the rates of the nearest in size, and a
wider interval.
"""

import functools
import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from typing import Any

_PATTERNS = {
    "word": r"[A-Za-zÀ-ɏḀ-ỿ]+",
    "accent": r"[À-ɏḀ-ỿ\u0300-\u036f]+",
    "capital": r"[A-Z]+",
    "digit": r"[0-9]+",
    "number": r"[0-9]+",
    "mark": r"[!-/:-@\[-`{-~]+",
    "marks": r"[!-/:-@\[-`{-~]+",
    "line": r"\n+",
    "indent": r"[ \t]{2,}|\t",
}
"""What is counted in any text: runs, and of `_BY_CHARACTER` their characters."""
_BY_CHARACTER = ("accent", "capital", "digit", "mark")
_WORDS_ELSEWHERE = {"cyrillic": "Ѐ-ԯ", "greek": "Ͱ-Ͽἀ-῿", "hebrew": "֐-׿", "arabic": "؀-ۿݐ-ݿࢠ-ࣿ"}
SCRIPTS = {
    **_WORDS_ELSEWHERE,
    "devanagari": "ऀ-ॿ",
    "indic": "ঀ-෿",
    "thai": "฀-๿",
    "hangul": "ᄀ-ᇿ㄰-㆏가-힣",
    "kana": "぀-ヿ",
    "han": "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff",
    "wide": "\u3000-〿＀-￯‐-…",
}
"""Characters of other scripts; of `wide`, marks that CJK text uses."""
_COUNTS = {name: re.compile(pattern) for name, pattern in _PATTERNS.items()}
_OTHERS = {name: re.compile(f"[{characters}]+") for name, characters in SCRIPTS.items()}
_BEYOND_ASCII, _ASCII_LETTERS = re.compile(r"[^\x00-\x7f]+"), re.compile("[A-Za-z]+")
_COMMON = re.compile(
    r"\b(?:the|of|and|to|in|is|a|that|it|for|you|be|with|as|are|on|this|by|or|not|an|if|can|from|at|which|will|have)\b",
    re.IGNORECASE,
)
"""English function words: where they are rare, words are another language's."""
_COMMON_IN_ENGLISH = 0.30
_MARKS_IN_CODE = 0.25
"""Function words of words, and marks of letters, from which words are English: identifiers are, too."""


Counts = Counter[str]


@dataclass(frozen=True)
class TokenRates:
    """Tokens of one vocabulary per unit of each feature."""

    name: str
    """The vocabulary; of one that is not known, the nearest in size."""
    known: bool
    rates: dict[str, float]
    interval: tuple[float, float]
    """Counted over estimated tokens: nine in ten texts that were left out of the fit lie between."""
    template: dict[str, float]
    """Tokens a chat template adds: to a `message`, to a `conversation` without a system message, for `tools`."""

    def tokens(self, counted: Counts, english: float) -> float:
        """Tokens of a text, by the share of its words that are English."""
        return math.fsum(self.rates[name] * amount for name, amount in features(counted, english).items())


def of(family: str, vocab: int) -> TokenRates:
    """The rates of a model's vocabulary, by the family and the rows of its embedding table."""
    stored = _stored()
    rows = stored["vocabularies"]
    found = [
        name
        for name, row in rows.items()
        if row["sizes"][0] <= vocab <= row["sizes"][1] and family.startswith(tuple(row["families"]))
    ]
    name = found[0] if found else nearest(vocab, {name: row["sizes"][0] for name, row in rows.items()})
    low, high = stored["intervals"]["known" if found else "unknown"]
    return TokenRates(name, bool(found), rows[name]["rates"], (low, high), rows[name]["template"])


def nearest(vocab: int, sizes: dict[str, int]) -> str:
    """The vocabulary whose size is nearest, by their ratio."""
    return min(sizes, key=lambda name: abs(math.log(sizes[name] / max(1, vocab))))


def count(text: str) -> Counts:
    """What is in a text: words, letters, marks, digits, characters by script."""
    runs = {name: pattern.findall(text) for name, pattern in _COUNTS.items()}
    counted = Counter({name: _characters(runs[name]) if name in _BY_CHARACTER else len(runs[name]) for name in runs})
    counted["letter"] = _characters(runs["word"])
    counted["common"] = len(_COMMON.findall(text))
    if text.isascii():
        return counted
    other = _characters(_BEYOND_ASCII.findall(text)) - (counted["letter"] - _characters(_ASCII_LETTERS.findall(text)))
    for name, pattern in _OTHERS.items():
        found = pattern.findall(text)
        counted[name] = _characters(found)
        counted[f"{name}_word"] = len(found)
        other -= counted[name]
    counted["other"] = max(0, other)
    return counted


def _characters(runs: list[str]) -> int:
    return sum(map(len, runs))


def english_share(counted: Counts) -> float:
    """How much of the words is English, or identifiers, between 0 and 1."""
    prose = counted["common"] / max(1, counted["word"]) / _COMMON_IN_ENGLISH
    code = counted["mark"] / max(1, counted["letter"]) / _MARKS_IN_CODE
    return min(1.0, max(prose, code if not counted["accent"] else 0.0))


def features(counted: Counts, english: float) -> dict[str, float]:
    """What tokens are a sum of."""
    split = ("word", "letter")
    parts = {f"english_{name}": counted[name] * english for name in split}
    parts |= {f"foreign_{name}": counted[name] * (1 - english) for name in split}
    rest = (*_PATTERNS, *SCRIPTS, *(f"{name}_word" for name in _WORDS_ELSEWHERE), "other")
    return parts | {name: counted[name] for name in rest if name not in split}


@functools.cache
def _stored() -> dict[str, Any]:
    text = resources.files("stoker.facts").joinpath("data/token_rates.json").read_text(encoding="utf-8")
    return dict(json.loads(text))
