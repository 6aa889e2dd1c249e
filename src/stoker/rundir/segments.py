"""Older events of a run: `events.jsonl` is cut into segments, each with a summary, so that no reader needs all of it.

    events.jsonl                     the newest events; everyone appends here
    events/<first>-<next>.jsonl      older ones, all of them
    events/<first>-<next>.summary    of those every event but the steps, and some of the steps
An event's offset counts the bytes of all segments: `first` is that of a segment's first byte, `next` where the one
after it begins. There is room between them for a line of a process that had the file open when it was cut. Only the
trainer cuts: one rename, so that a reader finds a line before or after it, never twice; a summary that a kill prevented
is made by the next cut.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from stoker.rundir import file_check, files, in_place

SEGMENT_BYTES = 1 << 22
"""About 13,000 steps."""
STEP = b'"event": "step"'
_ROOM_BYTES = 1 << 16
_LONGEST_BYTES = 1 << 22
"""No event of ours is a longer line."""
_STEP_BYTES = SEGMENT_BYTES // 16
"""Between two steps that a summary keeps."""
_NAME = re.compile(r"(\d{15})-(\d{15})\.jsonl")


@dataclass(frozen=True)
class EventSegment:
    """Events that were cut off."""

    path: Path
    first: int
    next: int

    @property
    def summary(self) -> Path:
        """Every event but the steps, and some of the steps."""
        return self.path.with_suffix(".summary")


def older(path: Path) -> list[EventSegment]:
    """The segments that were cut off an event log, oldest first."""
    names = sorted(one.name for one in file_check.inside(_folder(path)))
    found = [match for name in names if (match := _NAME.fullmatch(name))]
    return [EventSegment(_folder(path) / match[0], int(match[1]), int(match[2])) for match in found]


@contextmanager
def view(path: Path) -> Iterator[tuple[list[EventSegment], BinaryIO, int]]:
    """The older segments, the newest one that follows them, and the offset at which it begins."""
    while True:
        found = older(path)
        with _opened(path) as file:
            if older(path) == found:  # else it was cut in between
                yield found, file, found[-1].next if found else 0
                return


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb") if path.is_file() else io.BytesIO()  # a pipe would make its reader wait
    except FileNotFoundError:  # just cut
        return io.BytesIO()


def start(path: Path) -> int:
    """The offset at which the newest segment begins."""
    found = older(path)
    return found[-1].next if found else 0


def cut(path: Path) -> None:
    """Begin a new segment, and summarise the older ones that are not yet."""
    first = start(path)
    following = first + path.stat().st_size + _ROOM_BYTES
    in_place.folder(_folder(path), path.parent)
    path.rename(_folder(path) / f"{first:015d}-{following:015d}.jsonl")
    files.sync_folder(path.parent)
    for one in older(path):
        if not one.summary.exists():
            _summarise(one)


def summary(segment: EventSegment) -> Iterator[bytes]:
    """Lines of an older segment without most of its steps: of its summary, and what was written behind that."""
    try:
        size, _, lines = segment.summary.read_bytes().partition(b"\n")
        covered = int(size)
    except (OSError, ValueError):
        covered, lines = 0, b""
    yield from lines.splitlines(keepends=True)
    with suppress(FileNotFoundError), segment.path.open("rb") as file:
        yield from (raw for raw, _ in thinned(file, covered, None))


def thinned(file: BinaryIO, begin: int, end: int | None) -> Iterator[tuple[bytes, int]]:
    """As `lines`, but of steps that follow each other only the last, and one in a while."""
    step, kept = (b"", begin), begin
    for raw, position in lines(file, begin, end):
        if STEP in raw and position - kept < _STEP_BYTES:
            step = raw, position
            continue
        if STEP in raw:
            kept = position
        elif step[0]:
            yield step
        yield raw, position
        step = b"", position
    if step[0]:
        yield step


def lines(file: BinaryIO, begin: int, end: int | None) -> Iterator[tuple[bytes, int]]:
    """Whole lines that begin in a part of a file, each with the offset behind it.

    One that is too long for an event comes in parts, none of which is one.
    """
    file.seek(max(0, begin - 1))
    position = begin + (len(file.readline()) - 1 if begin else 0)
    for raw in iter(lambda: file.readline(_LONGEST_BYTES), b""):
        if (not raw.endswith(b"\n") and len(raw) < _LONGEST_BYTES) or (end is not None and position >= end):
            return
        position += len(raw)
        yield raw, position


def _summarise(segment: EventSegment) -> None:
    with segment.path.open("rb") as file:
        found = list(thinned(file, 0, None))
        covered = found[-1][1] if found else 0
    text = b"".join([b"%d\n" % covered, *(raw for raw, _ in found)])
    files.write_text(segment.summary, text.decode("utf-8", "replace"))


def _folder(path: Path) -> Path:
    return path.with_suffix("")
