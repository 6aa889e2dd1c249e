"""From a source to batches of rows: text files (`rows/row_files.py`), parquet, and datasets of the hubs.

Rows of parquet and hubs are numbered by records. Knows nothing of what rows mean.
"""

import functools
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from stoker import messages
from stoker.config.data_section import Source
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.rows import row_files
from stoker.rows.formats import Text
from stoker.rows.row_files import File, Numbered, OpenedFile, Record
from stoker.rundir import inputs

BATCH_ROWS = 2048
_BATCH_CHARACTERS = 1 << 20
_TEXT_CHARACTERS = 1 << 22
_CHARACTERS_PER_TOKEN = 8
"""A batch of text holds a full sequence even where tokens are this long."""


@dataclass(frozen=True)
class Batch:
    """Some rows of one file, in order."""

    rows: list[Numbered]
    read_share: float
    """How much of the file has been read."""
    last: bool


@dataclass
class Input:
    """A source with its files, and the split its rows go to."""

    path: str
    weight: float
    split: str
    files: list[File]


def batches(file: File, length: int, skip: int = 0) -> Iterator[Batch]:
    """All rows of a file after the first `skip` ones, in batches of bounded size."""
    with _opened(file) as opened:
        rows = itertools.islice(opened.rows, skip, None)
        batch: list[Numbered] = []
        characters = 0
        most = max(_TEXT_CHARACTERS, _CHARACTERS_PER_TOKEN * length) if file.is_text else _BATCH_CHARACTERS
        for row in rows:
            if len(batch) == BATCH_ROWS or characters >= most:
                yield Batch(batch, opened.share(), last=False)
                batch, characters = [], 0
            batch.append(row)
            characters += _characters(row[1])
        yield Batch(batch, 1.0, last=True)


@contextmanager
def _opened(file: File) -> Iterator[OpenedFile]:
    if file.path is None:
        yield OpenedFile(_hub_rows(file.source), None, 0)
    elif inputs.kind(file.path) == ".parquet":
        with file.path.open("rb") as raw:
            yield OpenedFile(_parquet_rows(raw, file.label), raw, file.size_bytes)
    else:
        with row_files.opened(file) as opened:
            yield opened


def _parquet_rows(raw: BinaryIO, label: str) -> Iterator[Numbered]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError as error:
        raise StokerError("STK309", path=label, package="pyarrow") from error
    try:
        file = parquet.ParquetFile(raw)
        rows = (row for batch in file.iter_batches(batch_size=BATCH_ROWS) for row in batch.to_pylist())
        yield from row_files.records(map(as_written, rows))
    except (ArrowInvalid, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise  # of the disk; Arrow's own have none
        raise row_files.damaged(label, error) from error


def as_written(row: dict[str, Any]) -> dict[str, Any]:
    """A row out of Arrow, which gives each of a column's objects the keys of all of them, as null."""
    return {key: _without_nulls(value) for key, value in row.items()}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


# ---- hubs


def _hub_rows(source: Source) -> Iterator[Numbered]:
    number = 0
    for columns in _hub_dataset(source).iter(batch_size=BATCH_ROWS):
        for values in zip(*columns.values(), strict=True):
            number += 1
            yield Record(number), as_written(dict(zip(columns, values, strict=True)))


def hub_fingerprint(source: Source) -> str:
    """Of the revision that is read."""
    return "\n".join(sorted(file["filename"] for file in _hub_dataset(source).cache_files))


def _hub_dataset(source: Source) -> Any:
    return load_hub_dataset(source.path, source.config, source.split)


@functools.cache  # one revision in a program, which reads it twice
def load_hub_dataset(path: str, config: str | None, split: str) -> Any:
    """A dataset of a hub, as it is when it is first asked for."""
    hub, _, name = path.partition(":")
    return (_from_modelscope if hub == "modelscope" else _from_hub)(path, name, config, split)


def _from_hub(path: str, name: str, config: str | None, split: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise StokerError("STK309", path=path, package="datasets") from error
    try:
        return datasets.load_dataset(name, config, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise StokerError("STK310", path=path, reason=_first_line(error)) from error


def _from_modelscope(path: str, name: str, config: str | None, split: str) -> Any:
    try:
        from modelscope.msdatasets import MsDataset
    except ImportError as error:
        raise StokerError("STK309", path=path, package="modelscope") from error
    try:
        dataset = MsDataset.load(name, subset_name=config, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        raise StokerError("STK310", path=path, reason=_first_line(error)) from error
    return dataset.to_hf_dataset() if isinstance(dataset, MsDataset) else dataset


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _characters(value: Any) -> int:
    """About how much text a row holds, to bound a batch."""
    if isinstance(value, Text | str):
        return len(value.text if isinstance(value, Text) else value)
    if isinstance(value, dict):
        return sum(len(inner) if isinstance(inner, str) else 100 for inner in value.values())
    return 100


# ---- what can be known before the first row is tokenised


def require_all(run: Run, folder: Path, read: list[Input], known: set[str]) -> None:
    """No file that was there a moment ago is left out: a network disk may list half of a folder."""
    if missing := sorted(known - labels(read) - inputs.without_rows(run, folder)):
        raise StokerError("STK366", missing[0], changed=messages.shortened(missing))


def labels(read: list[Input]) -> set[str]:
    """Labels of the local files."""
    return {file.label for one in read for file in one.files if file.path}


def check(run: Run, read: list[Input]) -> None:
    """There is something in the training files, and in the eval files; columns by name are in every file."""
    for split in ("train", "eval"):
        of_split = [one for one in read if one.split == split]
        if of_split and all(row_files.is_blank(file) for one in of_split for file in one.files):
            raise empty(of_split)
    for file in (file for one in read for file in one.files if file.source.columns):
        first = next(batches(file, run.data.length))
        row_files.layout(run, file, row_files.values(first.rows))


def empty(of_split: list[Input]) -> StokerError:
    """The error of files without a row."""
    return StokerError("STK364", path=", ".join(one.path for one in of_split))
