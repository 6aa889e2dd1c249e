"""Reads the rows of coming steps from a store into a bounded cache, a file per step, ahead of training.

Which rows a step needs is a pure function of its number, so nothing here decides an order: a slow or absent store makes
training wait, and a row that is wrong is fetched again. A file in the cache is checked again when it is used: what a
kill, a full disk or a power cut left is either right or fetched anew.
"""

import contextlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from stoker import messages
from stoker.errors import StokerError
from stoker.store.row_ranges import Damaged, RowPlace, RowRanges
from stoker.store.store_protocol import Fault

Rows = dict[int, bytes]
"""Bytes of rows by their number."""
Places = Callable[[Sequence[int]], dict[int, RowPlace]]

_GIVE_UP_SECONDS = 600.0
"""Training ends after this long without a byte from the store; the supervisor's patience is longer."""
_SAID_SECONDS = 5.0
_SAID_AGAIN_SECONDS = 30.0
_PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_TRIES = 3
"""For a row that arrives with another digest."""
_QUICK_SECONDS, _LONG_SECONDS = 0.5, 4.0
"""A request for several steps that takes less becomes larger, one that takes more smaller."""
_NAME = re.compile(r"(\d{9,})-[0-9a-f]{16}")


class Carried(Exception):
    """A named error on its way out of a loader process, which hands on nothing but text."""

    @property
    def error(self) -> StokerError:
        """The error itself."""
        return StokerError.from_json(json.loads(str(self).strip().splitlines()[-1].partition(": ")[2]))


def next_of(items: Iterator[Any]) -> Any:
    """The next item of a loader; an error that one of its processes carried out is raised by its own name."""
    try:
        return next(items)
    except Carried as carried:
        raise carried.error from None


class StepCache:
    """Files with the rows of coming steps, bounded in all; nearer steps displace farther ones."""

    def __init__(self, folder: Path, limit_bytes: int, identity: str) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._identity = identity
        self._held: dict[int, tuple[str, int]] = {}
        """Name and size by step: files that are there, and those that are on their way."""

    def begin(self, step: int) -> None:
        """Take over what an earlier attempt left for this step and those after it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in list(self._folder.iterdir()):
            known = _NAME.fullmatch(path.name)
            if known and int(known[1]) >= step:
                self._held[int(known[1])] = (path.name, path.stat().st_size)
            else:
                path.unlink()

    def forget_before(self, step: int) -> None:
        """Earlier steps are not asked for any more."""
        for earlier in [one for one in self._held if one < step]:
            self._drop(earlier)

    def holds(self, step: int, rows: Sequence[int], size: int) -> bool:
        """Whether the rows of a step are there, by name and size."""
        return self._held.get(step) == (self._name(step, rows), size) and self._path(step).is_file()

    def reserve(self, step: int, rows: Sequence[int], size: int) -> bool:
        """Room for a step; False while nearer steps take it. One step always has room."""
        self._drop(step)
        while self._held and sum(held for _, held in self._held.values()) + size > self._limit_bytes:
            if max(self._held) <= step:
                return False
            self._drop(max(self._held))
        self._held[step] = (self._name(step, rows), size)
        return True

    def put(self, step: int, content: bytes) -> None:
        """The rows of a step that has room. Not synced: what is read back is checked."""
        aside = self._folder / f".{self._held[step][0]}"
        aside.write_bytes(content)
        aside.replace(self._path(step))

    def take(self, step: int) -> bytes:
        """The rows of a step, which are not kept any longer."""
        content = self._path(step).read_bytes()
        self._drop(step)
        return content

    def _drop(self, step: int) -> None:
        if step in self._held:
            self._path(step).unlink(missing_ok=True)
            del self._held[step]

    def _path(self, step: int) -> Path:
        return self._folder / self._held[step][0]

    def _name(self, step: int, rows: Sequence[int]) -> str:
        return f"{step:09d}-{sha256(f'{self._identity} {list(rows)}'.encode()).hexdigest()[:16]}"


class ReadAhead:
    """The coming rows of one process."""

    def __init__(
        self,
        ranges: RowRanges,
        places: Places,
        rows_of: Callable[[int], list[int]],
        cache: StepCache,
        total: int,
        tell: Callable[..., None],
    ) -> None:
        """Nothing is read before the first step is asked for.

        Args:
            ranges: The store.
            places: Where rows are in it.
            rows_of: The rows that a step needs, sorted.
            cache: Where they are kept.
            total: Steps of the run.
            tell: Writes an event: its kind and fields.
        """
        self._ranges, self._places, self._rows_of = ranges, places, rows_of
        self._cache, self._total, self._tell = cache, total, tell
        self._changed = threading.Condition()
        self._coming: set[int] = set()
        """Steps on their way."""
        self._position, self._stride = 0, 1
        self._pid = 0
        self._error: Exception | None = None
        self._fault = ""
        self._moved_at = 0.0

    def take(self, step: int, stride: int) -> Rows:
        """The rows of a step; waits for them.

        Args:
            step: From 0 on.
            stride: The next step that this process will be asked for is so many later.
        """
        if self._pid != os.getpid():
            self._start(step, stride)
        rows = self._rows_of(step)
        places = self._places(rows)
        size = sum(place.end - place.begin for place in places.values())
        with self._changed:
            self._cache.forget_before(step)
            self._changed.notify_all()
            self._wait(step, rows, size)
            content = self._cache.take(step) if self._cache.holds(step, rows, size) else b""
            self._changed.notify_all()
        found, at = {}, 0
        for row, place in places.items():
            own = content[at : at + place.end - place.begin]
            at += len(own)
            if place.is_row(own):
                found[row] = own
        missing = {row: place for row, place in places.items() if row not in found}
        return {**found, **fetched(self._ranges, missing, self._tell)} if missing else found

    def _start(self, step: int, stride: int) -> None:
        self._pid, self._position, self._stride = os.getpid(), step, stride
        self._cache.begin(step)
        threading.Thread(target=self._run, name="read-ahead", daemon=True).start()

    def _wait(self, step: int, rows: list[int], size: int) -> None:
        """Until the rows are there, or nobody is about to bring them."""
        started = said = time.monotonic()
        while not self._cache.holds(step, rows, size) or step in self._coming:
            if step not in self._coming and (step < self._position or (step - self._position) % self._stride):
                return
            if self._error is not None:
                raise self._error
            self._changed.wait(0.5)
            now = time.monotonic()
            if now - started > _SAID_SECONDS and (said == started or now - said > _SAID_AGAIN_SECONDS):
                said = now
                self._tell("stalled", step=step + 1, seconds=round(now - started, 1), reason=self._fault)
            if now - max(started, self._moved_at) > _GIVE_UP_SECONDS:
                raise _gone(self._ranges, self._fault)

    # ---- in the thread

    def _run(self) -> None:
        try:
            count = 1
            while coming := self._next(count):
                started = time.monotonic()
                self._bring(coming)
                seconds = time.monotonic() - started
                if seconds < _QUICK_SECONDS:
                    count *= 2
                elif seconds > _LONG_SECONDS:
                    count = max(1, count // 2)
        except Exception as error:  # noqa: BLE001  # raised again where the rows are wanted
            self._error = error
        with self._changed:
            self._changed.notify_all()

    def _next(self, most: int) -> dict[int, dict[int, RowPlace]]:
        """The places of the next steps' rows, at most so many steps and as far as there is room; empty at the end."""
        found: dict[int, dict[int, RowPlace]] = {}
        while len(found) < most and self._position < self._total:
            step, rows = self._position, self._rows_of(self._position)
            places = self._places(rows)
            size = sum(place.end - place.begin for place in places.values())
            with self._changed:
                if not self._cache.holds(step, rows, size):
                    while not self._cache.reserve(step, rows, size):
                        if found:
                            return found
                        self._changed.wait()
                    found[step] = places
                    self._coming.add(step)
                self._position += self._stride
                self._changed.notify_all()
        return found

    def _bring(self, coming: Mapping[int, Mapping[int, RowPlace]]) -> None:
        got: dict[int, Rows] = {step: {} for step in coming}

        def arrived(key: Any, content: bytes) -> None:
            step, row = key
            got[step][row] = content
            self._fault, self._moved_at = "", time.monotonic()
            if len(got[step]) == len(coming[step]):
                self._cache.put(step, b"".join(got[step][row] for row in coming[step]))
                with self._changed:
                    self._coming.discard(step)
                    self._changed.notify_all()

        wanted = {(step, row): place for step, places in coming.items() for row, place in places.items()}
        _persist(self._ranges, wanted, arrived, self._tell, self._failed)

    def _failed(self, fault: Fault) -> None:
        """A fault is of interest once training waits; then that says it."""
        self._fault = str(fault)


def fetched(
    ranges: RowRanges, places: Mapping[int, RowPlace], tell: Callable[..., None] = lambda *_, **__: None
) -> Rows:
    """Rows that are wanted now."""
    found: Rows = {}
    moved_at = time.monotonic()

    def arrived(key: Any, content: bytes) -> None:
        nonlocal moved_at
        found[key], moved_at = content, time.monotonic()

    def failed(fault: Fault) -> None:
        if time.monotonic() - moved_at > _GIVE_UP_SECONDS:
            raise _gone(ranges, str(fault)) from fault

    _persist(ranges, dict(places), arrived, tell, failed)
    return found


def _persist(
    ranges: RowRanges,
    wanted: Mapping[Any, RowPlace],
    arrived: Callable[[Any, bytes], None],
    tell: Callable[..., None],
    failed: Callable[[Fault], None],
) -> None:
    """Ask until every row arrived; of those that did none is asked for again."""
    missing, failures, wrong = dict(wanted), 0, 0

    def arrives(key: Hashable, content: bytes) -> None:
        nonlocal failures, wrong
        del missing[key]
        failures = wrong = 0
        arrived(key, content)

    while missing:
        try:
            ranges.fetch(dict(missing), arrives)
        except Damaged as damaged:  # noqa: PERF203  # a request is what takes time
            wrong += 1
            tell("damaged", file=missing[damaged.key].name, begin=missing[damaged.key].begin)
            if wrong >= _TRIES:
                raise StokerError("STK345", store=ranges.where, file=missing[damaged.key].name) from damaged
            failed(damaged)
        except FileNotFoundError as error:
            raise StokerError("STK658", file=error, reason=messages.text("damage.absent")) from error
        except Fault as fault:
            failed(fault)
            time.sleep(_PAUSES_SECONDS[min(failures, len(_PAUSES_SECONDS) - 1)])
            failures += 1


def _gone(ranges: RowRanges, reason: str) -> StokerError:
    return StokerError("STK341", store=ranges.where, reason=reason or messages.text("reason.no_response", seconds=600))


def clear_others(folder: Path, own: str) -> None:
    """Remove what attempts with other processes left; `own` is the folder of this attempt's."""
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            if path.name != own:
                shutil.rmtree(path, ignore_errors=True)
