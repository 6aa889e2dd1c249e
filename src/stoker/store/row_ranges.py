"""Rows of a prepared set in a store, by byte ranges: neighbours are joined, and every row is checked by its digest."""

from collections.abc import Callable, Hashable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from stoker.errors import StokerError
from stoker.rundir import set_list
from stoker.store import opening
from stoker.store.store_protocol import ByteRange, Fault, Patience, Ranged

PATIENCE = Patience(stall_seconds=20)
_GAP_BYTES = 1 << 10
"""Of no interest between two rows: less than the headers of another request."""
_MOST_BYTES = 1 << 20
"""Of one request, where rows are joined."""


class RowPlace(NamedTuple):
    """Where the tokens of a row are."""

    name: str
    """Of the stored file."""
    begin: int
    end: int
    digest: bytes
    """Of its bytes: `set_list.SUM_BYTES` of their SHA-256."""

    def is_row(self, content: bytes) -> bool:
        """Whether these are its bytes."""
        return sha256(content).digest()[: set_list.SUM_BYTES] == self.digest


class Damaged(Fault):
    """A row arrived with another digest than it was pushed with; the line or the store changed it."""

    def __init__(self, key: Hashable, name: str) -> None:
        super().__init__(f"{name}: a row has another digest")
        self.key = key


class RowRanges:
    """Reads rows of one set. It is opened with the first request: of a forked process, in that process."""

    def __init__(self, where: str, folder: Path) -> None:
        self.where = where
        self._folder = folder
        self._store: Ranged | None = None

    def fetch(self, wanted: Mapping[Hashable, RowPlace], arrived: Callable[[Hashable, bytes], None]) -> None:
        """Ask for every row; `arrived` is told of each that is right. A fault comes after those that arrived."""
        joined = _joined(wanted)
        damaged: Damaged | None = None
        ranges = [ByteRange(rows[0][1].name, rows[0][1].begin, rows[-1][1].end) for rows in joined]
        for number, content in self._opened().ranges(ranges):
            for key, place in joined[number]:
                own = content[place.begin - ranges[number].begin : place.end - ranges[number].begin]
                if place.is_row(own):
                    arrived(key, own)
                else:
                    damaged = Damaged(key, place.name)
        if damaged is not None:
            raise damaged

    def _opened(self) -> Ranged:
        if self._store is None:
            store = opening.open_store(self.where, self._folder, patience=PATIENCE).inner
            if not isinstance(store, Ranged):
                raise StokerError("STK343", store=self.where)
            self._store = store
        return self._store


def _joined(wanted: Mapping[Hashable, RowPlace]) -> list[list[tuple[Hashable, RowPlace]]]:
    """The rows in the order of their places, those of one request together."""
    found: list[list[tuple[Hashable, RowPlace]]] = []
    for key, place in sorted(wanted.items(), key=lambda item: item[1]):
        first, last = (found[-1][0][1], found[-1][-1][1]) if found else (None, None)
        near = first and last and place.name == last.name and 0 <= place.begin - last.end <= _GAP_BYTES
        if near and first and place.end - first.begin <= _MOST_BYTES:
            found[-1].append((key, place))
        else:
            found.append([(key, place)])
    return found
