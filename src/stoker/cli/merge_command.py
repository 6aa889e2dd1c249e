"""`stoker merge`: the adapter inside its base, compared with the trained model before it is called done."""

from pathlib import Path
from typing import Any

from stoker import messages
from stoker.errors import StokerError
from stoker.launch import programs, training
from stoker.rundir import artifacts, events, files, layout
from stoker.rundir.layout import RunDir
from stoker.terminal import console, parity_lines
from stoker.terminal.figures import size

NAME = "merged"


def merge(name: str, *, as_json: bool) -> None:
    """Merge a finished run's adapter; of a model tuned in full, say that it is whole."""
    run_dir = layout.find(name)
    if has_adapter(run_dir):
        make(run_dir)
        path = artifacts.folder(run_dir, NAME)
    else:
        console.talk("merge.whole", name=run_dir.name)
        path = run_dir.final
    if as_json:
        console.data_json({"path": str(path), "parity": artifacts.parity(run_dir).get(NAME)})
    else:
        console.data(str(path))


def has_adapter(run_dir: RunDir) -> bool:
    """Whether the finished model is an adapter; an error where nothing is finished."""
    if not run_dir.final.is_dir():
        raise StokerError("STK610", name=run_dir.name)
    return (run_dir.final / "adapter_config.json").is_file()


def current(run_dir: RunDir) -> Path | None:
    """The merged model, where one was accepted that was made of this very adapter."""
    folder = artifacts.folder(run_dir, NAME)
    made = [event for event in events.skim(run_dir.events_file) if event["event"] == "merged"]
    adapter = run_dir.final / "adapter_model.safetensors"
    same = bool(made) and made[-1]["adapter"] == files.sha256(adapter)
    accepted = artifacts.parity(run_dir).get(NAME, {}).get("accepted", False)
    return folder if same and folder.is_dir() and accepted else None


def make(run_dir: RunDir) -> Path:
    """Merge, compare, accept."""
    training.require_idle(run_dir)
    made: dict[str, Any] = {}
    with console.status() as status:

        def take(event: dict[str, Any]) -> None:
            if event["event"] == "merging":
                done, total = (size(event[key]) for key in ("done_bytes", "total_bytes"))
                status.show(messages.text("merge.progress", done=done, total=total))
            elif event["event"] == "merged":
                made.update(event)

        programs.run_engine("merge", run_dir, take)
    parity_lines.compare(run_dir, NAME)
    path = artifacts.accept(run_dir, NAME)
    if made["untied"]:
        console.talk("merge.untied")
    if not made["base_verified"]:
        console.talk("merge.unverified")
    figures = {key: made[key] for key in ("adapted", "tensors", "dtype")}
    console.talk("merge.done", **figures, size=size(made["bytes"]), path=path)
    return path
