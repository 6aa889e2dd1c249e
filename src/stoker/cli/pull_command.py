"""`stoker pull`: bring a run from its store: records, newest checkpoint, finished model."""

from pathlib import Path
from typing import Any

from stoker import messages
from stoker.cli.stored import ALOUD
from stoker.errors import StokerError
from stoker.launch import training
from stoker.rundir import layout
from stoker.rundir.layout import RunDir
from stoker.store import copies, fetch, opening
from stoker.store.copies import Copy
from stoker.store.shelf import Fault, Patient
from stoker.terminal import console
from stoker.terminal.figures import size


def pull(name: str, source: str | None, *, as_json: bool) -> None:
    """Bring a run into the runs folder; what is here and whole already stays."""
    run_dir, text, store = located(name, source)
    training.require_idle(run_dir)
    try:
        brought = _pull(run_dir, text, store)
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
    console.talk("pull.done", name=run_dir.name, what=messages.text("pull.comma").join(parts))


def located(name: str, source: str | None) -> tuple[RunDir, str, Patient]:
    """The run directory, here or to be, and the store: the one named, else the one of its run file."""
    try:
        run_dir = layout.find(name)
        run = run_dir.run()
        text, folder, bandwidth = source or run.save.store, run_dir.folder(), run.save.bandwidth
    except StokerError as error:
        if error.code != "STK501" or source is None or not copies.is_run_name(name):
            raise
        run_dir, text, folder, bandwidth = RunDir(layout.runs_folder() / name), source, Path.cwd(), None
    if text is None:
        raise StokerError("STK661", name=run_dir.name)
    # An address on the command line starts where the user stands, one of a run file where the file does.
    start = Path.cwd() if source else folder
    try:
        return run_dir, text, opening.open_store(text, start, bandwidth, ALOUD)
    except Fault as fault:
        raise StokerError("STK652", store=text, reason=fault) from fault


def _pull(run_dir: RunDir, text: str, store: Patient) -> dict[str, Any]:
    names = copies.require_run(store, run_dir.name, text)
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
