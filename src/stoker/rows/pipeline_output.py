"""What `data.pipeline` left on disk: the documents of each source, and datatrove's counts.

    pipeline/<key>/job.json        what datatrove is asked for
    pipeline/<key>/stages/         a folder for each stage, with datatrove's logs, marks of completion and statistics
    pipeline/<key>/output/         00000.jsonl for each task: what `prepare` reads
    pipeline/<key>/refused.json    the row or file that ended it
    pipeline/<key>/bad_rows/       rows that could not be used, for each task, where `data.on_bad_row` is `skip`
    pipeline/<key>/dropped/        what each step removed, and why
    pipeline/<key>/done.json       written last: sizes, digests and counts
The key is a digest of the steps and of the content of sources and eval sets.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from stoker.config.run import Run
from stoker.rundir import digests, file_check, inputs
from stoker.rundir.layout import RunDir


class PipelineJob(BaseModel):
    """`job.json`: what the program in datatrove's environment reads."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    key: str
    version: str
    """Of datatrove: a pipeline that another one began is begun again."""
    folder: str
    """Where everything is written."""
    root: str
    """Paths of `shares` begin here."""
    shares: list[dict[str, Any]]
    """For each task: the source it is of, the kind of file, and its files."""
    steps: list[dict[str, Any]]
    executor: dict[str, Any]
    """Options of datatrove's executor."""
    on_bad_row: str
    """Whether a row that cannot be used ends it (`stop`) or is counted (`skip`)."""


class PipelineResult(BaseModel):
    """`done.json`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    key: str
    version: str
    """Of datatrove."""
    files: dict[str, tuple[int, str]]
    """Size and SHA-256 of each file of the output."""
    stages: list[dict[str, Any]]
    """For each stage: name, tasks, and the counts of its blocks."""


def key(run: Run, folder: Path) -> str:
    """Digest of the steps, and of the content of what they read."""
    asked = [step.model_dump() for step in run.data.pipeline or ()]
    sources = [source.model_dump(exclude={"weight", "columns"}) for source in inputs.train_sources(run)]
    read = [(path, kinds) for path, kinds in inputs.pipeline_reads(run) if not inputs.is_remote(path)]
    found = [file for path, kinds in read for file in inputs.expand(path, folder, kinds)]
    known = digests.of_all(found)
    facts = [[inputs.label(path, folder), known[path]] for path in found]
    return hashlib.sha256(json.dumps([asked, sources, facts], sort_keys=True).encode()).hexdigest()


def place(run_dir: RunDir) -> Path:
    """Where the run's pipeline works."""
    return run_dir.path / "pipeline" / key(run_dir.run(), run_dir.folder())[:16]


def read(place: Path) -> tuple[PipelineJob, PipelineResult] | None:
    """A finished pipeline whose output is all there; None if it is not."""
    try:
        result = PipelineResult.model_validate(file_check.read_json(place / "done.json"))
        job = PipelineJob.model_validate(file_check.read_json(place / "job.json"))
    except ValueError:
        return None
    known = digests.of_all([path for path in file_check.inside(place / "output") if path.suffix == ".jsonl"])
    found = {path.name: (path.stat().st_size, one) for path, one in known.items()}
    return (job, result) if found == result.files else None


def title(block: dict[str, Any]) -> str:
    """The name of a block, without datatrove's pictures."""
    return re.sub(r"^.*?: \W*", "", str(block["block"]))


def num_bad(stages: list[dict[str, Any]]) -> int:
    """How many rows of the sources were left out; a step that sees all documents first reads them twice."""
    return max((sum(block["counts"].get("bad_rows", 0) for block in one["blocks"]) for one in stages), default=0)


def of_source(job: PipelineJob, result: PipelineResult, number: int) -> list[str]:
    """Names of the output's files of a source, in the order of its rows."""
    names = [f"{task:05d}.jsonl" for task, share in enumerate(job.shares) if share["source"] == number]
    return [name for name in names if name in result.files]
