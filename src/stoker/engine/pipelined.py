"""Rows that come from `data.pipeline`: the files that datatrove wrote take the place of the sources."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.config.data_section import Source
from stoker.errors import StokerError
from stoker.rows import pipeline_output
from stoker.rows.pipeline_output import PipelineJob, PipelineResult
from stoker.rows.row_files import File
from stoker.rundir.layout import RunDir


def train_files(run_dir: RunDir) -> Callable[[int, Source], list[File]]:
    """The output's files of a source, by its number; a document is in one of them."""
    job, result = _finished(run_dir)
    place = pipeline_output.place(run_dir)
    if not any(size for size, _ in result.files.values()):
        raise _nothing_left(result, place)
    output = place / "output"

    def of_source(number: int, source: Source) -> list[File]:
        paths = [output / name for name in pipeline_output.of_source(job, result, number)]
        return [File(path.relative_to(run_dir.path).as_posix(), path, source, path.stat().st_size) for path in paths]

    return of_source


def _nothing_left(result: PipelineResult, place: Path) -> StokerError:
    dropped = [
        f"{pipeline_output.title(block)} {block['counts']['dropped']}"
        for stage in result.stages
        for block in stage["blocks"]
        if block["counts"].get("dropped")
    ]
    bad = pipeline_output.num_bad(result.stages)
    return StokerError("STK368", dropped=dropped or ["0"], bad=bad, folder=place)


def digests(run_dir: RunDir) -> list[str]:
    """SHA-256 of the output's files."""
    return [digest for _, digest in _finished(run_dir)[1].files.values()]


def statistics(run_dir: RunDir) -> list[dict[str, Any]]:
    """Counts of every stage, for the report."""
    return _finished(run_dir)[1].stages


def _finished(run_dir: RunDir) -> tuple[PipelineJob, PipelineResult]:
    found = pipeline_output.read(pipeline_output.place(run_dir))
    if found is None:
        raise StokerError("STK333", name=run_dir.name)
    return found
