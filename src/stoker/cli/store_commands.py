"""`stoker push`, `pull`, `verify`, `runs --store`: a run and its copies off the box."""

import sys
from pathlib import Path
from typing import Any

from rich.table import Table

from stoker import messages
from stoker.api import store_return
from stoker.api.figures import size
from stoker.errors import EXIT_STOPPED, StokerError
from stoker.launch import training
from stoker.rundir import artifacts, checkpoints, layout
from stoker.rundir.layout import RunDir
from stoker.store import copies, fetch, opening, verification
from stoker.store import push as copying
from stoker.store.copies import Copy
from stoker.store.store_protocol import Fault, Patient, sha256_of
from stoker.terminal import console

_FINAL = "artifacts/final"
_PATIENCE = store_return.patience(console.talk)


def push(name: str, *, as_json: bool) -> None:
    """Copy; exits with 0 once the newest checkpoint and the finished model are verified in the store, else with 75."""
    run_dir = layout.find(name)
    if run_dir.run().save.store is None:
        raise StokerError("STK661", name=run_dir.name)
    outcome = copying.push(run_dir)
    if as_json:
        console.data_json(outcome)
    elif not outcome["copied"]:
        console.talk("push.failed", reason=outcome["reason"])
    elif outcome["step"] is None:
        console.talk("push.nothing")
    else:
        console.talk("push.done", step=outcome["step"])
    if not outcome["copied"]:
        sys.exit(EXIT_STOPPED)


def pull(name: str, source: str | None, *, as_json: bool) -> None:
    """Copy a run into the runs folder; files that are already here and verified are kept."""
    run_dir, text, store = _located(name, source)
    try:
        names = copies.require_run(store, run_dir.name, text)
        with training.claimed(run_dir):
            brought = _pull(run_dir, text, store, names)
    except Fault as fault:
        raise StokerError("STK652", store=text, reason=fault) from fault
    if as_json:
        console.data_json(brought)
        return
    parts = [messages.text("pull.records")]
    if brought["step"] is not None:
        parts.append(messages.text("pull.checkpoint", step=brought["step"]))
    if brought["final"]:
        parts.append(messages.text("pull.artifact"))
    console.talk("pull.done", name=run_dir.name, what=parts)


def _located(name: str, source: str | None) -> tuple[RunDir, str, Patient]:
    """The run directory, which may not exist yet, and the store: the given one, or the run file's."""
    try:
        run_dir = layout.find(name)
        run = run_dir.run()
        text, folder, bandwidth = source or run.save.store, run_dir.folder(), run.save.bandwidth
    except StokerError as error:
        if error.code != "STK501" or source is None or not copies.is_run_name(name):
            raise
        run_dir, text, folder, bandwidth = layout.named(name), source, Path.cwd(), None
    if text is None:
        raise StokerError("STK661", name=run_dir.name)
    # A relative address of the command line starts in the current folder, one of a run file in the file's.
    start = Path.cwd() if source else folder
    try:
        return run_dir, text, opening.open_store(text, start, bandwidth, _PATIENCE)
    except Fault as fault:
        raise StokerError("STK652", store=text, reason=fault) from fault


def _pull(run_dir: RunDir, text: str, store: Patient, names: dict[str, int]) -> dict[str, Any]:
    if run_dir.manifest_file.exists():
        fetch.require_same_run(store, run_dir, run_dir.run(), text)
    fetch.fetch_manifest(store, run_dir, Path.cwd())
    fetch.fetch_records(store, run_dir, fetch.RECORDS)

    def found(copy: Copy) -> None:
        console.talk("store.fetching", step=copy.commit.step, size=size(copy.commit.total_bytes))

    checkpoint, passed = fetch.newer_checkpoint(store, run_dir, found)
    for one in passed:
        console.talk("store.passed", folder=one.folder, reason=one.reason)
    final = fetch.fetch_artifact(store, run_dir, "final", names)
    return {
        "name": run_dir.name,
        "step": checkpoint.step if checkpoint else None,
        "final": final,
        "passed": [{"folder": one.folder, "reason": one.reason} for one in passed],
    }


def verify(name: str, source: str | None, *, as_json: bool) -> None:
    """Report on all copies; fails if one does not match its record or is missing in the store."""
    run_dir, there = _there(name, source)
    here = _here(run_dir)
    if there and not there["reason"]:
        there["missing"] = _missing(run_dir, here, there)
    found = {"name": run_dir.name, "local": here, "store": there}
    if not as_json and (here or _rows(there)):
        console.table(_verify_table(found))
    elif not as_json and not (there and there["reason"]):
        console.talk("verify.finished" if run_dir.final.is_dir() else "verify.none", name=run_dir.name)
    wrong = [f"{one['folder']}: {one['reason']}" for one in (*here, *_rows(there)) if not one["verified"]]
    if there and there["reason"]:
        wrong.append(there["reason"])
    if wrong:
        error = StokerError("STK662", name=run_dir.name, problems=messages.text("list.semicolon").join(wrong))
        error.result = found
        raise error
    if as_json:
        console.data_json(found)


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
        run_dir, text, store = _located(name, source)
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
    """The newest checkpoint and the finished model of this machine, if the store has no identical copy."""
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
    """Everything that is, or should be, in the store."""
    if there is None:
        return []
    return [*there["checkpoints"], *([there["final"]] if there["final"] else []), *there["missing"]]


def _verify_table(found: dict[str, Any]) -> Table:
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


def runs(address: str, *, as_json: bool) -> None:
    """List a store's runs by name."""
    try:
        store = opening.open_store(address, Path.cwd(), patience=_PATIENCE)
        names = store.names("")
        found = [_copies_of(store, name, names) for name in copies.run_names(names)]
    except Fault as fault:
        raise StokerError("STK652", store=address, reason=fault) from fault
    if as_json:
        console.data_json(found)
    elif found:
        console.table(_runs_table(found))
    else:
        console.talk("runs.none_in_store", store=address)


def _copies_of(store: Patient, name: str, names: dict[str, int]) -> dict[str, Any]:
    own = {one: size for one, size in names.items() if one.startswith(f"{name}/")}
    there = copies.committed(store, name, own)
    return {
        "name": name,
        "steps": [copy.commit.step for copy in there],
        "newest": there[-1].commit.created if there else None,
        "final": f"{name}/artifacts/final/{copies.FILES_NAME}" in own,
        "size_bytes": sum(own.values()),
    }


def _runs_table(found: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(messages.text("runs.name"), overflow="fold")
    table.add_column(messages.text("runs.copies"), justify="right")
    table.add_column(messages.text("runs.final"), no_wrap=True)
    table.add_column(messages.text("runs.size"), justify="right", no_wrap=True)
    for run in found:
        steps = messages.text("list.comma").join(str(step) for step in run["steps"]) or "-"
        table.add_row(run["name"], steps, "✓" if run["final"] else "-", size(run["size_bytes"]))
    return table
