"""`events.jsonl`: append-only, readable at any moment, whatever a kill left of the last line."""

import contextlib
import datetime
import errno
import json
import math
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import StokerError
from stoker.rundir import events
from stoker.rundir.events import EventLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "events.jsonl"


def write(path: Path, *steps: int) -> None:
    log = EventLog(path)
    for step in steps:
        log.write("step", step=step, loss=1 / step)
    log.close()


def test_an_event_is_on_the_disk_when_write_returns(path: Path) -> None:
    log = EventLog(path)
    log.write("attempt", attempt=1, tier="EXACT")
    (event,) = events.read(path)
    assert (event["event"], event["attempt"], event["tier"]) == ("attempt", 1, "EXACT")
    assert datetime.datetime.fromisoformat(event["at"]).tzinfo is not None
    log.close()


def test_a_second_writer_appends(path: Path) -> None:
    write(path, 1, 2)
    write(path, 3)
    assert [event["step"] for event in events.read(path)] == [1, 2, 3]


def test_the_last_line_of_a_step_counts(path: Path) -> None:
    write(path, 1, 2, 3)
    log = EventLog(path)
    log.write("step", step=2, loss=7.0)
    log.close()
    assert {step: event["loss"] for step, event in events.steps(path).items()} == {1: 1.0, 2: 7.0, 3: 1 / 3}


def test_losses_keep_every_bit_even_if_they_are_no_numbers(path: Path) -> None:
    log = EventLog(path)
    values = [0.1 + 0.2, 1e-310, float("inf"), float("nan")]
    for step, loss in enumerate(values):
        log.write("step", step=step, loss=loss)
    log.close()
    assert [event["loss"].hex() for event in events.steps(path).values()] == [value.hex() for value in values]


def test_an_error_is_written_for_the_light_world(path: Path) -> None:
    log = EventLog(path)
    log.error(StokerError("STK405", step=3, loss="nan"), "train")
    log.close()
    (event,) = events.read(path)
    assert event["program"] == "train"
    again = StokerError.from_json(event["error"])
    assert (again.code, again.fields) == ("STK405", {"step": 3, "loss": "nan"})


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_line_that_a_kill_cut_is_passed_over_and_the_next_writer_starts_a_new_one(path: Path, cut: int) -> None:
    write(path, 1, 2)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert [event["step"] for event in events.read(path)] == [1]
    write(path, 5)
    found = [event["step"] for event in events.read(path)]
    assert found == ([1, 2, 5] if cut == 1 else [1, 5]), "only the line's end was missing in the first case"
    assert path.read_bytes().startswith(whole[:-cut])


def test_a_reader_follows_by_offset_and_waits_for_the_end_of_a_line(path: Path) -> None:
    assert list(events.follow(path, 0)) == []
    write(path, 1, 2)
    found = list(events.follow(path, 0))
    assert [event["step"] for event, _ in found] == [1, 2]
    behind = found[-1][1]
    assert behind == path.stat().st_size
    assert list(events.follow(path, behind)) == []
    line = json.dumps({"event": "step", "step": 3}).encode() + b"\n"
    with path.open("ab") as file:
        file.write(line[:10])
    assert list(events.follow(path, behind)) == [], "half a line"
    with path.open("ab") as file:
        file.write(line[10:])
    assert [(event["step"], at) for event, at in events.follow(path, behind)] == [(3, behind + len(line))]


def test_each_offset_is_where_the_next_event_starts(path: Path) -> None:
    write(path, *range(1, 8))
    offsets = [behind for _, behind in events.follow(path, 0)]
    for count, offset in enumerate(offsets, 1):
        assert [event["step"] for event, _ in events.follow(path, offset)] == list(range(count + 1, 8))


@pytest.mark.parametrize("line", [b"", b"garbage", b"[1]", b"5", b"{}", b'{"x": 1}', b"\xff\xfe", b"{" * 10])
def test_a_line_that_is_no_event_is_passed_over(path: Path, line: bytes) -> None:
    write(path, 1)
    with path.open("ab") as file:
        file.write(line + b"\n")
    write(path, 2)
    assert [event["step"] for event in events.read(path)] == [1, 2]
    assert [event["step"] for event in events.skim(path)] == [1, 2]
    assert list(events.steps(path)) == [1, 2]


def test_whether_any_step_was_done(path: Path) -> None:
    assert not events.has_steps(path)
    log = EventLog(path)
    log.write("prepare", done_rows=3, rows=9, tokens=5)
    log.write("attempt", attempt=1)
    assert not events.has_steps(path)
    log.write("step", step=1, loss=1.0)
    log.close()
    assert events.has_steps(path)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["step", "eval", "checkpoint", "attempt"]), max_size=30))
def test_skimming_keeps_everything_but_steps_that_another_step_follows(kinds: list[str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        log = EventLog(path)
        for number, kind in enumerate(kinds):
            log.write(kind, step=number)
        log.close()
        wanted = [
            (kind, number)
            for number, kind in enumerate(kinds)
            if kind != "step" or number + 1 == len(kinds) or kinds[number + 1] != "step"
        ]
        assert [(event["event"], event["step"]) for event in events.skim(path)] == wanted


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOTCONN, errno.ESTALE])
def test_lines_wait_for_a_disk_that_does_not_take_them_and_are_counted(path: Path, number: int) -> None:
    class Gone:
        """A file on a disk that is full, or on a mount that is gone."""

        def __init__(self, file: Any) -> None:
            self.tell = file.tell

        def write(self, data: bytes) -> int:
            raise OSError(number, os.strerror(number))

    log = EventLog(path)
    log.write("step", step=1)
    assert log.offset == path.stat().st_size
    there, log._file = log._file, Gone(log._file)
    log.write("step", step=2)
    assert log.offset > path.stat().st_size
    log._file = there
    log.write("step", step=3)
    assert log.offset == path.stat().st_size
    log.close()
    assert list(events.steps(path)) == [1, 2, 3]


STEP = {"at": "2026-11-15T10:00:00+00:00", "event": "step", "step": 1, "epoch": 0.5, "tokens": 9}
STEP |= {"seconds": 1.0, "wait_seconds": 0}


@pytest.mark.parametrize(
    "change", [{}, {"loss": "nan"}, {"event": "of another version"}, {"event": "passed_over"}], ids=str
)
def test_an_event_with_what_readers_need_is_whole(change: dict[str, Any]) -> None:
    assert events.is_whole(STEP | change)


@pytest.mark.parametrize(
    "change",
    [{"at": "x"}, {"at": None}, {"at": "2026-11-15"}, {"wait_seconds": None}, {"step": "1"}, {"event": "end"}],
    ids=str,
)
def test_an_event_without_it_is_not(change: dict[str, Any]) -> None:
    assert not events.is_whole(STEP | change)


@pytest.mark.parametrize("value", ["9" * 4000, "1e999", "NaN", "-Infinity", "true", "-1", '"3"'])
@pytest.mark.parametrize("field", ["step", "tokens", "seconds"])
def test_a_step_with_an_impossible_figure_is_not_whole(field: str, value: str) -> None:
    fields = {"step": 3, "epoch": 0.5, "tokens": 8, "seconds": 1.5, "wait_seconds": 0.0}
    event = {"at": "2026-11-16T00:00:00+00:00", "event": "step", "loss": 1.0, **fields}
    assert events.is_whole(event)
    assert not events.is_whole({**event, field: json.loads(value)})


def test_a_line_that_no_event_is_as_long_as_is_passed_over_in_parts(path: Path) -> None:
    """A hole of some terabytes in a file, read as one line, would take all memory."""
    write(path, 1)
    with path.open("ab") as file:
        file.write(bytes(40 << 20) + b"\n")
    write(path, 2)
    tracemalloc.start()
    found = list(events.follow(path, 0))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [event["step"] for event, _ in found] == [event["step"] for event in events.read(path)] == [1, 2]
    assert found[-1][1] == path.stat().st_size
    assert list(events.skim(path))[-1]["step"] == 2
    assert peak_bytes < 20 << 20


def test_losses_are_numbers_whatever_a_line_says(path: Path) -> None:
    write(path, 1)
    strange = {2: None, 3: "\x1bc", 4: [1], "6": 1.0, 7: 10**4000, -8: 1.0, 9: 0.5}
    with contextlib.closing(EventLog(path)) as log:
        for step, loss in strange.items():
            log.write("step", step=step, loss=loss)
        log.write("step", step=10)
    for found in (events.steps(path), events.newest_steps(path, 99)):
        losses = {step: events.loss(event) for step, event in found.items()}
        assert losses == {1: 1.0, 2: None, 3: None, 4: None, 7: None, 9: 0.5, 10: None}
    assert math.isnan(events.loss({"loss": "nan"}) or 0.0)
