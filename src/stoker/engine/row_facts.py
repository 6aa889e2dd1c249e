"""What the survey keeps of a row: digests of its text, prompt and answer, its script, and a sketch of its word pairs.

Any process computes it, in any order; it depends on nothing but the row. Words are compared without case and sentence
marks; signs that mean something in mathematics and code stay. Where no spaces are written, a character is a word.
"""

import functools
import hashlib
import itertools
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stoker.engine.tokenise import Rows
from stoker.rows import formats, row_files, token_rates
from stoker.rows.formats import Document, Judged, Pair, Preference, Text
from stoker.rows.prompt_rows import PromptRow
from stoker.rows.row_values import BadRow
from stoker.rows.turns import Conversation

SKETCH = 128
"""Word pairs kept of a row: all of them, or of a longer row those with the smallest hashes."""
NO_SCRIPT = "-"
"""The script of a row without letters."""
SCRIPTS = (NO_SCRIPT, "latin", *(name for name in token_rates.SCRIPTS if name != "wide"))

_SIGNS = r"[-+*/<>=%^&|~]|[!.#$\\_(\[{](?=[a-z0-9_(\[{!=])|(?<=[a-z0-9])#+"
"""What means something between words: operators, and what code has in front of a name; ends of sentences do not."""
_MARKS = "\u0300-\u036f\u0590-\u1fff\u20a0-\u2bff\U0001f000-\U0001faff"
"""Vowels that are written as marks, and pictures."""
_SPACELESS = "".join(token_rates.SCRIPTS[name] for name in ("han", "kana", "hangul", "thai"))
_ASCII_WORDS = re.compile(rf"[a-z0-9]+|{_SIGNS}".encode())
_WORDS = re.compile(rf"[{_SPACELESS}]|(?:[^\W_{_SPACELESS}]|[{_MARKS}])+|{_SIGNS}")
_LETTER = re.compile("[A-Za-z]")
_CHARACTER_WEIGHT = 3
"""A character of a script without spaces says about as much as this many letters."""
_JAPANESE = 0.1
"""Share of kana from which han characters are Japanese."""
_FACTOR, _MIXER = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_GONE, _TEXT, _ANSWERED = 0, 1, 2


@dataclass(frozen=True)
class RowFacts:
    """Facts of some rows, in their order: one entry of each array per row, but for the sketches."""

    numbers: np.ndarray
    """As places name them: by line, or by record."""
    kinds: np.ndarray
    """0 for a row that cannot be used or is too long to compare, 1 for text, 2 for a prompt with its answer."""
    exact: np.ndarray
    words: np.ndarray
    prompts: np.ndarray
    answers: np.ndarray
    """Digests of the text as it is, and of the words of all of it, of the prompt and of the answer; 0 is none."""
    scripts: np.ndarray
    """Indices of `SCRIPTS`."""
    lengths: np.ndarray
    answer_lengths: np.ndarray
    """Words of all of it, and of the answer."""
    counts: np.ndarray
    """Word pairs in each sketch."""
    pairs: np.ndarray
    """Hashes of the sketches, one after the other, each in rising order."""
    records: bool
    """Whether rows are numbered by records."""

    @property
    def has_answer(self) -> np.ndarray:
        """Rows that are a prompt with its answer."""
        return self.kinds == _ANSWERED

    @property
    def is_usable(self) -> np.ndarray:
        """Rows that are compared."""
        return self.kinds != _GONE


def joined(parts: Sequence[RowFacts]) -> RowFacts:
    """The facts of all rows."""
    names = [name for name in RowFacts.__dataclass_fields__ if name != "records"]
    return RowFacts(**{name: np.concatenate([getattr(one, name) for one in parts]) for name in names}, records=False)


class Surveyor:
    """Makes the facts of rows."""

    def __init__(self, *, has_template: bool) -> None:
        self._has_template = has_template

    def __call__(self, given: Rows) -> RowFacts:
        """The facts of some rows of one file; of running text only its first block is given, for one row."""
        rows = list(row_files.values(given.rows))
        documents = [formats.document(value, given.layout, has_template=self._has_template) for _, value in rows]
        made = [_facts(one) for one in documents]
        digests = np.array([one.digests for one in made], dtype=np.uint64).reshape(-1, 3)
        kinds = np.array([one.kind for one in made], dtype=np.uint8)
        answered = (kinds == _ANSWERED).astype(np.uint64)
        counts, pairs = _sketches([one.words for one in made])
        return RowFacts(
            numbers=np.array([number for number, _ in rows], dtype=np.uint32),
            kinds=kinds,
            exact=digests[:, 0],
            # A row without a word is like another one only where it is the same.
            words=np.where([bool(one.words) for one in made], digests[:, 1] * _FACTOR ^ digests[:, 2], digests[:, 0]),
            prompts=digests[:, 1] * answered,
            answers=digests[:, 2] * answered,
            scripts=np.array([one.script for one in made], dtype=np.uint8),
            lengths=np.array([len(one.words) for one in made], dtype=np.uint32),
            answer_lengths=np.array([one.answer_words for one in made], dtype=np.uint32),
            counts=counts,
            pairs=pairs,
            records=bool(rows) and isinstance(rows[0][0], row_files.Record),
        )


@dataclass(frozen=True)
class _OneRow:
    kind: int
    digests: tuple[int, int, int]
    """Of the text as it is, and of the words of prompt and answer."""
    words: list[bytes]
    answer_words: int
    script: int


def _facts(document: Document | BadRow) -> _OneRow:
    if isinstance(document, BadRow) or (isinstance(document, Text) and not (document.opens and document.closes)):
        return _OneRow(_GONE, (0, 0, 0), [], 0, 0)
    prompt, answer, exact = _parts(document)
    tools = str(document.tools) if isinstance(document, Conversation) and document.tools else ""
    asked, said = words(prompt) + words(tools), words(answer)
    digests = (_digest(exact.encode()), _digest(b" ".join(asked)), _digest(b" ".join(said)))
    kind = _ANSWERED if isinstance(document, Pair | Conversation) else _TEXT
    main = script(f"{prompt}\n{answer}" if prompt else answer)
    return _OneRow(kind, digests, asked + said, len(said), main)


def _parts(document: Document) -> tuple[str, str, str]:
    """Prompt, answer, and the whole as it must be equal: the answer begins with the assistant's last turn."""
    if isinstance(document, Text):
        return "", document.text, document.text
    if isinstance(document, PromptRow):  # as what it asks
        asked = "\n".join(formats.words(document))
        return "", asked, asked
    if isinstance(document, Preference):  # a prompt with several pairs contradicts nothing
        both = [_parts(answer) for answer in (document.chosen, document.rejected)]
        return "", "\n".join(f"{prompt}\n{answer}" for prompt, answer, _ in both), "\2".join(part[2] for part in both)
    if isinstance(document, Judged):  # nor does one with several judged answers
        prompt, answer, exact = _parts(document.answer)
        return "", f"{prompt}\n{answer}", f"{exact}\2{document.good}"
    if isinstance(document, Pair):
        return document.prompt, document.completion, f"{document.prompt}\0{document.completion}"
    said = [_said(document, number) for number in range(len(document.turns))]
    last = max(number for number, turn in enumerate(document.turns) if turn.role == "assistant")
    exact = "\0".join(f"{turn.role}\1{text}" for turn, text in zip(document.turns, said, strict=True))
    tools = f"\0{document.tools}" if document.tools else ""
    return "\n".join(said[:last]), "\n".join(said[last:]), exact + tools


def _said(document: Conversation, number: int) -> str:
    """All that is said, thought and called in a turn."""
    turn = document.turns[number]
    if not (turn.inline or turn.thinking or turn.calls):
        return turn.content
    calls = [f"{call.name} {call.written}" for call in turn.calls]
    return "\n".join([turn.inline] if turn.inline else [turn.thinking, turn.content, *calls])


def _digest(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") or 1


def words(text: str) -> list[bytes]:
    """The words of a text, in order, without case and sentence marks."""
    if text.isascii():
        return _ASCII_WORDS.findall(text.lower().encode())
    return [word.encode() for word in _WORDS.findall(text.lower())]


# ---- scripts


def script(text: str) -> int:
    """The script that most of a text is in, as an index of `SCRIPTS`."""
    if text.isascii():
        return 1 if _LETTER.search(text) else 0
    table, weights = _script_table()
    codes = np.frombuffer(text.encode("utf-32-le", "replace"), dtype="<u4")
    counts = np.bincount(table[np.minimum(codes, len(table) - 1)], minlength=len(SCRIPTS)) * weights
    han, kana = SCRIPTS.index("han"), SCRIPTS.index("kana")
    if counts[kana] >= _JAPANESE * (counts[han] + counts[kana]):
        counts[kana] += counts[han]
        counts[han] = 0
    counts[0] = 0
    return int(counts.argmax()) if counts.any() else 0


@functools.cache
def _script_table() -> tuple[np.ndarray, np.ndarray]:
    """The script of every character up to 65,535, the first that claims it; and what a character of each weighs."""
    table = np.zeros(1 << 16, dtype=np.uint8)
    for number, name in enumerate(SCRIPTS):
        ranges = "A-Za-zÀ-ÖØ-öø-ɏḀ-ỿ" if name == "latin" else token_rates.SCRIPTS.get(name, "")
        for first, last in re.findall("(.)-(.)", ranges):
            free = np.flatnonzero(table[ord(first) : ord(last) + 1] == 0) + ord(first)
            table[free] = number
    weights = [_CHARACTER_WEIGHT if name in ("han", "kana", "hangul") else 1 for name in SCRIPTS]
    return table, np.array(weights)


# ---- word pairs


def _sketches(rows: Sequence[list[bytes]]) -> tuple[np.ndarray, np.ndarray]:
    """The distinct word pairs of each row: how many are kept, and their hashes."""
    lengths = np.array([len(one) for one in rows], dtype=np.int64)
    flat = np.fromiter(map(zlib.crc32, itertools.chain.from_iterable(rows)), np.uint64, int(lengths.sum()))
    row = np.repeat(np.arange(len(rows), dtype=np.uint64), lengths)
    hashes = ((flat[:-1] * _FACTOR + flat[1:]) * _MIXER) >> np.uint64(32)
    keys = np.sort(((row[:-1] << np.uint64(32)) | hashes)[row[:-1] == row[1:]])
    distinct = np.ones(len(keys), dtype=bool)
    distinct[1:] = keys[1:] != keys[:-1]
    keys = keys[distinct]
    counts = np.bincount((keys >> np.uint64(32)).astype(np.int64), minlength=len(rows))
    kept = np.arange(len(keys)) - np.repeat(np.cumsum(counts) - counts, counts) < SKETCH
    return np.minimum(counts, SKETCH).astype(np.uint8), keys[kept].astype(np.uint32)
