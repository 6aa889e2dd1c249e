"""Bad rows of a pass over the data: all listed in a file, and where the run file says so, raised by their reasons."""

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stoker.engine import sources
from stoker.errors import StokerError, StokerErrors
from stoker.rows import row_files, row_values
from stoker.rows.row_files import Record
from stoker.rows.row_values import BadRow
from stoker.rundir import files, in_place
from stoker.survey.findings import BadReason, NamedRow

_REASONS_SHOWN = 20
_PLACES_SHOWN = 5
_ENOUGH = 1000
_LOOK_ON_ROWS = 200_000
"""After a bad row so many more rows of the file are checked, or until so many are bad, to report them all at once."""
_NUMBER = re.compile(r"\d+")
_TOOLS = "row.template_tools"


class BadRows:
    """Lists every bad row in a file; with `stop`, raises them together."""

    def __init__(self, path: Path, size: int, *, stop: bool) -> None:
        self._path = path
        self._stop = stop
        self._label = ""
        self._found: list[dict[str, Any]] = []
        self._rows_since = 0
        if path.exists():
            with os.fdopen(in_place.descriptor(path, os.O_RDWR, path.parent.parent), "rb+") as file:
                file.truncate(size)

    def open_file(self, label: str) -> None:
        """The following rows are of this file."""
        self._label = label

    def add(self, number: int, bad: BadRow, tokens: int = 0) -> None:
        """Record a bad row, and how many tokens it has if that is known."""
        entry = {"file": self._label, "row": number, "reason": bad.reason, "text": bad.text}
        if isinstance(number, Record):
            entry["record"] = True
        if tokens:
            entry["tokens"] = tokens
        with in_place.appending(self._path, self._path.parent.parent) as file:
            file.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
        self._found.append(entry)

    def stop_if_due(self, *, last: bool) -> None:
        """Raise the bad rows of the file once enough of it was checked."""
        if not self._stop:
            self._found.clear()
        if not self._found:
            return
        self._rows_since += sources.BATCH_ROWS
        if last or len(self._found) >= _ENOUGH or self._rows_since >= _LOOK_ON_ROWS:
            raise StokerErrors(self._errors())

    def _errors(self) -> list[StokerError]:
        reasons = sorted(_grouped(self._found), key=lambda one: -one.count)  # the same hint is then said once
        problems = [self._error(one) for one in reasons[:_REASONS_SHOWN]]
        unsaid = sum(one.count for one in reasons[_REASONS_SHOWN:])
        once = (_TOOLS, *row_values.WHOLE_FILE)
        unsaid += sum(one.count - 1 for one in reasons[:_REASONS_SHOWN] if one.reason in once)
        return [*problems, StokerError("STK313", count=unsaid, path=self._path)] if unsaid else problems

    def _error(self, one: BadReason) -> StokerError:
        first = str(one.places[0])
        if one.reason == _TOOLS:
            return StokerError("STK318", first)
        if one.count == 1 or one.reason in row_values.WHOLE_FILE:
            return row_files.unusable(first, one.reason, one.text)
        places = [str(place) for place in one.places]
        return StokerError("STK352", first, count=one.count, reason=one.text, places=places, path=self._path)

    def by_reason(self) -> list[BadReason]:
        """All bad rows of the pass by their reasons."""
        if not self._path.exists():
            return []
        with self._path.open(encoding="utf-8") as lines:
            return _grouped(map(json.loads, lines))

    def cut_away(self, length: int) -> list[int]:
        """Tokens of the rows that are longer than `length` and have nothing trained within it."""
        if not self._path.exists():
            return []
        with self._path.open(encoding="utf-8") as lines:
            cut = [one.get("tokens", 0) for one in map(json.loads, lines) if one["reason"] == "row.no_trained"]
        return [tokens for tokens in cut if tokens > length]

    def sync(self) -> int:
        """Sync the list to disk; returns its size."""
        if not self._path.exists():
            return 0
        files.sync_file(self._path)
        return self._path.stat().st_size


def _grouped(entries: Iterable[dict[str, Any]]) -> list[BadReason]:
    """Bad rows whose reasons differ in nothing but numbers are one, with the text of the first."""
    found: dict[tuple[str, str], tuple[str, list[NamedRow], list[int]]] = {}
    for entry in entries:
        key = (entry["reason"], _NUMBER.sub("", entry["text"]))
        _, places, count = found.setdefault(key, (entry["text"], [], [0]))
        count[0] += 1
        if len(places) < _PLACES_SHOWN:
            places.append(NamedRow(file=entry["file"], row=entry["row"], record=entry.get("record", False)))
    return [
        BadReason(reason=reason, text=text, count=count[0], places=places)
        for (reason, _), (text, places, count) in found.items()
    ]
