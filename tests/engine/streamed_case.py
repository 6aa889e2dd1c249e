"""Runs that read one prepared set: as it is, fetched from a store, or streamed from it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny_run

from stoker.config import load
from stoker.engine import read_ahead
from stoker.rundir import events, layout
from stoker.rundir.layout import RunDir
from stoker.store import sets


def text(base: Path, data: str, where: str = "micro: 4", train: str = "steps: 12") -> str:
    return f"""
model: {base}
data: {{{data}, eval: rows.jsonl, length: 64}}
tune: {{method: lora, rank: 4}}
train: {{batch: 8, {train}, epochs: 9, learning_rate: 1e-3, eval_every: 6 steps}}
save: {{every: 4 steps, keep: 3}}
where: {{{where}}}
"""


def local(folder: Path, base: Path, rows: int = 60, **options: Any) -> RunDir:
    """A run whose set is prepared in its own directory."""
    made = tiny_run.random_rows(rows, seed=5, longest=64, segments=3)
    return tiny_run.make_run(folder, text(base, "train: rows.jsonl", **options), made, made[:4])


def pushed(run_dir: RunDir, store: str) -> int:
    return sets.push(run_dir, store, run_dir.folder())


def referring(folder: Path, base: Path, store: str, *, words: str = "", **options: Any) -> RunDir:
    """A run with the set in a store, brought and planned; `words` are further ones of `data`."""
    return brought(folder, text(base, f'set: "{store}"{words}', **options))


def brought(folder: Path, content: str) -> RunDir:
    """A run by its run file, its set brought, planned."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.yaml").write_text(content)
    os.environ["STOKER_RUNS"] = str(folder / "runs")
    run_file = load.load(str(folder / "run.yaml"))
    run_dir = layout.create(run_file)
    sets.bring(run_dir, run_file.run, run_file.folder)
    return tiny_run.make_run(folder, content, [])


def sha(run_dir: RunDir) -> str:
    return tiny_run.weights_sha(run_dir.final)


def told(run_dir: RunDir, kind: str) -> list[dict[str, Any]]:
    return [event for event in events.read(run_dir.events_file) if event["event"] == kind]


def hasty(give_up_seconds: float = 600, said_seconds: float = 5) -> Callable[[], None]:
    """Less patience, for children that are forked from now on; returns what undoes it."""
    before = read_ahead._GIVE_UP_SECONDS, read_ahead._SAID_SECONDS
    read_ahead._GIVE_UP_SECONDS, read_ahead._SAID_SECONDS = give_up_seconds, said_seconds

    def undo() -> None:
        read_ahead._GIVE_UP_SECONDS, read_ahead._SAID_SECONDS = before

    return undo
