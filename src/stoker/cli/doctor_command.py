"""`stoker doctor`: one line per finding, with a hint where there is something to do."""

import sys
from collections import Counter

from rich.cells import cell_len
from rich.text import Text

from stoker import messages
from stoker.doctor.examine import examine
from stoker.doctor.finding import Finding, Status
from stoker.errors import EXIT_USER
from stoker.rundir import layout
from stoker.terminal import console

_MARKS: dict[Status, tuple[str, str, str]] = {
    "ok": ("✓", "status.ok", "green"),
    "warn": ("!", "status.warn", "yellow"),
    "fail": ("✗", "status.fail", "red"),
}


def doctor(*, as_json: bool) -> None:
    """Print every finding; exit 1 if one failed."""
    found = examine(layout.runs_folder())
    if as_json:
        console.data_json([finding.to_json() for finding in found])
    else:
        _show(found)
    if any(finding.status == "fail" for finding in found):
        sys.exit(EXIT_USER)


def _show(found: list[Finding]) -> None:
    width = max(cell_len(messages.text(key)) for _, key, _ in _MARKS.values())
    for finding in found:
        symbol, key, style = _MARKS[finding.status]
        word = Text(f"{symbol} {messages.text(key)}", style=style)
        word.pad_right(width + 2 - word.cell_len)
        console.page(Text.assemble(word, f"  {finding.what}"))
        if finding.hint:
            console.page(Text(f"{' ' * (width + 4)}{messages.text('hint')}{finding.hint}"))
    counts = Counter(finding.status for finding in found)
    console.talk("doctor.summary", **{status: counts[status] for status in _MARKS})
