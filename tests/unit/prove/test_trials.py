"""Trial runs without torch: what is tried again, what is made once, what is read from events."""

import datetime
import os
from pathlib import Path

import pytest
from plan_case import machine, processor

from stoker.errors import StokerError
from stoker.prove import resuming, several, trials
from stoker.prove.trials import Trials
from stoker.rundir import events
from stoker.rundir.layout import RunDir

DAY = datetime.datetime(2026, 12, 1, tzinfo=datetime.timezone.utc)


class Made(Trials):
    """Trials whose runs are empty folders."""

    def make(self, name: str, text: str, *words: str) -> RunDir:
        run_dir = RunDir(self.folder / name)
        run_dir.path.mkdir()
        return run_dir


@pytest.mark.parametrize(("answers", "name"), [([True], "killed-0"), ([False, False, True], "killed-2")])
def test_a_run_that_ended_before_it_was_killed_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[bool], name: str
) -> None:
    left = list(answers)
    monkeypatch.setattr(trials, "supervise", lambda run_dir, kill: left.pop(0))
    on = Made(tmp_path, processor())
    assert on.killed("killed", trials.kill_trainer).name == name
    assert on.killed("killed", trials.kill_trainer).name == name, "made once"
    assert left == []


def test_after_three_times_it_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "supervise", lambda run_dir, kill: False)
    with pytest.raises(StokerError) as caught:
        Made(tmp_path, processor()).killed("killed", trials.kill_trainer)
    assert caught.value.code == "STK516"
    assert len(list(tmp_path.iterdir())) == 3


def run_of(folder: Path, *losses: float) -> RunDir:
    run_dir = RunDir(folder)
    folder.mkdir()
    for step, loss in enumerate(losses, 1):
        events.append(run_dir.events_file, "step", step=step, loss=loss, epoch=0, tokens=1, seconds=1, wait_seconds=0)
    return run_dir


def test_losses_are_apart_by_the_worst_step_or_by_the_first(tmp_path: Path) -> None:
    one, other = run_of(tmp_path / "one", 4.0, 2.0), run_of(tmp_path / "other", 4.0, 2.5)
    assert resuming.losses_apart(one, other) == 0.25
    assert resuming.losses_apart(one, other, steps=1) == 0.0


def test_a_resume_takes_from_the_restart_to_the_next_step(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.path.mkdir()
    run_dir.plan_file.touch()
    os.utime(run_dir.plan_file, (DAY.timestamp(), DAY.timestamp()))
    happened = [("step", 10), ("step", 11), ("restart", 20), ("attempt", 27), ("step", 29.5), ("step", 30)]
    lines = [(DAY + datetime.timedelta(seconds=after), kind) for kind, after in happened]
    text = "".join(f'{{"at": "{at.isoformat(timespec="milliseconds")}", "event": "{kind}"}}\n' for at, kind in lines)
    run_dir.events_file.write_text(text, encoding="utf-8")
    assert resuming.seconds_to_first_step(run_dir) == 9.5
    run_dir.events_file.write_text("".join(text.splitlines(keepends=True)[:2]), encoding="utf-8")
    assert resuming.seconds_to_first_step(run_dir) == 10.0, "from the plan, where there was no restart"


def test_one_card_cannot_try_two_and_two_processes_stand_in_for_cards(tmp_path: Path) -> None:
    alone = Trials(tmp_path, machine("RTX4090"))
    for check in (several.ddp, several.fsdp2):
        assert (check(alone).outcome, check(alone).key) == ("absent", "prove.reason.one_card")
    assert "where.gpus=2" in several.words(Trials(tmp_path, machine("RTX4090", 2)), "ddp")
    assert "where.processes=2" in several.words(Trials(tmp_path, processor()), "ddp")
