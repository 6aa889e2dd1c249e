"""`stoker verify`: read back what there is of a run, here and in its store, and compare it with the records.

What is here and must be in the store, the newest checkpoint and the finished model, is missed there.
"""

from typing import Any

from rich.table import Table

from stoker import messages
from stoker.cli.pull_command import located
from stoker.errors import StokerError
from stoker.rundir import artifacts, checkpoints, layout
from stoker.rundir.layout import RunDir
from stoker.store import copies, verification
from stoker.store.shelf import Fault, sha256_of
from stoker.terminal import console
from stoker.terminal.figures import size

_FINAL = "artifacts/final"


def verify(name: str, source: str | None, *, as_json: bool) -> None:
    """Report on all copies; ends with 1 where one does not hold what its record says, or is missing in the store."""
    run_dir, there = _there(name, source)
    here = _here(run_dir)
    if there and not there["reason"]:
        there["missing"] = _missing(run_dir, here, there)
    found = {"name": run_dir.name, "local": here, "store": there}
    if as_json:
        console.data_json(found)
    else:
        console.table(_table(found))
    wrong = [f"{one['folder']}: {one['reason']}" for one in (*here, *_rows(there)) if not one["verified"]]
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
    there: dict[str, Any] = {"address": text, "checkpoints": [], "final": None, "missing": [], "reason": ""}
    try:
        there |= verification.examine(store, run_dir.name)
    except Fault as fault:
        there["reason"] = StokerError("STK652", store=text, reason=fault).what
    return run_dir, there


def _missing(run_dir: RunDir, here: list[dict[str, Any]], there: dict[str, Any]) -> list[dict[str, Any]]:
    """The newest checkpoint and the finished model that are here, where the store has not the very same."""
    missing = []
    if newest := next((one for one in reversed(here) if one["verified"]), None):
        commit = next(one.commit for one in checkpoints.committed(run_dir.checkpoints) if one.step == newest["step"])
        folder = copies.folder_of(run_dir.name, commit).rpartition("/")[2]
        if folder not in {one["folder"] for one in there["checkpoints"]}:
            missing.append({**newest, "folder": folder})
    if run_dir.final.is_dir():
        entries = artifacts.entries_of(run_dir.final)
        if not there["final"] or there["final"]["digest"] != sha256_of(artifacts.files_record(entries)):
            size_bytes = sum(entry.bytes for entry in entries.values())
            missing.append({"folder": _FINAL, "step": None, "bytes": size_bytes})
    return [{**one, "verified": False, "reason": messages.text("verify.missing")} for one in missing]


def _rows(there: dict[str, Any] | None) -> list[dict[str, Any]]:
    """All that is, or must be, in the store."""
    if there is None:
        return []
    return [*there["checkpoints"], *([there["final"]] if there["final"] else []), *there["missing"]]


def _table(found: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(messages.text("verify.place"), no_wrap=True)
    table.add_column(messages.text("verify.step"), justify="right")
    table.add_column(messages.text("verify.size"), justify="right", no_wrap=True)
    table.add_column(messages.text("verify.state"), overflow="fold")
    for place, shown in (("verify.here", found["local"]), ("verify.store", _rows(found["store"]))):
        for one in shown:
            state = messages.text("verify.whole") if one["verified"] else one["reason"]
            amount = size(one["bytes"]) if one["bytes"] is not None else "-"
            step = messages.text("verify.final") if one["folder"] == _FINAL else str(one["step"] or "-")
            table.add_row(messages.text(place), step, amount, state)
    return table
