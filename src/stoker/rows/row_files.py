"""From text files to numbered rows, by suffix. Knows nothing of what rows mean; tables and hubs are the engine's.

Rows are numbered from 1: by lines of jsonl and csv, by records of json. A `.txt` file is one document, however many
blank lines it has. It is read in blocks cut at line ends, each tokenised on its own, so that a corpus of any size
passes through bounded memory and all processors.
"""

import codecs
import csv
import gzip
import io
import itertools
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, BinaryIO, TextIO

from stoker import messages
from stoker.config import dataset_info, layouts, objectives, reader
from stoker.config.data_section import Source
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.rows import formats, named_columns, row_values
from stoker.rows.formats import Layout, Text
from stoker.rows.row_values import BadRow, Row
from stoker.rundir import inputs

_BLOCK_CHARACTERS = 1 << 16
_DETECTION_ROWS = 20
_LARGEST_BLANK = 1 << 10
"""Bytes of a file that is worth a look for something other than white space."""

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

_DAMAGES = {
    "Not a gzipped file": "damage.not_gzip",
    "Compressed file ended": "damage.cut",
    "Parquet magic bytes not found": "damage.not_parquet",
}
"""How the libraries' complaints about a file begin, and the sentence we say."""

_DAMAGED = (gzip.BadGzipFile, EOFError, zlib.error)
"""What a compressed file that is cut or changed raises."""

_SEPARATORS = {";": "`;`", "\t": "Tab"}

_LINE_END = re.compile(r"\n(?=\S)")
_WORD_END = re.compile(r"(?<=\S)(?= \S)")


class Record(int):
    """The number of a row where it is no line: the place in a list or a table."""


class Line(str):
    """A row of a jsonl file as it is written there; `value` makes a row of it, in any process."""

    __slots__ = ()


Numbered = tuple[int, Any]
"""A row with its number: a mapping of keys, a `Text`, a `BadRow`, or before `value` a `Line`."""


@dataclass(frozen=True)
class File:
    """One file of a source, or a whole hub dataset."""

    label: str
    path: Path | None
    source: Source
    size_bytes: int

    @property
    def is_gzip(self) -> bool:
        """Whether it is compressed."""
        return self.label.lower().endswith(".gz")

    @property
    def is_text(self) -> bool:
        """Whether it is running text without rows."""
        return self.path is not None and inputs.kind(self.path) in (".txt", inputs.MARKDOWN)


def files(source: Source, folder: Path) -> list[File]:
    """The files of a source, in the order they are read."""
    if inputs.is_remote(source.path):
        return [File(source.path, None, source, 0)]
    paths = inputs.expand(source.path, folder)
    source = dataset_info.resolve(source, folder)
    return [File(inputs.label(path, folder), path, source, path.stat().st_size) for path in paths]


def is_blank(file: File) -> bool:
    """Whether there is nothing in it but white space; what is larger is taken to hold something."""
    if file.path is None or file.size_bytes > _LARGEST_BLANK:
        return False
    if inputs.kind(file.path) not in _READERS:
        return file.size_bytes == 0
    try:
        with _binary(file.path) as raw:
            return not raw.read().strip()
    except _DAMAGED:
        return False


def layout(run: Run, file: File, rows: Iterable[Numbered]) -> Layout | None:
    """The layout of a file, by its first readable rows and what the objective takes; None if there are none.

    Args:
        run: What was asked.
        file: The file.
        rows: Its first rows.
    """
    if file.is_text:
        return Layout("text", "detect.text_file")
    asked, columns = objectives.facts(run.train.objective), file.source.columns
    if run.data.format != layouts.AUTO and not asked.prompts:
        return formats.forced(run.data.format)
    readable = ((number, row) for number, row in rows if isinstance(row, dict))
    first = list(itertools.islice(readable, _DETECTION_ROWS))
    rewards = run.train.grpo.rewards if asked.prompts else None
    if columns or rewards:
        known = [row for _, row in (*first, *readable)]
        named_columns.require(columns, rewards, known, file.label)
    found = formats.layout([row for _, row in first], columns, asked)
    if first and not found:
        where, seen = place(file.label, first[0][0]), [row for _, row in first]
        raise named_columns.lacking(seen, asked, where) if asked.takes else _unrecognised(seen, where)
    return found


def _unrecognised(first: Sequence[Row], where: str) -> StokerError:
    row = first[0]
    try:
        row_values.refuse_preferences(row)
    except BadRow as bad:
        return StokerError("STK317", where, reason=bad.text)
    example, guessed = named_columns.suggested(row), named_columns.guessed(first)
    known = layouts.recognised_keys()
    return StokerError("STK303", where, keys=list(row) or "-", example=example, guessed=guessed, known=known)


def unusable(where: str, reason: str, text: str) -> StokerError:
    """The error of a bad row; of a file that cannot be read as a whole, another one."""
    return StokerError("STK466" if reason in row_values.WHOLE_FILE else "STK302", where, reason=text)


def place(label: str, number: int) -> str:
    """`a.jsonl:2`, or `a.json: record 2`."""
    return (
        messages.text("place.record", file=label, number=number) if isinstance(number, Record) else f"{label}:{number}"
    )


class OpenedFile:
    """An open file: its rows, and how much of it was read."""

    def __init__(self, rows: Iterable[Numbered], raw: BinaryIO | None, size: int) -> None:
        self.rows = rows
        self._raw = raw
        self._size = size

    def share(self) -> float:
        """How much of the file was read."""
        return self._raw.tell() / self._size if self._raw and self._size else 0.0


@contextmanager
def opened(file: File) -> Iterator[OpenedFile]:
    """The rows of a text file; those of a jsonl file as lines."""
    assert file.path is not None
    kind = inputs.kind(file.path)
    with file.path.open("rb") as raw:
        plain: Any = gzip.GzipFile(fileobj=raw) if file.is_gzip else raw
        text = io.TextIOWrapper(plain, encoding="utf-8-sig", newline=_NEWLINES[kind])
        yield OpenedFile(_readable(_READERS[kind](text), file), raw, file.size_bytes)


def _readable(rows: Iterator[Numbered], file: File) -> Iterator[Numbered]:
    """The rows, with what can go wrong below them named."""
    try:
        yield from rows
    except UnicodeDecodeError as error:
        raise not_utf8(file) from error
    except _DAMAGED as error:
        raise damaged(file.label, error) from error


def damaged(label: str, problem: Exception | str) -> StokerError:
    """The error of a file whose end cannot be read: it is not used in part, whatever `data.on_bad_row` says."""
    known = next((messages.text(key) for start, key in _DAMAGES.items() if str(problem).startswith(start)), problem)
    return StokerError("STK353", label, problem=known)


def not_utf8(file: File) -> StokerError:
    """The error of a file in another encoding, or of a character that is cut."""
    line, byte, is_cut = _first_bad_byte(file)
    if is_cut:
        return StokerError("STK314", f"{file.label}:{line}", byte=byte, advice=messages.text("advice.cut", line=line))
    return StokerError("STK314", file.label, byte=byte, advice=_advice(file))


def _advice(file: File) -> str:
    """How to make the file UTF-8."""
    assert file.path is not None
    with _binary(file.path) as raw:
        among_others = file.path.name != PurePath(file.source.path).name
        return reader.encoding_advice(raw.read(2), file.path, among_others=among_others)


def _binary(path: Path) -> io.BufferedIOBase:
    return gzip.GzipFile(path) if path.name.lower().endswith(".gz") else path.open("rb")


def _first_bad_byte(file: File) -> tuple[int, int, bool]:
    """Line and byte, counted from 1, of what is no UTF-8, and whether lines before it have characters of several bytes.

    The decoder's own number starts at its last chunk.
    """
    assert file.path is not None
    with _binary(file.path) as raw:
        before, is_utf8 = 0, False
        for number, line in enumerate(raw, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return number, before + error.start + 1, is_utf8
            before, is_utf8 = before + len(line), is_utf8 or not line.removeprefix(codecs.BOM_UTF8).isascii()
    return 1, before, False


# ---- one reader per kind of file


def _jsonl_rows(text: TextIO) -> Iterator[Numbered]:
    return lines(enumerate(text, 1))


def lines(numbered: Iterable[tuple[int, str]]) -> Iterator[Numbered]:
    """Numbered lines of JSON; empty ones are none."""
    return ((number, Line(line)) for number, line in numbered if line and not line.isspace())


def values(rows: Iterable[Numbered]) -> Iterator[Numbered]:
    """The same rows, with lines read as JSON."""
    return ((number, _json(row.rstrip()) if isinstance(row, Line) else row) for number, row in rows)


def _json(line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        return _not_json(error)
    except (ValueError, RecursionError):
        return _beyond_json()


def _not_json(error: json.JSONDecodeError, reason: str = "row.not_json") -> BadRow:
    return BadRow(reason, problem=json_fault(error.msg), column=error.colno)


def json_fault(complaint: str) -> str:
    """What the standard library's complaint means."""
    return messages.text(
        next((key for start, key in _JSON_FAULTS.items() if complaint.startswith(start)), "json.other")
    )


def _beyond_json(reason: str = "row.not_json") -> BadRow:
    return BadRow(reason, problem=messages.text("json.limit"), column=1)


def _json_rows(text: TextIO) -> Iterator[Numbered]:
    """A list of rows, `{"data": [...]}`, or in truth lines of JSON."""
    content = text.read()
    try:
        value = json.loads(content)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and content.lstrip().startswith("{"):
            yield from lines(enumerate(content.split("\n"), 1))
        else:
            yield error.lineno, _not_json(error, "row.json_file")
        return
    except (ValueError, RecursionError):
        yield 1, _beyond_json("row.json_file")
        return
    rows = value.get("data") if isinstance(value, dict) else value
    if isinstance(rows, list):
        yield from records(rows)
    else:
        yield 1, BadRow("row.json_layout")


def records(rows: Iterable[Any]) -> Iterator[Numbered]:
    """Rows numbered by their place in a list."""
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


_READERS = {
    ".jsonl": _jsonl_rows,
    ".json": _json_rows,
    ".csv": _csv_rows,
    ".txt": _text_rows,
    inputs.MARKDOWN: _text_rows,
}
_NEWLINES = {".jsonl": "\n", ".json": "\n", ".csv": "", ".txt": None, inputs.MARKDOWN: None}
