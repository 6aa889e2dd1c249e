"""The tokens of texts of any length: a long one is encoded in pieces, which gives the same tokens in less memory.

`tokenizers` holds 140 to 190 bytes for each character of the text that it encodes: half a GiB, or more, for a row of
four million. A text is cut behind a word if what stands around that place has the same tokens in one and in two; so a
tokenizer that puts something before every text, say, cuts where it does not show, or nowhere.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import models

LONGEST = 1 << 19
"""Characters that are encoded at once; of shorter pieces each costs as much again to begin with."""
_AROUND = 1 << 10
"""Characters on each side of a place that are compared."""
_TRIES = 16
"""Places that are tried for a cut; the rest of a text without one is encoded at once."""
_PLACE = re.compile(r"[\W_][^\W_]{1,32}(?=[\W_]{1,32}[^\W_])")
"""What stands before one: a whole word, and soon another one. How a long run falls apart may depend on its far end."""
_REPEATED = 64
"""What is repeated has no place either: how it falls apart may depend on where it begins."""


def ids(encoder: Any, texts: Sequence[str]) -> list[np.ndarray]:
    """The tokens of each text, by a `tokenizers.Tokenizer`; special ones are not added."""
    short = iter(_encoded(encoder, [text for text in texts if len(text) <= LONGEST]))
    return [
        next(short)
        if len(text) <= LONGEST
        else np.concatenate([part for piece in pieces(encoder, text) for part in _encoded(encoder, [piece])])
        for text in texts
    ]


def _encoded(encoder: Any, texts: list[str]) -> list[np.ndarray]:
    found = encoder.encode_batch_fast(texts, add_special_tokens=False)
    return [np.array(one.ids, dtype=np.int32) for one in found]


def pieces(encoder: Any, text: str) -> list[str]:
    """Parts of a text whose tokens, one after the other, are its own."""
    if isinstance(encoder.model, models.Unigram):  # compares sums of scores that are rounded from the first word on
        return [text]
    found, start = [], 0
    while len(text) - start > LONGEST and (end := _cut(encoder, text, start + LONGEST)):
        found.append(text[start:end])
        start = end
    return [*found, text[start:]]


def _cut(encoder: Any, text: str, first: int) -> int:
    """The first place to cut a text from here on; 0 where there is none."""
    for match in itertools.islice(_PLACE.finditer(text, first), _TRIES):
        at = match.end()
        left, right = text[max(0, at - _AROUND) : at], text[at : at + _AROUND]
        if left.find(left[-_REPEATED:]) == len(left) - _REPEATED and _fall_apart(encoder, left, right):
            return at
    return 0


def _fall_apart(encoder: Any, left: str, right: str) -> bool:
    """Whether two texts have the same tokens together as each for itself."""
    together, one, other = (found.tolist() for found in _encoded(encoder, [left + right, left, right]))
    return bool(together == one + other)
