"""Layout of a run directory on disk, and how one is opened.

The light and the heavy world meet here: one writes the directory, the other is started with its path.
"""

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from stoker import __version__, env
from stoker.config import load, reader
from stoker.config.load import RunFile
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.rundir import checkpoints, events, files, in_place, training_words

FORMAT = 1
_LASTING = {"created", "forked_from", "versions", "machine", "data_digest", "git"}
"""What the manifest keeps when a run is opened again; the next start records it anew."""


class Manifest(BaseModel):
    """How a run came about: versions, overrides, where its relative paths start. Read leniently."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: int = FORMAT
    name: str
    created: str
    stoker_version: str
    run_file: str
    text: str = ""
    """The run file's text. `run.yaml` is a copy for people: editing it does not change a run that was started."""
    overrides: list[str]
    folder: str
    versions: dict[str, str] = {}
    machine: dict[str, Any] = {}
    data_digest: str = ""
    forked_from: dict[str, Any] | None = None
    """The run and checkpoint it was forked from: run, step, commit, weights_only."""
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
        """The run file as the user wrote it, for people; Stoker reads the manifest's."""
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
        """The run file it was started with; the run's name is that of its directory, which may have been renamed."""
        manifest = self.manifest()
        text = manifest.text or reader.read_text(self.run_file)
        return load.again(text, "run.yaml", Path(manifest.folder), manifest.overrides, self.name)

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
            return checked(RunDir(path))
    raise StokerError("STK501", name=name, folder=runs_folder())


def named(name: str) -> RunDir:
    """The run directory of this name in the runs folder, whether it is there yet or not."""
    return checked(RunDir(runs_folder() / name))


def checked(run_dir: RunDir) -> RunDir:
    """The same; it may be a stranger's, so one with links in it is refused. It may be a link as a whole."""
    if found := in_place.unusual(run_dir.path):
        raise StokerError("STK520", path=found.filename, reason=found.strerror)
    return run_dir


def all_runs() -> list[RunDir]:
    """Every run directory in the runs folder, by name; not `checked`."""
    folder = runs_folder()
    if not folder.is_dir():
        return []
    found = [RunDir(path) for path in sorted(folder.iterdir()) if (path / "manifest.json").is_file()]
    return [one for one in found if not _is_former_name(one.path)]


def _is_former_name(path: Path) -> bool:
    """Whether it is the link that a training leaves at its old name while it goes on (`mv runs/v runs/w`)."""
    return path.is_symlink() and path.resolve().parent == path.parent.resolve()


def create(run_file: RunFile) -> RunDir:
    """Make the run directory, or open the one that holds this very run.

    Once a step was done, what changes the training (model, tokenizer, data, tune, train, native) must be equal;
    `where`, `save`, `budget` and declared sizes may change between attempts.
    """
    assert run_file.run.name is not None
    run_dir = named(run_file.run.name)
    if run_dir.manifest_file.exists():
        if was_trained(run_dir) and (changes := training_words.changed(run_dir.run(), run_file.run)):
            raise StokerError("STK401", name=run_dir.name, folder=run_dir.path, changes=", ".join(changes))
        write(run_dir, run_file, **run_dir.manifest().model_dump(include=_LASTING))
    else:
        write(run_dir, run_file)
    return run_dir


def write(run_dir: RunDir, run_file: RunFile, **facts: Any) -> None:
    """Write a run file and its manifest, with further facts, into a run directory."""
    run_dir.path.mkdir(parents=True, exist_ok=True)
    files.write_text(run_dir.run_file, run_file.text)
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    manifest = Manifest(
        name=run_dir.name,
        stoker_version=__version__,
        run_file=run_file.name,
        text=run_file.text,
        overrides=list(run_file.overrides),
        folder=str(run_file.folder),
        **{"created": now, **facts},
    )
    files.write_json(run_dir.manifest_file, manifest.model_dump())


def was_trained(run_dir: RunDir) -> bool:
    """Whether a step was ever done or committed here."""
    return events.has_steps(run_dir.events_file) or bool(checkpoints.committed(run_dir.checkpoints))


def record(run_dir: RunDir, **facts: Any) -> None:
    """Write more facts into the manifest: versions, machine, data digest, git state."""
    manifest = run_dir.manifest().model_copy(update=facts)
    files.write_json(run_dir.manifest_file, manifest.model_dump())
