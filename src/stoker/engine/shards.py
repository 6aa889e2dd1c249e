"""Writes one split of the prepared set, shard by shard, in the format of `rundir.prepared`.

Segments are gathered up to a bound, packed, and written as one shard: aside first, then renamed, so that a shard that
is there is whole.
"""

import hashlib
import itertools
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stoker.rows import packing
from stoker.rundir import files, prepared
from stoker.rundir.prepared import SourceCount, Split

COLUMNS_NAME = "columns.jsonl"
"""Of prompts: what each row asks, and its columns."""
_WRITE_TOKENS = 1 << 20
"""Tokens that are copied at a time: beside a shard that is written there is no second one in memory."""


class ShardWriter:
    """Collects the segments of a split and writes them as shards."""

    def __init__(
        self, data: Path, split: str, length: int, done: list[dict[str, Any]], *, pack: bool, together: int = 1
    ) -> None:
        self._data = data
        self._split = split
        self._length = length
        self._pack = pack
        self._together = together
        self._segments: list[np.ndarray] = []
        self._undesired: list[bool] = []
        self._columns: list[str] = []
        self.pending_tokens = 0
        self.done = done
        """Facts of each finished shard."""

    @property
    def num_segments(self) -> int:
        """Segments so far, finished shards included."""
        return sum(shard["segments"] for shard in self.done) + len(self._segments)

    @property
    def num_tokens(self) -> int:
        """Tokens so far, finished shards included."""
        return sum(shard["tokens"] for shard in self.done) + self.pending_tokens

    def add(self, segment: np.ndarray, columns: str = "", *, undesired: bool = False) -> None:
        """Add one segment, whose first token is untrained.

        Args:
            segment: Token ids, `~id` where untrained.
            columns: Of a prompt, those of its row.
            undesired: Its answer is judged to be a bad one.
        """
        assert 0 < len(segment) <= self._length
        assert segment[0] < 0
        self._segments.append(segment)
        self._undesired.append(undesired)
        self._columns += [columns] if columns else []
        self.pending_tokens += len(segment)

    def flush(self) -> None:
        """Pack the collected segments and write them as one shard."""
        if not self._segments:
            return
        name = prepared.shard_name(len(self.done))
        folder = self._data / self._split
        aside = folder / f".{name}.tmp"
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(folder / name, ignore_errors=True)
        aside.mkdir(parents=True)
        known = self._write(aside)
        aside.rename(folder / name)
        files.sync_folder(folder)
        self.done.append({"name": name, **known})
        self._segments, self._undesired, self._columns, self.pending_tokens = [], [], [], 0

    def _write(self, folder: Path) -> dict[str, Any]:
        lengths = np.array([len(segment) for segment in self._segments], dtype=np.int64)
        order, rows = _packed(lengths, self._length) if self._pack else _by_row(lengths, self._together)
        segments = np.concatenate([[0], np.cumsum(lengths[order])])
        trained = np.array([np.count_nonzero(segment >= 0) for segment in self._segments], dtype=np.int64)[order]
        row_trained = np.add.reduceat(trained, rows[:-1])
        row_trained = np.where(np.array(self._undesired)[order][rows[:-1]], ~row_trained, row_trained)
        row_tokens = np.add.reduceat(lengths[order], rows[:-1])
        if self._together > 1:  # they are rows of one micro batch, padded alike
            row_tokens = self._together * np.maximum.reduceat(lengths[order], rows[:-1])
        edges = [0, *(np.flatnonzero(np.diff(segments // _WRITE_TOKENS)) + 1).tolist(), len(order)]
        chunks = (
            np.concatenate([self._segments[segment] for segment in order[start:end]])
            for start, end in itertools.pairwise(edges)
            if start < end
        )
        arrays: dict[str, Iterable[Any]] = {
            "tokens.bin": (chunk.astype("<i4", copy=False) for chunk in chunks),
            "segments.bin": [segments.astype("<i8")],
            "rows.bin": [rows.astype("<i8")],
            "trained.bin": [row_trained.astype("<i4")],
        }
        if self._columns:
            arrays[COLUMNS_NAME] = (f"{line}\n".encode() for line in self._columns)
        return {
            "sequences": len(rows) - 1,
            "segments": len(lengths),
            "tokens": int(lengths.sum()),
            "trained_tokens": int(trained.sum()),
            "longest": int(row_tokens.max()),
            "longest_segment": int(lengths.max()),
            "files": {name: _write_array(folder / name, arrays[name]) for name in arrays},
        }


def _packed(lengths: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """The segments in row order, and the offsets of rows in that list, one more than rows."""
    rows = packing.best_fit(lengths.tolist(), length)
    order = np.fromiter((segment for row in rows for segment in row), dtype=np.int64, count=len(lengths))
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return order, offsets


def _by_row(lengths: np.ndarray, together: int) -> tuple[np.ndarray, np.ndarray]:
    """The same with so many segments per row, in order."""
    return np.arange(len(lengths)), np.arange(0, len(lengths) + 1, together)


def _write_array(path: Path, chunks: Any) -> str:
    """Write the chunks and sync them to disk; returns the file's SHA-256."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for chunk in chunks:
            digest.update(chunk)
            file.write(chunk)
    files.sync_file(path)
    return digest.hexdigest()


def as_split(split: str, shards: list[dict[str, Any]], ends: Mapping[str, int] | None = None) -> Split:
    """All shards of a split, in the report's form.

    Args:
        split: Its name.
        shards: Facts of each.
        ends: Of a mixture: how many shards there are at the end of each source, by name.
    """
    return Split(
        sequences=sum(shard["sequences"] for shard in shards),
        segments=sum(shard["segments"] for shard in shards),
        tokens=sum(shard["tokens"] for shard in shards),
        trained_tokens=sum(shard["trained_tokens"] for shard in shards),
        longest=max(shard["longest"] for shard in shards),
        longest_segment=max(shard["longest_segment"] for shard in shards),
        shards=[shard["name"] for shard in shards],
        files={
            f"{split}/{shard['name']}/{name}": digest for shard in shards for name, digest in shard["files"].items()
        },
        sources=_by_source(shards, ends or {}),
    )


def _by_source(shards: list[dict[str, Any]], ends: Mapping[str, int]) -> list[SourceCount]:
    found: list[SourceCount] = []
    first = begin = 0
    for name, end in ends.items():
        own = shards[begin:end]
        sequences, tokens = (sum(shard[key] for shard in own) for key in ("sequences", "tokens"))
        found.append(SourceCount(name=name, first=first, sequences=sequences, tokens=tokens))
        first, begin = first + sequences, end
    return found


@dataclass(frozen=True)
class Statistics:
    """Statistics over all tokens."""

    length_histogram: dict[str, int]
    unigram_entropy: float
    highest_token: int
    """The largest id, trained or not."""


def statistics(data: Path, split: Split, vocab: int) -> Statistics:
    """Lengths of segments in powers of two, entropy of trained tokens and highest id, in one pass over the shards."""
    counts = np.zeros(vocab, dtype=np.int64)
    lengths = np.zeros(64, dtype=np.int64)
    highest = 0
    for name in split.shards:
        folder = data / "train" / name
        for tokens in _chunks(np.memmap(folder / "tokens.bin", dtype="<i4", mode="r")):
            counts += np.bincount(tokens[tokens >= 0], minlength=vocab)
            highest = max(highest, _highest(tokens))
        sizes = np.diff(np.memmap(folder / "segments.bin", dtype="<i8", mode="r"))
        lengths += np.bincount(np.searchsorted(2 ** np.arange(63), sizes), minlength=64)
    histogram = {str(2**power): int(count) for power, count in enumerate(lengths) if count}
    return Statistics(histogram, _entropy(counts[counts > 0]), highest)


def highest_token(folder: Path, split: Split) -> int:
    """The largest token id of a split's shards, trained or not."""
    return max(_highest(np.memmap(folder / name / "tokens.bin", dtype="<i4", mode="r")) for name in split.shards)


def _chunks(tokens: np.ndarray) -> Iterator[np.ndarray]:
    return (tokens[start : start + _WRITE_TOKENS] for start in range(0, len(tokens), _WRITE_TOKENS))


def _highest(tokens: np.ndarray) -> int:
    """Of ids as shards hold them: those that are not trained, by their complement."""
    return int(max(tokens.max(), ~tokens.min()))


def _entropy(counts: np.ndarray) -> float:
    """Nats per token: log N - sum(c log c) / N."""
    total = int(counts.sum())
    if not total:  # of prompts no token is trained
        return 0.0
    return math.log(total) - float((counts * np.log(counts)).sum()) / total
