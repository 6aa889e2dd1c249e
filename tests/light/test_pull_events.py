"""Events pulled from a box, by its shell: the newest and the summaries, whether they were cut or not."""

from pathlib import Path

import pytest

from stoker.hosts.shell import LocalShell
from stoker.places import box_pull
from stoker.rundir import events, segments
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir


@pytest.fixture
def laptop(tmp_path: Path) -> RunDir:
    (tmp_path / "laptop").mkdir()
    return RunDir(tmp_path / "laptop")


def write(path: Path, steps: int, *, cuts: bool) -> None:
    path.parent.mkdir(exist_ok=True)
    log = EventLog(path)
    log.write("attempt", tier="EXACT", resumed_step=0, total_steps=steps)
    for step in range(1, steps + 1):
        log.write("step", step=step, loss=1.0, filling="x" * 900)
        if step % 1000 == 0:
            log.write("checkpoint", step=step, bytes=1)
        if cuts:
            log.cut()
    log.close()


def kinds(path: Path) -> list[str]:
    return [event["event"] for event in events.skim(path) if event["event"] != "step"]


@pytest.mark.parametrize("cuts", [True, False])
def test_a_pull_brings_every_event_but_old_steps(tmp_path: Path, laptop: RunDir, cuts: bool) -> None:
    box = tmp_path / "box" / "events.jsonl"
    write(box, 15_000, cuts=cuts)
    assert bool(segments.older(box)) == cuts
    box_pull._pull_events(LocalShell(), str(box.parent), laptop)
    assert kinds(laptop.events_file) == kinds(box) == ["attempt", *["checkpoint"] * 15]
    assert list(events.read(laptop.events_file))[-1] == list(events.read(box))[-1]
    assert max(events.newest_steps(laptop.events_file, 1)) == 15_000
    assert laptop.events_file.stat().st_size < 2.2 * segments.SEGMENT_BYTES


def test_a_summary_that_is_missing_costs_steps_only(tmp_path: Path, laptop: RunDir) -> None:
    box = tmp_path / "box" / "events.jsonl"
    write(box, 10_000, cuts=True)
    segments.older(box)[0].summary.unlink()
    box_pull._pull_events(LocalShell(), str(box.parent), laptop)
    assert kinds(laptop.events_file) == kinds(box)


def test_events_that_are_cut_while_they_are_pulled_are_pulled_again(tmp_path: Path, laptop: RunDir) -> None:
    box = tmp_path / "box" / "events.jsonl"
    write(box, 100, cuts=False)

    class Cut(LocalShell):
        times = 0

        def run(self, script: str, **options: object) -> str:
            self.times += 1
            said = super().run(script, **options)  # type: ignore[arg-type]  # as they come
            return said if self.times > 1 else said.replace("whole", "cut")

    shell = Cut()
    box_pull._pull_events(shell, str(box.parent), laptop)
    assert shell.times == 2
    assert laptop.events_file.read_bytes() == box.read_bytes()


def test_a_run_without_events_leaves_those_of_here(tmp_path: Path, laptop: RunDir) -> None:
    (tmp_path / "box").mkdir()
    write(laptop.events_file, 3, cuts=False)
    before = laptop.events_file.read_bytes()
    box_pull._pull_events(LocalShell(), str(tmp_path / "box"), laptop)
    assert laptop.events_file.read_bytes() == before
