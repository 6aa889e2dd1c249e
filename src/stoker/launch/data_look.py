"""What rows on this machine are like, for somebody who writes a run file: how many, how long, which script, how alike.

Rows and exact duplicates are counted, up to a size; lengths are estimated as a plan estimates them. Decides nothing.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.config import layouts, load
from stoker.config.run import Run
from stoker.launch import raw_data
from stoker.launch.raw_data import RawRows
from stoker.rows import packing, row_files
from stoker.rows.formats import Layout, Text
from stoker.rows.row_files import File, Line
from stoker.rows.row_values import BadRow
from stoker.rows.token_rates import Counts, TokenRates
from stoker.rundir import inputs

_COUNTED_BYTES = 256 << 20
"""Of all files; larger data is not read whole."""
_PACKED_ROWS = 20_000
_WORTH_NAMING = 0.05
"""Share of the characters from which on a script is named."""
_SCRIPTS = {
    "script.latin": ("letter",),
    "script.han": ("han",),
    "script.kana": ("kana",),
    "script.hangul": ("hangul",),
    "script.cyrillic": ("cyrillic",),
    "script.arabic": ("arabic",),
    "script.devanagari": ("devanagari",),
    "script.thai": ("thai",),
    "script.other": ("greek", "hebrew", "indic", "other"),
}
"""Keys of the catalogue, and what `token_rates` counts as such characters."""


@dataclass(frozen=True)
class DataLook:
    """What was seen of the data."""

    layout: Layout | None
    rows: int
    duplicates: int | None
    """Rows that repeat an earlier one, character for character; None where the data was not read whole."""
    tokens: int
    """Estimated, of all rows, before any is cut."""
    lengths: Sequence[float]
    """Estimated tokens of each row that was read, the shortest first."""
    scripts: list[tuple[str, float]]
    """Scripts, as the catalogue has them, by their share of the characters, the largest first."""
    bad: list[tuple[str, str]]
    """Rows that were read and cannot be used: where, and why."""
    spread: float
    """Counted over estimated tokens: nineteen in twenty texts are below."""
    is_running: bool
    """Text files: one document each, cut into pieces."""
    by_tokenizer: bool = False
    """The model's own tokenizer counted the tokens of the texts."""

    def covering(self, share: float) -> float:
        """Tokens that this share of the rows stays within."""
        return self.lengths[min(len(self.lengths) - 1, math.ceil(share * len(self.lengths)) - 1)]

    def within(self, length: int) -> float:
        """The share of rows that are not longer."""
        return sum(one <= length for one in self.lengths) / len(self.lengths)

    def packed(self, length: int, *, splits: bool) -> int:
        """Sequences, where short rows share one."""
        if splits:
            return max(1, math.ceil(self.tokens / length))
        taken = self.lengths[:: -(-len(self.lengths) // _PACKED_ROWS)]
        rows = packing.best_fit([max(1, min(length, round(one))) for one in taken], length)
        return max(1, round(self.rows * len(rows) / len(taken)))


def look(
    path: str,
    folder: Path,
    rates: TokenRates,
    tokenizer: Path | None = None,
    columns: dict[str, str] | None = None,
) -> DataLook:
    """Look at data on this machine.

    Args:
        path: A file, a folder, a glob, or a set of a list.
        folder: The run file's, which a relative path starts from.
        rates: Tokens of a text.
        tokenizer: What counts them instead: the model's `tokenizer.json`.
        columns: What the columns mean, where the names of the rows do not say it.
    """
    run = _draft({"train": path, "columns": columns}, "sft")
    found = raw_data.look(run, folder, rates, tokenizer)
    if found.layout and found.layout.format == layouts.PREFERENCE:
        found = raw_data.look(_draft({"train": path, "pack": False}, "dpo"), folder, rates, tokenizer)
        found = dataclasses.replace(found, lengths=[one / 2 for one in found.lengths])  # `data.length` is an answer's
    elif found.layout and found.layout.format == layouts.LABELLED:
        found = raw_data.look(_draft({"train": path, "pack": False}, "kto"), folder, rates, tokenizer)
    every = [file for source in inputs.train_sources(run) for file in row_files.files(source, folder)]
    rows, duplicates = _counted(every) or (found.rows, None)
    return DataLook(
        layout=found.layout,
        rows=rows,
        duplicates=duplicates,
        tokens=found.tokens,
        lengths=sorted(found.lengths),
        scripts=scripts(found.counted),
        bad=found.bad,
        spread=1.0 if found.by_tokenizer else found.rates.interval[1],
        by_tokenizer=found.by_tokenizer,
        is_running=_is_running(found),
    )


def _draft(data: dict[str, Any], objective: str) -> Run:
    draft = {"model": "-", "data": data, "train": {"objective": objective}}
    return load.parse(json.dumps(draft, ensure_ascii=False), "run.yaml")


def _is_running(found: RawRows) -> bool:
    return all(file.is_text for file in found.files)


def _counted(files: Sequence[File]) -> tuple[int, int] | None:
    """Rows and exact duplicates; None where that would take long, or another program."""
    tables = any(file.path is None or inputs.kind(file.path) == ".parquet" for file in files)
    if tables or sum(file.size_bytes for file in files) > _COUNTED_BYTES:
        return None
    rows, seen = 0, set[bytes]()
    for file in files:
        with row_files.opened(file) as opened:
            whole = hashlib.blake2b(digest_size=8)
            for _, row in opened.rows:
                if isinstance(row, Text):
                    whole.update(row.text.encode("utf-8", "replace"))
                elif not isinstance(row, BadRow):
                    rows += 1
                    seen.add(_digest(row.strip() if isinstance(row, Line) else json.dumps(row, sort_keys=True)))
            if file.is_text:
                rows += 1
                seen.add(whole.digest())
    return rows, rows - len(seen)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()


def scripts(counted: Counts) -> list[tuple[str, float]]:
    """Scripts that are worth naming, by their share of the characters."""
    sizes = {name: sum(counted[part] for part in parts) for name, parts in _SCRIPTS.items()}
    total = max(1, sum(sizes.values()))
    shares = [(name, size / total) for name, size in sizes.items() if size / total >= _WORTH_NAMING]
    return sorted(shares, key=lambda one: -one[1])
