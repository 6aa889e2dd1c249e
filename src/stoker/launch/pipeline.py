"""Runs `data.pipeline` with datatrove, in its own environment, before the data is prepared.

Which documents a task reads is decided here, from the sources alone: neither the machine nor the number of workers
changes a byte of the output. What runs is `engine/foreign/stoker_pipeline.py`; a killed one goes on where it was.
"""

import itertools
import os
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

from stoker import messages, tools
from stoker.config.data_section import Source
from stoker.config.pipeline_steps import Block, Decontamination
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.rows import pipeline_output, row_files
from stoker.rows.pipeline_output import PipelineJob
from stoker.rows.row_values import BadRow
from stoker.rundir import file_check, files, inputs
from stoker.rundir.events import EventCallback
from stoker.rundir.layout import RunDir
from stoker.supervise import starting

MOST_TASKS = 1000
"""A task has some files; datatrove does not divide a file."""
_HUB_TASKS = 16
_LOOK_SECONDS = 0.5


def run(run_dir: RunDir, on_event: EventCallback) -> None:
    """Run the pipeline of a run, unless there is none or its output is there.

    Args:
        run_dir: The run directory.
        on_event: Gets `{"event": "pipeline", "stage": ..., "done": ...}` (completed tasks of a stage) now and then.
    """
    asked = run_dir.run()
    if not asked.data.pipeline:
        return
    place = pipeline_output.place(run_dir)
    found = pipeline_output.read(place)
    if found and (asked.data.on_bad_row == "skip" or not pipeline_output.num_bad(found[1].stages)):
        return
    python = tools.require(tools.DATATROVE)
    job = _job(run_dir, place, tools.version(python, "datatrove"))
    if not _goes_on(place, job):
        shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True, exist_ok=True)
    files.write_json(place / "job.json", job.model_dump())
    refused = place / "refused.json"
    refused.unlink(missing_ok=True)
    log = run_dir.logs / "pipeline.log"
    foreign = resources.files("stoker.engine.foreign")
    with resources.as_file(foreign.joinpath("stoker_pipeline.py")) as script:
        words = [str(python), "-I", "-X", "utf8", str(script), str(place / "job.json"), str(os.getpid())]
        code = _watch(starting.start(words, log, detached=False), place, on_event)
    if pipeline_output.place(run_dir) != place:
        shutil.rmtree(place, ignore_errors=True)
        raise StokerError("STK366", changed=[one.path for one in inputs.train_sources(asked)])
    if code == 0 and pipeline_output.read(place):
        return
    if refused.exists():
        raise _refused(files.read_object(refused), run_dir.folder())
    raise StokerError("STK409", program="pipeline", exit_code=code, log=log)


def _refused(said: dict[str, Any], folder: Path) -> StokerError:
    """The error of what ended a pipeline, as `prepare` would say it of the same file."""
    label, row, reason, values = said["file"], said["row"], said["reason"], said["values"]
    if reason == "damaged":
        return row_files.damaged(label, values["problem"])
    if reason == "encoding":
        return row_files.not_utf8(row_files.File(label, folder / label, Source(path=label), 0))
    if reason == "row.not_json":
        problem = values["problem"]
        values["problem"] = messages.text("json.limit") if problem == "limit" else row_files.json_fault(problem)
    if reason == "row.no_document":
        values["keys"] = [f"`{key}`" for key in values["keys"]]
    if reason == "row.wrong_type":
        values["expected"] = messages.text(f"type.{values['expected']}")
    in_lines = inputs.kind(Path(label)) in (".jsonl", ".csv")
    where = row_files.place(label, row if in_lines else row_files.Record(row)) if row else label
    return row_files.unusable(where, reason, BadRow(reason, **values).text)


def _goes_on(place: Path, job: PipelineJob) -> bool:
    """Whether a pipeline was begun there that this one can go on with.

    None of another datatrove, none that leaves out what this one names, and none that has finished: its output is not
    what it was.
    """
    try:
        begun = PipelineJob.model_validate(file_check.read_json(place / "job.json"))
    except ValueError:
        return False
    same = begun.version == job.version and begun.on_bad_row in ("stop", job.on_bad_row)
    return same and not (place / "done.json").exists()


def _watch(process: "subprocess.Popen[bytes]", place: Path, on_event: EventCallback) -> int:
    """Say which stage is worked on, by datatrove's marks of completion, until the program ends."""
    said = ("", 0)
    try:
        while process.poll() is None:
            stages = sorted((place / "stages").glob("*"))
            now = (stages[-1].name, sum(1 for _ in stages[-1].glob("completions/*"))) if stages else said
            if now != said:
                said = now
                on_event({"event": "pipeline", "stage": now[0].partition(".")[2], "done": now[1]})
            try:
                process.wait(_LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                continue
    finally:
        if process.poll() is None:  # its workers are killed with it
            process.terminate()
            process.wait()
    return process.returncode


# ---- the job


def _job(run_dir: RunDir, place: Path, version: str) -> PipelineJob:
    run, folder = run_dir.run(), run_dir.folder()
    return PipelineJob(
        key=pipeline_output.key(run, folder),
        version=version,
        folder=str(place.resolve()),
        root=str(folder),
        shares=_shares(run, folder),
        steps=[_step(step, folder) for step in run.data.pipeline or ()],
        executor=run.native.datatrove,
        on_bad_row=run.data.on_bad_row,
    )


def _shares(run: Run, folder: Path) -> list[dict[str, Any]]:
    """What each task reads: files of one kind and one source, in their order."""
    sources = inputs.train_sources(run)
    groups = [(number, group) for number, source in enumerate(sources) for group in _groups(source, folder)]
    most = -(-sum(len(group["files"]) for _, group in groups) // MOST_TASKS)
    return [{"source": number, **part} for number, group in groups for part in _parts(group, most)]


def _groups(source: Source, folder: Path) -> list[dict[str, Any]]:
    if inputs.is_remote(source.path):
        hub, _, name = source.path.partition(":")
        if hub != "hub":
            raise StokerError("STK332", path=source.path)
        return [{"kind": "hub", "files": [name], "config": source.config, "split": source.split}]
    return _by_kind(inputs.expand(source.path, folder, inputs.PIPELINE_SUFFIXES), folder)


def _by_kind(paths: list[Path], folder: Path) -> list[dict[str, Any]]:
    return [
        {"kind": kind, "files": [Path(os.path.relpath(path, folder)).as_posix() for path in group]}
        for kind, group in itertools.groupby(paths, inputs.kind)
    ]


def _parts(group: dict[str, Any], most: int) -> list[dict[str, Any]]:
    if group["kind"] == "hub":
        return [{**group, "part": part, "parts": _HUB_TASKS} for part in range(_HUB_TASKS)]
    return [{**group, "files": group["files"][at : at + most]} for at in range(0, len(group["files"]), most)]


def _step(step: Block | Decontamination, folder: Path) -> dict[str, Any]:
    """A step, with the files of its eval sets."""
    if isinstance(step, Block):
        return step.model_dump()
    found = [file for path in step.eval_sets for file in inputs.expand(path, folder, inputs.PIPELINE_SUFFIXES)]
    return {**step.model_dump(), "against": _by_kind(found, folder)}
