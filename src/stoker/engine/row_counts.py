"""How many tokens each row has, and whether it is held back for eval: kept in the order of the pass, for its survey."""

from array import array
from pathlib import Path

import numpy as np

from stoker.rundir import files

_NAME = "row_counts.bin"


def has(data: Path, rows: int) -> bool:
    """Whether so many rows were counted."""
    path = data / _NAME
    return not rows or (path.is_file() and path.stat().st_size >= rows * array("q").itemsize)


class RowCounts:
    """Tokens by row; written beside the set whenever the pass commits, and gone when it ends."""

    def __init__(self, data: Path, rows: int, last: int) -> None:
        self._path = data / _NAME
        self._counts = array("q")
        """Of a row of eval the complement."""
        if rows:
            self._counts.frombytes(self._path.read_bytes()[: rows * self._counts.itemsize])
            self._counts[-1] = last  # of a text, which may have been written further than the pass was committed

    @property
    def last(self) -> int:
        """The entry of the newest row, as it is stored."""
        return self._counts[-1] if self._counts else 0

    def add(self, tokens: int, *, held: bool, is_row: bool) -> None:
        """Count a row, or more of the text that the last one is."""
        if is_row:
            self._counts.append(~tokens if held else tokens)
        else:
            self._counts[-1] += -tokens if self._counts[-1] < 0 else tokens

    def commit(self) -> None:
        """Write all of them."""
        aside = self._path.with_suffix(".tmp")
        aside.write_bytes(self._counts.tobytes())
        files.sync_file(aside)
        aside.replace(self._path)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of each row, and whether it is of eval."""
        stored = np.array(self._counts, dtype=np.int64)
        return np.where(stored < 0, ~stored, stored), stored < 0

    def remove(self) -> None:
        """Delete the file."""
        self._path.unlink(missing_ok=True)
