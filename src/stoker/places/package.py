"""A run packed for another machine: run file, input files, prepared data, an earlier run's model.

File names are relative to Stoker's folder there:
    inputs/<name>/...    the run file and its inputs, with the relative paths between them kept
    runs/<name>/data/    the prepared set, if it was prepared here; its sources are not sent then
"""

import dataclasses
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from stoker import env
from stoker.config import dataset_info, load, mixing
from stoker.config.data_section import Source
from stoker.config.load import RunFile
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.rundir import checkpoints, digests, files, inputs, layout, prepared
from stoker.rundir.layout import RunDir

_BUCKET = (env.AWS_ACCESS_KEY_ID, env.AWS_SECRET_ACCESS_KEY, env.AWS_SESSION_TOKEN, env.AWS_ENDPOINT_URL)
SECRETS = (*_BUCKET, env.HF_TOKEN, env.WEBHOOK, env.WEBHOOK_SECRET, env.NOTIFY_COMMAND)
"""Variables that a run may need anywhere. They are sent through the environment only."""
PAST = ("events.jsonl", "supervisor.json")
"""What a run's next place reads of its past: steps passed over, losses, hours spent."""
_OWN = {"autodl": env.AUTODL_TOKEN}
"""Sent to machines of that platform only."""


@dataclass(frozen=True)
class Package:
    """A run ready to send."""

    name: str
    """Of the run."""
    files: dict[str, Path]
    """Name below Stoker's folder there -> path here."""
    folder: str
    """Working directory of `stoker train`, below Stoker's folder."""
    words: tuple[str, ...]
    """Arguments of `stoker` that start or continue the run."""
    digests: dict[str, str]
    """SHA-256 of files whose digest is known already."""
    prepared: bool
    """Whether the data is prepared."""
    training: dict[str, Any] = field(default_factory=dict)
    """The words of its training, see `training_words`; empty where they are not known."""
    checkpoint_bytes: int = 0
    """Size of one checkpoint of the run, as planned; 0 where no plan was made."""

    @property
    def joining(self) -> tuple[str, ...]:
        """Arguments of `stoker` on a machine that joins the run."""
        return ("join", *(word for word in self.words[1:] if word != "--detach"))

    def digest(self, name: str) -> str:
        """SHA-256 of a file."""
        return self.digests.get(name) or digests.of(self.files[name])

    @property
    def report(self) -> str:
        """Name of the prepared set's report."""
        return f"runs/{self.name}/data/report.json"

    @property
    def set_digest(self) -> str:
        """Digest of the prepared set, by its report; empty where that is none of ours."""
        text = self.files[self.report].read_text(encoding="utf-8")
        found = re.search(r'^ "digest": "([0-9a-f]+)"', text, re.MULTILINE)
        return found[1] if found else ""

    @property
    def saved(self) -> dict[str, str]:
        """Its checkpoints: the name of each one's folder, and the SHA-256 of its record."""
        start, end = f"runs/{self.name}/checkpoints/", f"/{checkpoints.COMMIT_NAME}"
        records = [name for name in self.files if name.startswith(start) and name.endswith(end)]
        return {name.removeprefix(start).removesuffix(end): self.digest(name) for name in records}

    @property
    def without_past(self) -> "Package":
        """The same for a machine that joins the run: neither its checkpoints nor its events."""
        past = (f"runs/{self.name}/checkpoints/", *(f"runs/{self.name}/{name}" for name in PAST))
        kept = {name: path for name, path in self.files.items() if not name.startswith(past)}
        return dataclasses.replace(self, files=kept)

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return sum(path.stat().st_size for path in self.files.values())


def make(name: str, run_file: RunFile, overrides: list[str], *, moving: bool = False) -> Package:
    """Pack a run.

    Args:
        name: Run file or recipe, as the user named it.
        run_file: Its content.
        overrides: The user's `--set`.
        moving: With its newest checkpoint, its best one and its past, if it has any here.
    """
    run_name = str(run_file.run.name)
    data, digests = _prepared(run_file)
    is_recipe = name in load.recipe_names() and not Path(name).exists()
    read = list(_read(run_file, sources=not data))
    if not data and (local := [path for path in mixing.set_paths(run_file.run.data) if "://" not in path]):
        raise StokerError("STK350", path=local[0], name=run_name)
    own = [] if is_recipe or run_file.plugin_file else [run_file.folder / run_file.name]
    folder, names = _arranged(run_file, own, read)
    called = name if is_recipe else run_file.name
    if run_file.plugin_file:
        # The package that provides the recipe need not be installed there.
        called = f"{run_name}.yaml"
        names[str(PurePosixPath(folder) / called)] = run_file.plugin_file
    found = {f"inputs/{run_name}/{inner}": path for inner, path in names.items()}
    found |= {f"runs/{run_name}/data/{inner}": path for inner, path in data.items()}
    found |= _so_far(run_name) if moving else {}
    found |= _earlier(run_file.run)
    # Packages that provide places need not be installed there, so their options are left out.
    others = [f"native.{name}=" for name in run_file.run.native.model_extra or ()]
    sets = [word for one in [*overrides, "where.place=local", *others] for word in ("--set", one)]
    return Package(
        name=run_name,
        files=found,
        folder=f"inputs/{run_name}/{folder}".rstrip("/."),
        words=("train", called, *sets, "--detach"),
        digests={f"runs/{run_name}/data/{inner}": digest for inner, digest in digests.items()},
        prepared=bool(data),
        training=layout.named(run_name).words(run_file.run),
    )


def secrets(run: Run | None = None, platform: str = "") -> dict[str, str]:
    """Variables that are set here and needed there.

    Args:
        run: Keys of a bucket are sent with a run whose store is one; without a run they are not.
        platform: Name of the platform it runs on.
    """
    wanted = [one for one in SECRETS if one not in _BUCKET or (run is not None and _has_bucket(run))]
    wanted += [_OWN[platform]] if platform in _OWN else []
    return {one.name: env.read(one) for one in wanted if env.read(one)}


def _has_bucket(run: Run) -> bool:
    return any((where or "").startswith("s3://") for where in (run.save.store, *mixing.set_paths(run.data)))


def _prepared(run_file: RunFile) -> tuple[dict[str, Path], dict[str, str]]:
    """Files of the prepared set by name and the digests in its report; empty where this run has none."""
    try:
        run_dir = layout.find(str(run_file.run.name))
    except StokerError:
        return {}, {}
    report = prepared.current_report(run_dir, run_file.run, run_file.folder)
    if report is None:
        return {}, {}
    inner = [path for path in files.below(run_dir.data) if not path.name.startswith(".")]
    found = {path.relative_to(run_dir.data).as_posix(): path for path in inner}
    return found, {name: digest for name, digest in report.files.items() if name in found}


def _so_far(run_name: str) -> dict[str, Path]:
    """The newest checkpoint here that verifies, the best that it names, what was passed over, and what was spent."""
    run_dir = layout.named(run_name)
    newest, _ = checkpoints.newest_verified(run_dir.checkpoints)
    if newest is None:
        return {}
    past = {f"runs/{run_name}/{name}": run_dir.path / name for name in PAST if (run_dir.path / name).is_file()}
    kept = checkpoints.with_best(run_dir.checkpoints, newest, verified=True)
    inner = [one.path / name for one in kept for name in (*one.commit.files, checkpoints.COMMIT_NAME)]
    return {**past, **{f"runs/{run_name}/{path.relative_to(run_dir.path).as_posix()}": path for path in inner}}


def _read(run_file: RunFile, *, sources: bool) -> Iterator[tuple[str, Path]]:
    """Input files of a run: the value in the run file, and the file."""
    run, folder = run_file.run, run_file.folder
    if sources:
        for path, kinds in inputs.named(run):
            if not inputs.is_remote(path) and not path.startswith(inputs.SHIPPED):
                data = dataset_info.resolve(Source(path=path), folder).path
                yield from ((data, file) for file in inputs.expand(path, folder, kinds))
    rewards = (one.file for one in run.train.grpo.rewards or ())
    for word in (run.model, run.tokenizer, run.native.deepspeed, run.train.teacher, *rewards):
        if isinstance(word, str) and not word.startswith(inputs.EARLIER_RUN) and (folder / word).exists():
            full = folder / word
            yield from ((word, file) for file in ([full] if full.is_file() else files.below(full)))


def _arranged(run_file: RunFile, own: list[Path], read: list[tuple[str, Path]]) -> tuple[str, dict[str, Path]]:
    """The run file's folder below the inputs, and every file's name: relative paths such as `../data` stay valid."""
    if absolute := next((word for word, _ in read if Path(word).is_absolute()), None):
        raise StokerError("STK704", path=absolute, name=run_file.name)
    paths = [*own, *(path for _, path in read)]
    names = {path: PurePosixPath(Path(os.path.relpath(path, run_file.folder)).as_posix()) for path in paths}
    up = max((name.parts.count("..") for name in names.values()), default=0)
    top = run_file.folder.parents[up - 1] if up else run_file.folder
    folder = run_file.folder.relative_to(top).as_posix()
    return folder, {Path(os.path.relpath(path, top)).as_posix(): path for path in paths}


def _earlier(run: Run) -> dict[str, Path]:
    """Files of an earlier run that this one starts from."""
    found: dict[str, Path] = {}
    for word in (run.model, run.tokenizer, run.train.teacher):
        if isinstance(word, str) and word.startswith(inputs.EARLIER_RUN):
            run_dir = layout.find(word.removeprefix(inputs.EARLIER_RUN))
            found |= {f"runs/{run_dir.name}/{inner}": path for inner, path in _made(run_dir)}
    return found


def _made(run_dir: RunDir) -> Iterator[tuple[str, Path]]:
    whole = inputs.whole_model(run_dir)
    other = [run_dir.artifacts / "parity.json", *files.below(whole)] if whole != run_dir.final else []
    for path in (run_dir.run_file, run_dir.manifest_file, *files.below(run_dir.final), *other):
        yield path.relative_to(run_dir.path).as_posix(), path
