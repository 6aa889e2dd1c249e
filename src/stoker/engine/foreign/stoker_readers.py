"""datatrove's readers, passing over nothing in silence: what cannot be used ends the pipeline, or is listed.

datatrove itself leaves out a row it cannot use, and the rest of a file from where it is not UTF-8.
"""

import csv
import gzip
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import orjson
import pyarrow
from datatrove.data import Document
from datatrove.pipeline.readers import CSVReader, HuggingFaceDatasetReader, JsonlReader, ParquetReader, WarcReader

REFUSED = "refused.json"
_NAMED = 8
"""So many keys of a row."""
_SEPARATORS = {";": "`;`", "\t": "Tab"}


class Refused(Exception):
    """A row, or a file, that cannot be used; in the words of `stoker.rows`. It goes from process to process."""

    def __init__(self, said: dict[str, Any]) -> None:
        # All that it needs to be made again: a pool waits for ever for an error it cannot unpickle.
        super().__init__(said)
        self.said = said


def refused(file: str, row: int | None, reason: str, **values: Any) -> Refused:
    """Of a row, or where there is no number, of a file."""
    return Refused({"file": file, "row": row, "reason": reason, "values": values})


class Strict:
    """In front of a reader of datatrove: what that one would pass over ends the pipeline, or is listed."""

    damaged: tuple[type[Exception], ...] = (EOFError, gzip.BadGzipFile, zlib.error)
    needs_text = True
    listing: TextIO | None = None
    """Where bad rows are skipped, the list of them."""
    num_bad = 0
    row = 0
    """The number of the row that is read, as `prepare` counts: by lines, or by places in a table."""

    def bad(self, file: str, row: int, reason: str, **values: Any) -> None:
        """List a row, or end."""
        found = refused(file, row, reason, **values)
        if self.listing is None:
            raise found
        self.listing.write(json.dumps(found.said, ensure_ascii=False) + "\n")
        self.num_bad += 1

    def documents(self, path: str) -> Iterator[Document]:
        """Those of a file."""
        self.row = 0
        yield from super().read_file(path)  # type: ignore[misc]

    def read_file(self, filepath: str) -> Iterator[Document]:
        """Those of a file, unless it cannot be read to its end."""
        try:
            yield from self.documents(filepath)
        except UnicodeDecodeError as error:
            raise refused(filepath, None, "encoding") from error
        except self.damaged as error:
            if getattr(error, "errno", None) is not None:
                raise  # of the disk
            raise refused(filepath, None, "damaged", problem=str(error)) from error

    def get_document_from_dict(self, data: Any, source_file: str, id_in_file: int | str) -> Document | None:
        """A document of a row."""
        if fault := self._fault(data):
            reason, values = fault
            self.bad(source_file, self.row, reason, **values)
            return None
        document: Document | None = super().get_document_from_dict(data, source_file, id_in_file)  # type: ignore[misc]
        return document

    def _fault(self, row: Any) -> tuple[str, dict[str, Any]] | None:
        """Why a row is no document."""
        if not isinstance(row, dict):
            return "row.not_object", {"kind": type(row).__name__}
        if not self.needs_text:
            return None
        text = row.get("text", "")
        if text and not isinstance(text, str):
            return "row.wrong_type", {"key": "text", "expected": "text"}
        if "text" not in row:
            return "row.no_document", {"keys": list(row)[:_NAMED]}
        if not text:
            return "row.empty", {"key": "text"}
        if cut := next((key for key in ("text", "id") if not _is_unicode(row.get(key))), None):
            return "row.not_unicode", {"key": cut}
        return None

    def opened(self, path: str, newline: str) -> Any:
        """A file as text, as `prepare` opens it."""
        folder: Any = self.data_folder  # type: ignore[attr-defined]
        return folder.open(path, "r", compression="infer", encoding="utf-8-sig", newline=newline)


def _is_unicode(value: Any) -> bool:
    """Whether it can be written as UTF-8: JSON can smuggle in half of a surrogate pair."""
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return False
    return True


class Jsonl(Strict, JsonlReader):
    """Lines of JSON."""

    def documents(self, path: str) -> Iterator[Document]:
        """Those of a file."""
        with self.opened(path, "\n") as file:
            for number, line in enumerate(file):
                self.row = number + 1
                if line.isspace():
                    continue
                try:
                    row = value(line.rstrip())
                except json.JSONDecodeError as error:
                    self.bad(path, self.row, "row.not_json", problem=error.msg, column=error.colno)
                except (ValueError, RecursionError):
                    self.bad(path, self.row, "row.not_json", problem="limit", column=1)
                else:
                    if document := self.get_document_from_dict(row, path, number):
                        yield document


def value(line: str) -> Any:
    """A line of JSON; the slower parser takes what `prepare` takes, as NaN."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line)


class Csv(Strict, CSVReader):
    """A table whose first line names its columns."""

    def documents(self, path: str) -> Iterator[Document]:
        """Those of a file."""
        csv.field_size_limit(1 << 30)
        with self.opened(path, "") as file:
            table = csv.reader(file, strict=True)
            header, number = self._header(path, table), 0
            while True:
                self.row = table.line_num + 1
                try:
                    values = next(table)
                except StopIteration:
                    return
                except csv.Error:
                    self.bad(path, self.row, "row.csv", last=table.line_num)
                    continue
                row = dict(zip(header, values, strict=False))
                if values and len(values) != len(header):
                    self.bad(path, self.row, "row.columns", found=len(values), expected=len(header))
                elif values and (document := self.get_document_from_dict(row, path, number)):
                    yield document
                number += bool(values)

    def _header(self, path: str, table: Any) -> list[str]:
        """The names of the columns; where they are none, no row can be used."""
        try:
            header: list[str] = next(table, [])
        except csv.Error as error:
            raise refused(path, 1, "row.csv", last=table.line_num) from error
        if twice := next((name for name in header if name and header.count(name) > 1), None):
            raise refused(path, 1, "row.header", key=twice)
        found = [name for mark, name in _SEPARATORS.items() if len(header) == 1 and mark in header[0]]
        if found:
            raise refused(path, 1, "row.separator", separator=found[0])
        return header


class StrictRecords(Strict):
    """Rows that are no lines; datatrove counts those that it takes."""

    step = 1

    def get_document_from_dict(self, data: Any, source_file: str, id_in_file: int | str) -> Document | None:
        """A document of the next row."""
        self.row += self.step
        return super().get_document_from_dict(data, source_file, id_in_file)


class Parquet(StrictRecords, ParquetReader):
    """A table of Arrow."""

    damaged = (pyarrow.ArrowInvalid, OSError)


class Hub(StrictRecords, HuggingFaceDatasetReader):
    """A dataset of the Hugging Face Hub, whose rows are dealt out to the tasks one by one."""

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """The documents of a task."""
        self.row, self.step = rank + 1 - world_size, world_size
        yield from super().run(data, rank, world_size)


READERS = {".csv": Csv, ".jsonl": Jsonl, ".parquet": Parquet, ".warc": WarcReader}
"""Of a WARC file's records most have no text; which do is datatrove's to know."""


@contextmanager
def refusing(folder: str) -> Iterator[None]:
    """Keep what was refused, for the program that waits."""
    try:
        yield
    except Refused as found:
        aside = Path(folder, f"{REFUSED}.{os.getpid()}")
        aside.write_text(json.dumps(found.said, ensure_ascii=False), encoding="utf-8")
        aside.replace(Path(folder, REFUSED))
        raise
