"""`stoker verify`: read back every checkpoint of a run, here and in its store, and compare it with its record."""

from typing import Any

from rich.table import Table

from stoker import messages
from stoker.cli import console
from stoker.cli.pull import located
from stoker.cli.runs import size
from stoker.errors import StokerError
from stoker.rundir import checkpoints, layout
from stoker.rundir.layout import RunDir
from stoker.store import verification
from stoker.store.shelf import Fault


def verify(name: str, source: str | None, *, as_json: bool) -> None:
    """Report on all copies; ends with 1 where one does not hold what its record says."""
    run_dir, there = _there(name, source)
    here = _here(run_dir)
    found = {"name": run_dir.name, "local": here, "store": there}
    if as_json:
        console.data_json(found)
    else:
        console.table(_table(found))
    wrong = [
        f"{one['folder']}: {one['reason']}"
        for one in (*here, *(there["checkpoints"] if there else ()))
        if not one["verified"]
    ]
    if there and there["reason"]:
        wrong.append(there["reason"])
    if wrong:
        raise StokerError("STK662", name=run_dir.name, problems="; ".join(wrong))


def _here(run_dir: RunDir) -> list[dict[str, Any]]:
    return [
        {
            "folder": one.path.name,
            "step": one.commit.step if one.commit else None,
            "bytes": one.commit.total_bytes if one.commit else None,
            "verified": not one.reason,
            "reason": one.reason,
        }
        for one in checkpoints.examine(run_dir.checkpoints)
    ]


def _there(name: str, source: str | None) -> tuple[RunDir, dict[str, Any] | None]:
    """What the store has; None where the run has no store."""
    try:
        run_dir, text, store = located(name, source)
    except StokerError as error:
        if error.code != "STK661":
            raise
        return layout.find(name), None
    there: dict[str, Any] = {"address": text, "checkpoints": [], "final": None, "reason": ""}
    try:
        there |= verification.examine(store, run_dir.name)
    except Fault as fault:
        there["reason"] = StokerError("STK652", store=text, reason=fault).what
    return run_dir, there


def _table(found: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(messages.text("verify.place"), no_wrap=True)
    table.add_column(messages.text("verify.step"), justify="right")
    table.add_column(messages.text("verify.size"), justify="right", no_wrap=True)
    table.add_column(messages.text("verify.state"), overflow="fold")
    places = [
        ("verify.here", found["local"]),
        ("verify.store", found["store"]["checkpoints"] if found["store"] else []),
    ]
    for place, copies in places:
        for one in copies:
            state = messages.text("verify.whole") if one["verified"] else one["reason"]
            amount = size(one["bytes"]) if one["bytes"] is not None else "-"
            table.add_row(messages.text(place), str(one["step"] if one["step"] is not None else "-"), amount, state)
    return table
