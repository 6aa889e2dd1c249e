"""Layout of a run directory on disk, and how one is opened.

The light and the heavy world meet here: one writes the directory, the other is started with its path.
"""

import datetime
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from stoker import __version__, env
from stoker.config import load, reader
from stoker.config.load import RunFile
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.rundir import checkpoints, events, files

FORMAT = 1


class Manifest(BaseModel):
    """How a run came about: versions, overrides, where its relative paths start. Read leniently."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: int = FORMAT
    name: str
    created: str
    stoker_version: str
    run_file: str
    overrides: list[str]
    folder: str
    versions: dict[str, str] = {}
    machine: dict[str, Any] = {}
    data_digest: str = ""
    git: str = ""
    """Commit of the run file's folder, with `+changes` where files differ from it; empty outside a repository."""


@dataclass(frozen=True)
class RunDir:
    """The paths of one run directory."""

    path: Path

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def run_file(self) -> Path:
        """The run file as the user wrote it."""
        return self.path / "run.yaml"

    @property
    def manifest_file(self) -> Path:
        """How the run came about."""
        return self.path / "manifest.json"

    @property
    def plan_file(self) -> Path:
        """What was decided."""
        return self.path / "plan.json"

    @property
    def data(self) -> Path:
        """The prepared set."""
        return self.path / "data"

    @property
    def events_file(self) -> Path:
        """What happened, line by line."""
        return self.path / "events.jsonl"

    @property
    def logs(self) -> Path:
        """Logs of every attempt and rank, and TensorBoard's files."""
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        """Committed checkpoints."""
        return self.path / "checkpoints"

    @property
    def artifacts(self) -> Path:
        """Finished models."""
        return self.path / "artifacts"

    @property
    def final(self) -> Path:
        """The trained model (or adapter) as transformers and PEFT read it."""
        return self.artifacts / "final"

    @property
    def evals(self) -> Path:
        """Answers to task files, and the harness' results."""
        return self.path / "evals"

    @property
    def process_file(self) -> Path:
        """Who is training here now."""
        return self.path / "process.json"

    @property
    def supervisor_file(self) -> Path:
        """How the supervisor sees the run: its heartbeat."""
        return self.path / "supervisor.json"

    @property
    def supervisor_lock(self) -> Path:
        """Held by the supervisor as long as it lives."""
        return self.path / "supervisor.lock"

    @property
    def launch_lock(self) -> Path:
        """Held from the command to the supervisor's start: data is prepared, a plan is made."""
        return self.path / "launch.lock"

    @property
    def heartbeat_file(self) -> Path:
        """Touched by the trainer as it works."""
        return self.path / "heartbeat"

    @property
    def store_folder(self) -> Path:
        """Files for copying to and from the store: locks, token, partial downloads."""
        return self.path / ".store"

    @property
    def lock_file(self) -> Path:
        """Held by the trainer as long as it lives."""
        return self.path / "train.lock"

    @property
    def place_file(self) -> Path:
        """Where the run was sent to, on the machine it was sent from."""
        return self.path / "place.json"

    @property
    def nodes_file(self) -> Path:
        """The machines of a run that uses several."""
        return self.path / "nodes.json"

    @property
    def stop_file(self) -> Path:
        """Its presence asks the trainer to commit and end; works from any system and over any line."""
        return self.path / "stop"

    @property
    def serving_file(self) -> Path:
        """Who serves the model now: pid, port, what is served. Never the token."""
        return self.path / "serving.json"

    @property
    def token_file(self) -> Path:
        """The token clients need, readable by its owner only."""
        return self.path / "serve.token"

    def log_file(self, attempt: int, rank: int = 0) -> Path:
        """The log of one rank in one attempt."""
        return self.logs / f"train-{attempt}-rank{rank}.log"

    def manifest(self) -> Manifest:
        """The manifest; an error names the folder that is not a run directory."""
        try:
            return files.read_record(self.manifest_file, Manifest)
        except FileNotFoundError as error:
            raise StokerError("STK501", name=self.name, folder=self.path.parent) from error

    def run(self) -> Run:
        """The run file with the overrides it was started with."""
        return self.file().run

    def file(self) -> RunFile:
        """The run file it was started with."""
        manifest, text = self.manifest(), reader.read_text(self.run_file)
        return load.again(text, "run.yaml", Path(manifest.folder), manifest.overrides, manifest.name)

    def folder(self) -> Path:
        """Where the run file's relative paths start."""
        return Path(self.manifest().folder)


def runs_folder() -> Path:
    """The folder that holds run directories."""
    return Path(env.read(env.RUNS, "runs"))


def find(name: str) -> RunDir:
    """An existing run directory by name or path."""
    for path in (runs_folder() / name, Path(name)):
        if (path / "manifest.json").is_file():
            return RunDir(path)
    raise StokerError("STK501", name=name, folder=runs_folder())


def all_runs() -> list[RunDir]:
    """Every run directory in the runs folder, by name."""
    folder = runs_folder()
    if not folder.is_dir():
        return []
    return [RunDir(path) for path in sorted(folder.iterdir()) if (path / "manifest.json").is_file()]


def create(run_file: RunFile, overrides: list[str]) -> RunDir:
    """Make the run directory, or open the one that holds this very run.

    Once a step was done, what changes the training (model, tokenizer, data, tune, train, native) must be equal;
    `where`, `save`, `budget` and declared sizes may change between attempts.
    """
    assert run_file.run.name is not None
    run_dir = RunDir(runs_folder() / run_file.run.name)
    if run_dir.manifest_file.exists():
        if was_trained(run_dir) and (changes := changed_words(run_dir.run(), run_file.run)):
            raise StokerError("STK401", folder=run_dir.path, changes=", ".join(changes))
        created = run_dir.manifest().created
    else:
        created = ""
    write(run_dir, run_file, overrides, created)
    return run_dir


def write(run_dir: RunDir, run_file: RunFile, overrides: list[str], created: str = "") -> None:
    """Write a run file and its manifest into a run directory."""
    run_dir.path.mkdir(parents=True, exist_ok=True)
    files.write_text(run_dir.run_file, run_file.text)
    manifest = Manifest(
        name=run_dir.name,
        created=created or datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        stoker_version=__version__,
        run_file=run_file.name,
        overrides=overrides,
        folder=str(run_file.folder),
    )
    files.write_json(run_dir.manifest_file, manifest.model_dump())


def was_trained(run_dir: RunDir) -> bool:
    """Whether a step was ever done or committed here."""
    return events.has_steps(run_dir.events_file) or bool(checkpoints.committed(run_dir.checkpoints))


def record(run_dir: RunDir, **facts: Any) -> None:
    """Write more facts into the manifest: versions, machine, data digest, git state."""
    manifest = run_dir.manifest().model_copy(update=facts)
    files.write_json(run_dir.manifest_file, manifest.model_dump())


_TRAINING_WORDS = ("model", "tokenizer", "data", "tune", "train", "native")
_DECLARED = {
    "data": {"rows", "tokens"},
    "train": {"on_bad_step", "spike"},
    "native": {"vllm"},
}
"""Sizes that only plans use, what to do about a bad step, how the model is served; options of places come on top."""


def changed_words(old: Run, new: Run) -> list[str]:
    """`train.epochs 3 -> 4` for each word that changes the training."""
    native = _DECLARED["native"] | old.native.place_blocks | new.native.place_blocks
    left_out = {**_DECLARED, "native": native}
    before, after = (run.model_dump(include=set(_TRAINING_WORDS), exclude=left_out) for run in (old, new))
    return _differences(before, after, "")


def _differences(before: Any, after: Any, path: str) -> list[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        found = []
        for key in sorted(before.keys() | after.keys()):
            found += _differences(before.get(key), after.get(key), f"{path}.{key}" if path else key)
        return found
    return [] if before == after else [f"{path} {_shown(before)} -> {_shown(after)}"]


def _shown(value: Any) -> str:
    """A value as the run file has it; `-` where it has none."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
