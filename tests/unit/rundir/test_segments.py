"""Events cut into segments: nothing is lost or seen twice, whoever reads or writes meanwhile."""

import itertools
import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from failing_disk import unlistable

from stoker.rundir import events, file_check, segments
from stoker.rundir.events import EventLog
from stoker.rundir.files import Unreadable

FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 4000)
    monkeypatch.setattr(segments, "_STEP_BYTES", 1000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def train(path: Path, first: int, last: int) -> None:
    """Steps and a checkpoint every ten, as a trainer writes them."""
    log = EventLog(path)
    for step in range(first, last + 1):
        log.write("step", step=step, loss=1.0 / step)
        if step % 10 == 0:
            log.write("checkpoint", step=step, bytes=1)
        log.cut()
    log.close()


def names(found: Any) -> list[tuple[str, int]]:
    return [(event["event"], event["step"]) for event in found]


def expected(last: int) -> list[tuple[str, int]]:
    both = (
        [("step", step), ("checkpoint", step)] if step % 10 == 0 else [("step", step)] for step in range(1, last + 1)
    )
    return list(itertools.chain.from_iterable(both))


def test_all_events_are_read_in_order_over_the_cuts(path: Path) -> None:
    train(path, 1, 500)
    assert len(segments.older(path)) > 5
    assert path.stat().st_size < 2 * segments.SEGMENT_BYTES
    assert names(events.read(path)) == expected(500)
    assert list(events.steps(path)) == list(range(1, 501))


def test_a_reader_goes_on_from_any_offset(path: Path) -> None:
    train(path, 1, 200)
    whole = list(events.follow(path, 0))
    for number, (_, offset) in enumerate(whole):
        assert [event for event, _ in events.follow(path, offset)] == [event for event, _ in whole[number + 1 :]]
    assert events.end(path) == whole[-1][1]


def test_a_follower_keeps_its_place_while_the_log_is_cut(path: Path) -> None:
    seen, offset = [], 0
    for step in range(1, 301):
        train(path, step, step)
        for event, behind in events.follow(path, offset):
            seen.append(event)
            offset = behind
    assert names(seen) == expected(300)


def test_summaries_keep_all_but_steps_and_the_last_step(path: Path) -> None:
    train(path, 1, 505)
    skimmed, recent = names(events.skim(path)), names(event for event, _ in events.recent(path))
    for found in (skimmed, recent):
        assert [one for one in found if one[0] != "step"] == [one for one in expected(505) if one[0] != "step"]
        assert found[-1] == ("step", 505)
        assert found == sorted(found, key=lambda one: one[1])
        assert {("step", step) for step in range(10, 501, 10)} <= set(found)
    offset = list(events.recent(path))[-1][1]
    train(path, 506, 507)
    assert names(event for event, _ in events.follow(path, offset)) == [("step", 506), ("step", 507)]


def test_what_a_kill_prevented_is_made_later_and_read_meanwhile(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(segments, "_summarise", lambda _: None)
        train(path, 1, 100)
    assert segments.older(path)
    assert not any(one.summary.exists() for one in segments.older(path))
    before = [one for one in names(events.skim(path)) if one[0] != "step"]
    assert before == [one for one in expected(100) if one[0] != "step"]
    train(path, 101, 200)
    assert all(one.summary.exists() for one in segments.older(path))
    assert names(events.read(path)) == expected(200)


@pytest.mark.parametrize("content", [b"", b"x", b"\xff\xfe\n{}", b"99999999\n"])
def test_a_damaged_summary_costs_no_other_event(path: Path, content: bytes) -> None:
    train(path, 1, 300)
    first, *_ = segments.older(path)
    first.summary.write_bytes(content)
    found = names(events.skim(path))
    later = [one for one in expected(300) if one[0] != "step" and one[1] > 60]
    assert [one for one in found if one in later] == later


def test_a_line_written_into_a_segment_that_was_just_cut_is_found(path: Path) -> None:
    train(path, 1, 100)
    with segments.older(path)[0].path.open("ab") as late:
        late.write(json.dumps({"at": "x", "event": "store", "step": 5}).encode() + b"\n")
    assert ("store", 5) in names(events.read(path))
    assert ("store", 5) in names(events.skim(path))
    assert ("store", 5) in names(event for event, _ in events.recent(path))


def test_another_writer_goes_on_in_the_newest_segment(path: Path) -> None:
    train(path, 1, 20)
    other = EventLog(path)
    train(path, 21, 100)
    other.write("store", step=100)
    assert names([json.loads(path.read_text().splitlines()[-1])]) == [("store", 100)]
    assert other.offset == events.end(path)
    other.close()


def test_a_log_that_was_never_cut_is_read_and_cut_by_the_next_trainer(path: Path) -> None:
    log = EventLog(path)
    for step in range(1, 501):
        log.write("step", step=step, loss=1.0)
    log.write("checkpoint", step=500)
    log.close()
    recent = [event["step"] for event, _ in events.recent(path)]
    assert 10 < len(recent) < 200
    assert recent[-2:] == [500, 500]
    assert len(events.newest_steps(path, 5)) < 100
    assert list(events.steps(path)) == list(range(1, 501))
    train(path, 501, 501)
    assert len(segments.older(path)) == 1
    assert list(events.steps(path)) == list(range(1, 502))


def test_the_newest_steps_are_found_without_the_older_ones(path: Path) -> None:
    train(path, 1, 500)
    train(path, 480, 490)
    assert max(events.newest_steps(path, 1)) >= 490
    found = sorted(step for step in events.newest_steps(path, 30, 490) if step <= 490)
    assert found[-30:] == list(range(461, 491))
    assert sorted(events.newest_steps(path, 10_000)) == list(range(1, 501))
    assert events.newest_steps(path.with_name("none.jsonl"), 5) == {}


def test_whether_any_step_was_done_is_known_from_a_summary(path: Path) -> None:
    train(path, 1, 300)
    path.write_bytes(b"")
    for one in segments.older(path):
        one.path.write_bytes(b"")
    assert events.has_steps(path)


def test_a_copy_for_elsewhere_is_one_short_file(path: Path, tmp_path: Path) -> None:
    train(path, 1, 505)
    copy = tmp_path / "copy" / "events.jsonl"
    copy.parent.mkdir()
    events.copy_recent(path, copy)
    assert names(events.read(copy)) == names(event for event, _ in events.recent(path))
    assert copy.stat().st_size < sum(one.path.stat().st_size for one in segments.older(path)) / 2


def test_a_run_directory_that_is_gone_does_not_end_the_training(tmp_path: Path) -> None:
    path = tmp_path / "v" / "events.jsonl"
    path.parent.mkdir()
    log = EventLog(path)
    (tmp_path / "v").rename(tmp_path / "w")
    log.write("step", step=1)
    log.cut()
    log.close()
    assert names(events.read(tmp_path / "w" / "events.jsonl")) == [("step", 1)]


def _append(path: Path, number: int, count: int) -> None:
    for index in range(count):
        events.append(path, "store", step=number * 1000 + index)


def _train(path: Path) -> None:
    train(path, 1, 1500)


def test_processes_at_once_lose_nothing(path: Path) -> None:
    """A trainer that cuts, others that append, and a follower: each event once."""
    processes = [FORK.Process(target=_append, args=(path, number, 200)) for number in (1, 2)]
    trainer = FORK.Process(target=_train, args=(path,))
    for process in (*processes, trainer):
        process.start()
    seen, offset = [], 0
    while trainer.is_alive():
        for event, behind in events.follow(path, offset):
            seen.append(event)
            offset = behind
    for process in (*processes, trainer):
        process.join()
    seen += [event for event, _ in events.follow(path, offset)]
    stored = {("store", number * 1000 + index) for number in (1, 2) for index in range(200)}
    found = names(events.read(path))
    assert sorted(found) == sorted([*expected(1500), *stored])
    assert [one for one in names(seen) if one[0] != "store"] == expected(1500)
    assert stored <= set(names(events.skim(path)))


def test_older_events_that_cannot_be_listed_are_not_taken_for_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By them a start knows which steps were passed over: without a word it would train them."""
    monkeypatch.setattr(file_check, "_PAUSES_SECONDS", (0.0,))
    train(path, 1, 200)
    assert segments.older(path)
    unlistable(monkeypatch, path.with_suffix(""))
    with pytest.raises(Unreadable):
        list(events.read(path))
