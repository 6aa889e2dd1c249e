"""The position of a preparing pass, from which it goes on after a kill, and what makes another pass begin anew."""

import shutil
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from stoker.rundir import file_check, files, prepared, set_list
from stoker.survey import survey_page

_COUNTS = 2


class PassState(BaseModel):
    """The position of a pass at the end of a shard, from which it resumes."""

    model_config = ConfigDict(extra="ignore")

    key: str
    sources: list[list[Any]] = []
    """Name, size and SHA-256 of every local file."""
    others: list[str] = []
    """What else was read, by its fingerprints: datasets of a hub, the output of a pipeline."""
    source: int = 0
    file: int = 0
    rows: int = 0
    """Rows of the file that are processed."""
    unit: int = 0
    """Rows (of plain text: pieces) of the source that are processed; seeds the draws."""
    layout: dict[str, Any] | None = None
    """Of the file."""
    rows_read: int = 0
    bad_rows: int = 0
    bad_bytes: int = 0
    bad_reasons: dict[str, int] = {}
    counts: int = 0
    """Version of `row_counts.bin`; a state of another one is none."""
    last_count: int = 0
    """Of the newest row, what `row_counts.bin` has."""
    truncated_rows: int = 0
    context_answers: int = 0
    detected: list[dict[str, Any]] = []
    train: list[dict[str, Any]] = []
    eval: list[dict[str, Any]] = []
    ends: list[int] = []
    """Of a mixture: training shards at the end of each source."""
    least: list[tuple[int, int, int]] = []
    """Of usable units that are not drawn, those with the smallest draws: a tiny set's eval rows."""
    forced: list[tuple[int, int]] = []
    """Sources and units that go to eval regardless of the draw."""


def resume(data: Path, fresh: PassState) -> PassState:
    """The state of a killed pass; of another one, or without its shards, the folder is cleared."""
    try:
        state = PassState.model_validate(file_check.read_json(state_file(data)))
    except ValueError:
        state = PassState(key="")
    same = (state.key, state.others, state.counts) == (fresh.key, fresh.others, _COUNTS)
    shards_done = [(split, shard["name"]) for split in ("train", "eval") for shard in getattr(state, split)]
    if same and all((data / split / name).is_dir() for split, name in shards_done):
        return state
    discard(data)
    return restart(data, fresh)


def discard(data: Path) -> None:
    """Let the next pass begin anew; the position goes first, for what is cut here must not go on with what is gone."""
    state_file(data).unlink(missing_ok=True)
    shutil.rmtree(data / "tokenizer", ignore_errors=True)


def restart(data: Path, fresh: PassState) -> PassState:
    """Clear the folder, and put the position of a pass there that begins."""
    state = fresh.model_copy(update={"counts": _COUNTS})
    state_file(data).unlink(missing_ok=True)  # first, as in `discard`
    for name in ("train", "eval"):
        shutil.rmtree(data / name, ignore_errors=True)
    for path in (
        prepared.report_file(data),
        data / survey_page.PAGE_NAME,
        bad_rows_file(data),
        set_list.list_file(data),
    ):
        path.unlink(missing_ok=True)
    files.write_json(state_file(data), state.model_dump())
    return state


def state_file(data: Path) -> Path:
    """Where the position is kept."""
    return data / "progress.json"


def bad_rows_file(data: Path) -> Path:
    """The list of bad rows."""
    return data / "bad_rows.jsonl"
