"""From a source to batches of rows: files by suffix, and datasets of the hubs. Knows nothing of what rows mean.

Rows are numbered from 1: by lines of jsonl and csv, by records of json, parquet and hubs. A `.txt` file is
one document, however many blank lines it has. It is read in blocks cut at line ends, each tokenised on its own, so
that a corpus of any size passes through bounded memory and all processors.
"""

import csv
import gzip
import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from stoker import messages
from stoker.config import reader
from stoker.config.run import Source
from stoker.engine.formats import Text
from stoker.engine.rows import BadRow
from stoker.errors import StokerError
from stoker.rundir import inputs

BATCH_ROWS = 2048
_BATCH_CHARACTERS = 1 << 22
_BLOCK_CHARACTERS = 1 << 16
_CHARACTERS_PER_TOKEN = 8
"""A batch of text holds a full sequence even where tokens are this long."""

_JSON_FAULTS = {
    "Expecting value": "json.value",
    "Expecting property name": "json.key",
    "Expecting ':'": "json.colon",
    "Expecting ','": "json.comma",
    "Unterminated string": "json.quote",
    "Invalid control character": "json.control",
    "Invalid \\": "json.escape",
    "Extra data": "json.extra",
    "Illegal trailing comma": "json.trailing",
}
"""How the standard library's complaints begin, and the sentence we say."""

_SEPARATORS = {";": "`;`", "\t": "Tab"}

_LINE_END = re.compile(r"\n(?=\S)")
_WORD_END = re.compile(r"(?<=\S)(?= \S)")


class Record(int):
    """The number of a row where it is no line: the place in a list or a table."""


Numbered = tuple[int, Any]
"""A row with its number: a mapping of keys, a `Text`, or a `BadRow`."""


@dataclass(frozen=True)
class File:
    """One file of a source, or a whole hub dataset."""

    label: str
    path: Path | None
    source: Source
    size_bytes: int

    @property
    def is_text(self) -> bool:
        """Whether it is running text without rows."""
        return self.path is not None and inputs.kind(self.path) == ".txt"


@dataclass(frozen=True)
class Batch:
    """Some rows of one file, in order."""

    rows: list[Numbered]
    read_share: float
    """How much of the file has been read."""
    last: bool


def files(source: Source, folder: Path) -> list[File]:
    """The files of a source, in the order they are read."""
    if inputs.is_remote(source.path):
        return [File(source.path, None, source, 0)]
    paths = inputs.expand(source.path, folder)
    return [File(inputs.label(path, folder), path, source, path.stat().st_size) for path in paths]


def place(label: str, number: int) -> str:
    """`a.jsonl:2`, or `a.json: record 2`."""
    return (
        messages.text("place.record", file=label, number=number) if isinstance(number, Record) else f"{label}:{number}"
    )


def batches(file: File, length: int, skip: int = 0) -> Iterator[Batch]:
    """All rows of a file after the first `skip` ones, in batches of bounded size."""
    with _opened(file) as opened:
        rows = itertools.islice(opened.rows, skip, None)
        batch: list[Numbered] = []
        characters = 0
        most = max(_BATCH_CHARACTERS, _CHARACTERS_PER_TOKEN * length) if file.is_text else _BATCH_CHARACTERS
        for row in rows:
            if len(batch) == BATCH_ROWS or characters >= most:
                yield Batch(batch, opened.share(), last=False)
                batch, characters = [], 0
            batch.append(row)
            characters += _characters(row[1])
        yield Batch(batch, 1.0, last=True)


class _Opened:
    """An open file: its rows, and how much of it was read."""

    def __init__(self, rows: Iterable[Numbered], raw: BinaryIO | None, size: int) -> None:
        self.rows = rows
        self._raw = raw
        self._size = size

    def share(self) -> float:
        return self._raw.tell() / self._size if self._raw and self._size else 0.0


@contextmanager
def _opened(file: File) -> Iterator[_Opened]:
    if file.path is None:
        yield _Opened(_hub_rows(file.source), None, 0)
        return
    kind = inputs.kind(file.path)
    with file.path.open("rb") as raw:
        if kind == ".parquet":
            yield _Opened(_parquet_rows(raw, file.label), raw, file.size_bytes)
            return
        plain: Any = gzip.GzipFile(fileobj=raw) if file.path.name.lower().endswith(".gz") else raw
        text = io.TextIOWrapper(plain, encoding="utf-8-sig", newline=_NEWLINES[kind])
        yield _Opened(_readable(_READERS[kind](text), file), raw, file.size_bytes)


def _readable(rows: Iterator[Numbered], file: File) -> Iterator[Numbered]:
    """The rows, with what can go wrong below them named."""
    try:
        yield from rows
    except UnicodeDecodeError as error:
        raise StokerError("STK314", file.label, byte=_first_bad_byte(file), advice=_advice(file)) from error
    except (gzip.BadGzipFile, EOFError) as error:
        yield 1, BadRow("row.unreadable", problem=error)


def _advice(file: File) -> str:
    """How to make the file UTF-8."""
    assert file.path is not None
    with _binary(file.path) as raw:
        return reader.encoding_advice(raw.read(2), file.path)


def _binary(path: Path) -> io.BufferedIOBase:
    return gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb")


def _first_bad_byte(file: File) -> int:
    """Where the file stops being UTF-8; the decoder's own number starts at its last chunk."""
    assert file.path is not None
    with _binary(file.path) as raw:
        before = 0
        for line in raw:
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return before + error.start
            before += len(line)
    return before


# ---- one reader per kind of file


def _jsonl_rows(text: TextIO) -> Iterator[Numbered]:
    return _lines(enumerate(text, 1))


def _lines(numbered: Iterable[tuple[int, str]]) -> Iterator[Numbered]:
    for number, line in numbered:
        if line.strip():
            yield number, _json(line.rstrip())


def _json(line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        return _not_json(error)
    except (ValueError, RecursionError):
        return _beyond_json()


def _not_json(error: json.JSONDecodeError) -> BadRow:
    key = next((key for start, key in _JSON_FAULTS.items() if error.msg.startswith(start)), "json.other")
    return BadRow("row.not_json", problem=messages.text(key), column=error.colno)


def _beyond_json() -> BadRow:
    return BadRow("row.not_json", problem=messages.text("json.limit"), column=1)


def _json_rows(text: TextIO) -> Iterator[Numbered]:
    """A list of rows, `{"data": [...]}`, or in truth lines of JSON."""
    content = text.read()
    try:
        value = json.loads(content)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and content.lstrip().startswith("{"):
            yield from _lines(enumerate(content.split("\n"), 1))
        else:
            yield error.lineno, _not_json(error)
        return
    except (ValueError, RecursionError):
        yield 1, _beyond_json()
        return
    rows = value.get("data") if isinstance(value, dict) else value
    if isinstance(rows, list):
        yield from _records(rows)
    else:
        yield 1, BadRow("row.json_layout")


def _records(rows: Iterable[Any]) -> Iterator[Numbered]:
    return ((Record(number), row) for number, row in enumerate(rows, 1))


def _csv_rows(text: TextIO) -> Iterator[Numbered]:
    csv.field_size_limit(1 << 30)
    table = _csv_lines(text)
    _, header = next(table, (1, []))
    repeated = [] if isinstance(header, BadRow) else [name for name in header if name and header.count(name) > 1]
    if isinstance(header, BadRow) or repeated:
        yield 1, header if isinstance(header, BadRow) else BadRow("row.header", key=repeated[0])
        return
    if len(header) == 1 and (other := [name for mark, name in _SEPARATORS.items() if mark in header[0]]):
        yield 1, BadRow("row.separator", separator=other[0])
        return
    for line, values in table:
        if isinstance(values, BadRow):
            yield line, values
        elif values and len(values) != len(header):
            yield line, BadRow("row.columns", found=len(values), expected=len(header))
        elif values:
            yield line, dict(zip(header, values, strict=True))


def _csv_lines(text: TextIO) -> Iterator[tuple[int, list[str] | BadRow]]:
    """The rows of a table by the lines they begin at; a stray quote is named there, not read on to the next one."""
    table = csv.reader(text, strict=True)
    while True:
        line = table.line_num + 1
        try:
            yield line, next(table)
        except StopIteration:
            return
        except csv.Error:
            yield line, BadRow("row.csv", last=table.line_num)


def _text_rows(text: TextIO) -> Iterator[Numbered]:
    line, opens = 1, True
    blocks = _blocks(text)
    block = next(blocks, "")
    if not block.strip():
        yield 1, BadRow("row.empty", key="text")
        return
    while block:
        following = next(blocks, "")
        yield line, Text(block, opens=opens, closes=not following)
        line += block.count("\n")
        block, opens = following, False


def _blocks(text: TextIO) -> Iterator[str]:
    """The text in blocks that end where a line does, or a word, if possible: there a tokenizer cuts anyway."""
    rest = ""
    while more := text.read(_BLOCK_CHARACTERS):
        rest += more
        cuts = [match.end() for match in _LINE_END.finditer(rest)] or [m.end() for m in _WORD_END.finditer(rest)]
        cut = cuts[-1] if cuts else len(rest)
        yield rest[:cut]
        rest = rest[cut:]
    if rest:
        yield rest


def _parquet_rows(raw: BinaryIO, label: str) -> Iterator[Numbered]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError as error:
        raise StokerError("STK309", path=label, package="pyarrow") from error
    try:
        file = parquet.ParquetFile(raw)
    except ArrowInvalid as error:
        yield 1, BadRow("row.unreadable", problem=error)
        return
    rows = (row for batch in file.iter_batches(batch_size=BATCH_ROWS) for row in batch.to_pylist())
    yield from _records(map(_as_written, rows))


def _as_written(row: dict[str, Any]) -> dict[str, Any]:
    """A row out of Arrow, which gives each of a column's objects the keys of all of them, as null."""
    return {key: _without_nulls(value) for key, value in row.items()}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


_READERS = {".jsonl": _jsonl_rows, ".json": _json_rows, ".csv": _csv_rows, ".txt": _text_rows}
_NEWLINES = {".jsonl": "\n", ".json": "\n", ".csv": "", ".txt": None}


# ---- hubs


def _hub_rows(source: Source) -> Iterator[Numbered]:
    hub, _, name = source.path.partition(":")
    dataset = _from_modelscope(name, source) if hub == "modelscope" else _from_hub(name, source)
    number = 0
    for columns in dataset.iter(batch_size=BATCH_ROWS):
        for values in zip(*columns.values(), strict=True):
            number += 1
            yield Record(number), _as_written(dict(zip(columns, values, strict=True)))


def _from_hub(name: str, source: Source) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise StokerError("STK309", path=source.path, package="datasets") from error
    try:
        return datasets.load_dataset(name, source.config, split=source.split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise StokerError("STK310", path=source.path, reason=_first_line(error)) from error


def _from_modelscope(name: str, source: Source) -> Any:
    try:
        from modelscope.msdatasets import MsDataset
    except ImportError as error:
        raise StokerError("STK309", path=source.path, package="modelscope") from error
    try:
        dataset = MsDataset.load(name, subset_name=source.config, split=source.split)
    except (OSError, ValueError, RuntimeError) as error:
        raise StokerError("STK310", path=source.path, reason=_first_line(error)) from error
    return dataset.to_hf_dataset() if isinstance(dataset, MsDataset) else dataset


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _characters(value: Any) -> int:
    """About how much text a row holds, to bound a batch."""
    if isinstance(value, Text):
        return len(value.text)
    if isinstance(value, dict):
        return sum(len(inner) if isinstance(inner, str) else 100 for inner in value.values())
    return 100
