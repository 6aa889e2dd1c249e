"""Prepares a run's data by the engine's program, where it is not prepared yet."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stoker.api import loading
from stoker.api.loading import RunSource
from stoker.config.load import RunFile
from stoker.errors import StokerError
from stoker.facts import shapes
from stoker.launch import pipeline, programs, training
from stoker.rundir import checkpoints, digests, inputs, layout, prepared, safetensors_headers
from stoker.rundir.digests import Progress
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report
from stoker.store import sets


def prepare(run: RunSource, overrides: Mapping[str, Any] | None = None) -> Report:
    """Tokenise, mask and pack a run's data; returns what was found in it. Needs the packages of `stoker[train]`."""
    run_file = loading.load(run, overrides)
    with run_file.located(), created(run_file) as run_dir:
        return ensure(run_dir)


@contextmanager
def created(run_file: RunFile) -> Iterator[RunDir]:
    """The run directory of a run file, with the run file in it; for the block nobody else starts the run."""
    run_dir = layout.named(str(run_file.run.name))
    with training.claimed(run_dir):
        layout.create(run_file)
        yield run_dir


def ensure(run_dir: RunDir) -> Report:
    """The report of the run's prepared data, which is prepared now where it is not yet."""
    return current(run_dir) or make(run_dir, lambda _: None)


def require_models(run_dir: RunDir) -> None:
    """Refuse a model whose name is a path where no folder is, before minutes are spent on the data."""
    run, folder = run_dir.run(), run_dir.folder()
    for word, named in (("model", run.model), ("train.distill.teacher", run.train.teacher)):
        if isinstance(named, str):
            shapes.require_folder(named, folder, word)


def read_inputs(run_dir: RunDir, progress: Progress) -> None:
    """Digest the sources and the models, which may take minutes once: what follows finds the digests remembered."""
    run, folder = run_dir.run(), run_dir.folder()
    with suppress(StokerError):  # sources that are not on this machine, said where they are needed
        named = [one for one in (run.model, run.train.teacher) if isinstance(one, str)]
        folders = [path for one in named if (path := Path(inputs.model_path(one, folder))).is_dir()]
        weights = [file for path in folders for file in safetensors_headers.digested(path)]
        digests.of_all([*weights, *inputs.read_files(run, folder)], progress)


def current(run_dir: RunDir) -> Report | None:
    """The report of the run's prepared data; None where it is to be prepared.

    That is refused for a run that is being trained, or that has checkpoints and their set, damaged or of other words.
    Where there is none, as on a machine it moved to, or another set, it is prepared; the trainer compares the digests.
    """
    run = run_dir.run()
    report = prepared.current_report(run_dir, run, run_dir.folder())
    if report is not None:
        return report
    training.require_idle(run_dir)
    if run.data.set is not None:
        return None  # it is brought by its digest
    trained = any(one.step for one in checkpoints.committed(run_dir.checkpoints))  # a fork of weights begins at step 0
    there = prepared.read_report(run_dir.data)
    if trained and there is not None and prepared.is_trained_on(run_dir, there):
        raise StokerError("STK415", name=run_dir.name)
    return None


def changed_sources(run_dir: RunDir, report: Report) -> list[str]:
    """Files that are not what the prepared data was made of: only a run that was trained goes on with it."""
    return prepared.changed_sources(report, run_dir.run(), run_dir.folder())


def push(run_dir: RunDir, where: str, folder: Path, progress: Progress) -> int:
    """Put the prepared data into a store; the bytes that were sent."""
    return sets.push(run_dir, where, folder, progress)


def _brought(done: int, total: int) -> dict[str, Any]:
    return {"event": "bringing", "done_bytes": done, "total_bytes": total}


def make(run_dir: RunDir, on_event: Callable[[dict[str, Any]], None]) -> Report:
    """Prepare the data, or bring the set that the run file names; `on_event` gets the events of the programs that do.

    A pipeline comes first. For a set that was brought, the program compares its tokenizer with the model's.
    """
    require_models(run_dir)
    if (run := run_dir.run()).data.set is not None:
        sets.bring(run_dir, run, run_dir.folder(), lambda done, total: on_event(_brought(done, total)))
    pipeline.run(run_dir, on_event)
    programs.run_engine("prepare", run_dir, on_event)
    report = prepared.read_report(run_dir.data)
    assert report is not None
    return report
