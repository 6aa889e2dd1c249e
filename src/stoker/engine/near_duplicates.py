"""Rows that say nearly the same: pairs whose word pairs agree, found by MinHash and then compared one by one.

What stands in many rows is a template, and says nothing about whether two of them are alike; so rows are looked up by
their other word pairs, and both must agree: all of them, and those that are no template. Which pairs are compared is by
chance (signatures in bands: of pairs that share 70 %, all but one in 4,000); whether they agree is counted.
"""

import math
from collections.abc import Iterator

import numpy as np

from stoker.engine.row_facts import SKETCH

ALIKE = 0.7
"""Word pairs that two rows must have in common, of all that either has: a word in twenty may differ."""
ALIKE_BEYOND_TEMPLATE = 0.4
"""The same for what is no template."""
FEWEST_PAIRS = 6
"""Word pairs, templates aside, below which a row is too short to be like another one."""
MOST_PAIRS = 1 << 27
"""Word pairs of all rows together that are compared: half a GiB."""

_TEMPLATE_ROWS = 10
_BANDS, _BAND_ROWS = 20, 3
_NEIGHBOURS = 12
"""Rows with an equal band that each row is compared with: of a crowd, those whose next band is nearest."""
_ENOUGH = 32
"""Earlier rows found for a row, some of them repeatedly, after which it is compared with no more."""
_LIKELY = 0.3
"""Equal parts of two signatures from which on their word pairs are counted."""
_LAST_BITS = np.uint64(0xFFFF)
_CHUNK = 1 << 16
_LEAST_TABLE_BITS, _MOST_TABLE_BITS = 16, 24
_SEED = 42


def find(counts: np.ndarray, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of rows that are nearly the same, the earlier row first, in order; and how much each pair has in common.

    Args:
        counts: Word pairs of each row; a row with none is compared with nothing.
        pairs: Their hashes, row after row.
    """
    ends = np.cumsum(counts, dtype=np.int64)
    sets = _Sets(ends - counts, ends, pairs, _templates(pairs, int(np.count_nonzero(counts))))
    rows = np.flatnonzero(sets.own_counts() >= FEWEST_PAIRS)
    if len(rows) < 2:
        return np.empty((0, 2), dtype=np.int64), np.empty(0)
    signatures = _signatures(sets, rows)
    found: list[tuple[np.ndarray, np.ndarray]] = []
    earlier = np.zeros(len(rows), dtype=np.int64)
    for band in range(_BANDS):
        for near in _likely(signatures, band, np.flatnonzero(earlier < _ENOUGH)):
            alike, shares = sets.alike(np.sort(rows[near], axis=1))
            found.append((alike, shares))
            earlier += np.bincount(np.searchsorted(rows, alike[:, 1]), minlength=len(rows))
    every = np.concatenate([near for near, _ in found] or [np.empty((0, 2), dtype=np.int64)])
    unique, first = np.unique(every, axis=0, return_index=True)
    return unique, np.concatenate([np.empty(0), *(shares for _, shares in found)])[first]


def _templates(pairs: np.ndarray, rows: int) -> np.ndarray:
    """By the first bits of a hash: whether more rows have it than chance and copies explain."""
    bits = min(_MOST_TABLE_BITS, max(_LEAST_TABLE_BITS, len(pairs).bit_length() + 2))
    seen = np.zeros(1 << bits, dtype=np.int64)
    for start in range(0, len(pairs), 1 << 24):
        seen += np.bincount(pairs[start : start + (1 << 24)] >> np.uint32(32 - bits), minlength=len(seen))
    return seen > max(_TEMPLATE_ROWS, math.isqrt(rows))


class _Sets:
    """The word pairs of all rows."""

    def __init__(self, starts: np.ndarray, ends: np.ndarray, pairs: np.ndarray, templates: np.ndarray) -> None:
        self._starts = starts
        self._ends = ends
        self._pairs = pairs
        self._templates = templates
        self._shift = np.uint32(33 - len(templates).bit_length())

    def own_counts(self) -> np.ndarray:
        """How many of each row are no template."""
        counts = np.zeros(len(self._starts), dtype=np.int64)
        for first in range(0, len(counts), _CHUNK):
            rows = np.arange(first, min(first + _CHUNK, len(counts)))
            hashes, row = self._flat(rows)
            counts[rows] = np.bincount(row[~self._is_template(hashes)], minlength=len(rows))
        return counts

    def own(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The hashes of rows that are no template, and where each row's begin and end."""
        hashes, row = self._flat(rows)
        own = ~self._is_template(hashes)
        return hashes[own], np.concatenate([[0], np.cumsum(np.bincount(row[own], minlength=len(rows)))])

    def alike(self, near: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Those pairs of rows that agree in all that they say and in what is no template; and how far in all."""
        first, second = near[:, 0], near[:, 1]
        limit = np.minimum(self._complete_to(first), self._complete_to(second))
        (one, at_one), (other, at_other) = self._flat(first), self._flat(second)
        hashes, pair = np.concatenate([one, other]).astype(np.uint64), np.concatenate([at_one, at_other])
        known = hashes <= limit[pair]
        keys = np.sort((pair[known].astype(np.uint64) << np.uint64(32)) | hashes[known])
        both = np.zeros(len(keys), dtype=bool)
        both[1:] = keys[1:] == keys[:-1]
        own = ~self._is_template((keys & np.uint64(0xFFFFFFFF)).astype(np.uint32))
        pair = (keys >> np.uint64(32)).astype(np.int64)
        shares = _jaccard(pair, both, len(near))
        agree = (shares >= ALIKE) & (_jaccard(pair[own], both[own], len(near)) >= ALIKE_BEYOND_TEMPLATE)
        return near[agree], shares[agree]

    def _complete_to(self, rows: np.ndarray) -> np.ndarray:
        """The hash up to which a row's sketch has all there is."""
        full = self._ends[rows] - self._starts[rows] == SKETCH
        return np.where(full, self._pairs[np.maximum(self._ends[rows] - 1, 0)], 0xFFFFFFFF).astype(np.uint64)

    def _flat(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The hashes of some rows, and for each of them which row it is of."""
        counts = self._ends[rows] - self._starts[rows]
        row = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self._pairs[self._starts[rows][row] + within], row

    def _is_template(self, hashes: np.ndarray) -> np.ndarray:
        return self._templates[hashes >> self._shift]


def _jaccard(pair: np.ndarray, both: np.ndarray, count: int) -> np.ndarray:
    """What two sets share of what either has, by the sorted elements of both."""
    shared = np.bincount(pair[both], minlength=count)
    either = np.bincount(pair, minlength=count) - shared
    return shared / np.maximum(either, 1)


def _signatures(sets: _Sets, rows: np.ndarray) -> np.ndarray:
    """The MinHash signature of each row: the smallest of its hashes under each of some permutations."""
    random = np.random.default_rng(_SEED).integers(1 << 32, size=(_BANDS * _BAND_ROWS, 2), dtype=np.uint32)
    made = np.empty((len(rows), len(random)), dtype=np.uint32)
    for first in range(0, len(rows), _CHUNK):
        hashes, offsets = sets.own(rows[first : first + _CHUNK])
        for number, (mask, factor) in enumerate(random):
            permuted = (hashes ^ mask) * (factor | np.uint32(1))
            made[first : first + _CHUNK, number] = np.minimum.reduceat(permuted, offsets[:-1])
    return made


def _likely(signatures: np.ndarray, band: int, rows: np.ndarray) -> Iterator[np.ndarray]:
    """Pairs of the rows with an equal band whose signatures agree often enough, some thousands at a time.

    Each row is compared with the first one of its crowd, so that all of them find the row that stays, and with the
    nearest by the next band.
    """
    own, following = (_band(signatures[rows], one % _BANDS) for one in (band, band + 1))
    keys = (own & ~_LAST_BITS) | (following & _LAST_BITS)
    order = np.argsort(keys)
    ordered, order = keys[order] & ~_LAST_BITS, rows[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))[: len(rows)]
    firsts = np.repeat(np.minimum.reduceat(order, starts), np.diff([*starts, len(order)])) if len(rows) else order
    yield from _agreeing(signatures, firsts[firsts != order], order[firsts != order])
    for distance in range(1, min(_NEIGHBOURS, len(order) - 1) + 1):
        at = np.flatnonzero(ordered[distance:] == ordered[:-distance])
        if not len(at):
            break
        yield from _agreeing(signatures, order[at], order[at + distance])


def _agreeing(signatures: np.ndarray, one: np.ndarray, other: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(one), _CHUNK):
        near = np.stack([one[start : start + _CHUNK], other[start : start + _CHUNK]], axis=1)
        equal = (signatures[near[:, 0]] == signatures[near[:, 1]]).mean(axis=1)
        yield near[equal >= _LIKELY]


def _band(signatures: np.ndarray, band: int) -> np.ndarray:
    part = signatures[:, band * _BAND_ROWS : (band + 1) * _BAND_ROWS].astype(np.uint64)
    factors = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], dtype=np.uint64)
    mixed: np.ndarray = (part * factors).sum(axis=1, dtype=np.uint64) * factors[0]
    return mixed
