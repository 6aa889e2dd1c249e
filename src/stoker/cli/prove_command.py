"""`stoker prove`: what is claimed, tried on this machine; a report, a page to look at, a row to share."""

import shutil
import sys
import tempfile
from pathlib import Path

from rich.text import Text

from stoker import messages
from stoker.errors import EXIT_USER, StokerError
from stoker.facts import machine
from stoker.launch import attention_probe, programs
from stoker.prove import report, report_page, sequence
from stoker.prove.check import Check, Outcome
from stoker.rundir import files
from stoker.terminal import console

REPORT = "proof.json"
PAGE = "proof.html"
_MARKS: dict[Outcome, tuple[str, str, str]] = {
    "passed": ("✓", "prove.passed", "green"),
    "failed": ("✗", "prove.failed", "red"),
    "absent": ("-", "prove.absent", "dim"),
}


def prove(folder: str, *, quick: bool, as_json: bool) -> None:
    """Do all checks and write the report; exit 1 if one failed."""
    programs.check_engine()
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="prove-", dir=target))
    here = attention_probe.tried(machine.examine())
    try:
        with console.status() as status:
            checks, made = sequence.prove(work, here, lambda *at: status.show(_progress(*at)), quick=quick)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    files.write_json(target / REPORT, made)
    files.write_text(target / PAGE, report_page.page(made, checks))
    wrong = [check for check in checks if check.outcome == "failed"]
    if not wrong:
        shutil.rmtree(work, ignore_errors=True)
    if as_json:
        console.data_json(made)
    else:
        _show(checks)
    console.talk("prove.written", report=target / REPORT, page=target / PAGE)
    if wrong:
        console.talk("prove.kept", folder=work)
        sys.exit(EXIT_USER)


def share(folder: str, *, as_json: bool) -> None:
    """Print the row of a report that was written before."""
    path = Path(folder) / REPORT
    if not path.is_file():
        raise StokerError("STK518", reason=messages.text("prove.no_report", path=path))
    row = report.row(files.read_object(path))
    if as_json:
        console.data_json(row)
    else:
        console.data(files.json_text(row).rstrip())
    console.talk("prove.share", file=f"{row['card']}-{row['date']}.json".replace("/", "-"))


def _progress(name: str, number: int, count: int) -> str:
    return messages.text("prove.progress", number=number, count=count, what=messages.text(f"prove.check.{name}"))


def _show(checks: list[Check]) -> None:
    for check in checks:
        symbol, key, style = _MARKS[check.outcome]
        console.page(Text.assemble((f"{symbol} {messages.text(key)}", style), f"  {check.title}"))
        if check.reason:
            console.page(Text(f"    {check.reason}"))
