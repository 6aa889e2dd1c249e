"""Bad rows of a pass over the data: all listed in a file, and where the run file says so, raised together."""

import json
import os
from pathlib import Path

from stoker.engine import sources
from stoker.errors import StokerError, StokerErrors
from stoker.rows import row_files
from stoker.rows.row_values import BadRow
from stoker.rundir import files, in_place

_BAD_ROWS_SHOWN = 20
_LOOK_ON_ROWS = 200_000
"""After a bad row this many more rows of the file are checked, to report all bad ones at once."""


class BadRows:
    """Lists every bad row in a file; with `stop`, raises them together."""

    def __init__(self, path: Path, size: int, *, stop: bool) -> None:
        self._path = path
        self._stop = stop
        self._label = ""
        self._found: list[StokerError] = []
        self._rows_since = 0
        if path.exists():
            with os.fdopen(in_place.descriptor(path, os.O_RDWR, path.parent.parent), "rb+") as file:
                file.truncate(size)

    def open_file(self, label: str) -> None:
        """The following rows are of this file."""
        self._label = label

    def add(self, number: int, bad: BadRow) -> None:
        """Record a bad row."""
        entry = {"file": self._label, "row": number, "reason": bad.reason, "text": bad.text}
        with in_place.appending(self._path, self._path.parent.parent) as file:
            file.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
        code = "STK318" if bad.reason == "row.template_tools" else "STK302"
        self._found.append(StokerError(code, row_files.place(self._label, number), reason=bad.text))

    def stop_if_due(self, *, last: bool) -> None:
        """Raise the bad rows of the file once enough of it was checked."""
        if not self._stop:
            self._found.clear()
        if not self._found:
            return
        self._rows_since += sources.BATCH_ROWS
        if last or len(self._found) >= _BAD_ROWS_SHOWN or self._rows_since >= _LOOK_ON_ROWS:
            problems, more = self._found[:_BAD_ROWS_SHOWN], len(self._found) - _BAD_ROWS_SHOWN
            if more > 0:
                problems.append(StokerError("STK313", count=more, path=self._path))
            raise StokerErrors(problems)

    def sync(self) -> int:
        """Sync the list to disk; returns its size."""
        if not self._path.exists():
            return 0
        files.sync_file(self._path)
        return self._path.stat().st_size
