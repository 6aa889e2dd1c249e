"""Layout of a run directory on disk, and how one is opened.

The light and the heavy world meet here: one writes the directory, the other is started with its path.
"""

import contextlib
import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from stoker import __version__, env, messages
from stoker.config import load, reader
from stoker.config.load import RunFile
from stoker.config.run import Run
from stoker.errors import StokerError, checked_name, closest
from stoker.rundir import checkpoints, events, files, in_place, training_words
from stoker.rundir.checkpoints import Checkpoint, Commit

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
        """Held by the supervisor as long as it supervises."""
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
        """Held by the trainer as long as it trains."""
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
            raise StokerError("STK501", name=self.name, folder=self.path.parent, nearest="") from error

    def run(self) -> Run:
        """The run file with the overrides it was started with."""
        return self.file().run

    def file(self) -> RunFile:
        """The run file it was started with; the run's name is that of its directory, which may have been renamed."""
        manifest = self.manifest()
        text = manifest.text or reader.read_text(self.run_file)
        return load.again(text, "run.yaml", Path(manifest.folder), manifest.overrides, self.name)

    def words(self, run: Run | None = None) -> dict[str, Any]:
        """The words of its training, as every one of its checkpoints has them.

        Args:
            run: Another run file to train here by; it stays the fork that it is.
        """
        origin = self.manifest().forked_from if self.manifest_file.exists() else None
        return training_words.of(run or self.run(), origin)

    def folder(self) -> Path:
        """Where the run file's relative paths start."""
        return Path(self.manifest().folder)


def runs_folder() -> Path:
    """The folder that holds run directories."""
    return Path(env.read(env.RUNS, "runs"))


def find(name: str) -> RunDir:
    """An existing run directory by name, by the name of its run file, or by path."""
    of_file = runs_folder() / load.run_name(Path(name).name)
    for path in (runs_folder() / name, Path(name), *([of_file] if name and name == Path(name).name else [])):
        if (path / "manifest.json").is_file():
            return checked(RunDir(path))
    nearest = closest(name, [one.name for one in all_runs()])
    raise StokerError("STK501", name=name, folder=runs_folder(), nearest=nearest)


def use_folder_of(name: str) -> None:
    """The folder of a run that is named by its path is the runs folder, from now on and for this process."""
    with contextlib.suppress(StokerError):
        path = find(name).path.absolute()
        if path.parent != runs_folder().absolute():
            env.put(env.RUNS, str(path.parent))


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
    `where`, `save`, `budget` and declared sizes may change between attempts. A run that was renamed is not begun again
    under its old name.
    """
    assert run_file.run.name is not None
    run_dir = named(run_file.run.name)
    if run_dir.manifest_file.exists():
        if was_trained(run_dir) and (changes := training_words.changed(run_dir.run(), run_file.run)):
            raise StokerError("STK401", name=run_dir.name, folder=run_dir.path, changes=changes)
        lasting = run_dir.manifest().model_dump(include=_LASTING)
        write(run_dir, run_file, **{**lasting, "forked_from": lasting["forked_from"] or _origin(run_dir)})
    elif (now := renamed(run_dir)) and not training_words.differing(now.words(), training_words.of(run_file.run)):
        raise StokerError("STK441", name=run_dir.name, folder=now.path, file=run_file.name, now=now.name)
    else:
        write(run_dir, run_file, forked_from=_origin(run_dir))
    return run_dir


def present(run_dir: RunDir) -> RunDir:
    """The same run by the name that its folder has now."""
    if _is_former_name(run_dir.path):
        return RunDir(run_dir.path.with_name(run_dir.path.resolve().name))
    return run_dir if run_dir.path.exists() else renamed(run_dir) or run_dir


def renamed(run_dir: RunDir) -> RunDir | None:
    """The run that was trained in this directory and has another name now (`mv runs/v runs/w`)."""
    for one in all_runs():
        with contextlib.suppress(StokerError, OSError):
            if one.name != run_dir.name == one.manifest().name and was_trained(one):
                return one
    return None


def _origin(run_dir: RunDir) -> dict[str, Any] | None:
    """What the run was forked from, by a checkpoint that was sent here before its manifest was written."""
    sent = checkpoints.committed(run_dir.checkpoints)
    return training_words.origin(sent[-1].commit.words) if sent else None


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
        folder=str(checked_name(run_file.folder)),
        **{"created": now, **facts},
    )
    files.write_json(run_dir.manifest_file, manifest.model_dump())


def was_trained(run_dir: RunDir) -> bool:
    """Whether a step was ever done or committed here."""
    return events.has_steps(run_dir.events_file) or bool(checkpoints.committed(run_dir.checkpoints))


def unfinished(run_dir: RunDir) -> StokerError:
    """The error of a run without a finished model: not fully trained, or never begun."""
    return StokerError("STK610" if was_trained(run_dir) else "STK502", name=run_dir.name)


def words_of(manifest: Manifest, text: str) -> dict[str, Any]:
    """The words of a training by the manifest of another machine.

    Args:
        manifest: As it is there.
        text: `run.yaml` there, for a manifest that has no text.
    """
    run = load.parse(manifest.text or text, "run.yaml", manifest.overrides)
    return training_words.of(run, manifest.forked_from)


def adopt(run_dir: RunDir, aside: Path) -> Checkpoint:
    """Commit a complete folder that was brought from elsewhere, on the same disk; one of another training is refused.

    Raises:
        StokerError: STK663 where it is of another training.
        OSError: Where it is not whole.
    """
    if isinstance(commit := checkpoints.read_commit(aside), Commit):
        require_same_training(run_dir, commit)
    return checkpoints.adopt(run_dir.checkpoints, aside)


def require_same_training(run_dir: RunDir, commit: Commit) -> None:
    """Refuse a checkpoint of another training. One of an older Stoker does not say; the trainer compares its data."""
    if commit.words is None or not run_dir.manifest_file.exists():
        return
    if changes := training_words.differing(run_dir.words(), commit.words):
        source = messages.text("other.checkpoint", step=commit.step)
        raise StokerError("STK663", source=source, name=run_dir.name, folder=run_dir.path, changes=changes)


def record(run_dir: RunDir, **facts: Any) -> None:
    """Write more facts into the manifest: versions, machine, data digest, git state."""
    manifest = run_dir.manifest().model_copy(update=facts)
    files.write_json(run_dir.manifest_file, manifest.model_dump())
