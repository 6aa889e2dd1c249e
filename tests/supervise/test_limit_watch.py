"""Budgets, deadlines and spot notices, with real child processes."""

import itertools
import json
import os
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from metadata_server import simulated
from supervised_case import QUICK, noted, status, status_is

from stoker.rundir import events
from stoker.supervise import spot_notices
from stoker.supervise.limits import Clock
from stoker.supervise.settings import SupervisorSettings
from stoker.supervise.supervisor import Supervisor

pytestmark = pytest.mark.skipif(os.name == "nt", reason="kills by signal")


def test_a_time_budget_ends_it_with_a_checkpoint(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("go(100000, commit=50)", limits={"time_seconds": 1.0})
    assert watching.run() == 75
    (limit,) = noted(watching, "limit")
    assert limit["reason"] == "time"
    assert noted(watching, "end")[-1]["status"] == "stopped"
    assert status(watching)["spent_seconds"] < 10
    spent = Supervisor(watching.run_dir, QUICK)
    assert spent.run() == 1  # the budget is of the run, not of the command
    assert noted(spent, "error")[-1]["error"]["code"] == "STK670"


@pytest.mark.parametrize("limit", ["money", "deadline"])
def test_other_limits_end_it_as_well(stand_in: Callable[..., Supervisor], limit: str) -> None:
    end = (datetime.now(timezone.utc) + timedelta(seconds=1.5)).isoformat()
    limits = {"money": {"money_seconds": 1.0}, "deadline": {"deadline": end}}[limit]
    watching = stand_in("go(100000, commit=50)", limits=limits)
    assert watching.run() == 75
    assert status(watching)["reason"] == limit


@pytest.mark.parametrize("cloud", ["aws", "google", "azure"])
def test_a_spot_notice_ends_it_with_a_checkpoint(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch, cloud: str
) -> None:
    watching = stand_in("go(100000, commit=50)")
    with simulated(cloud) as server:
        monkeypatch.setenv("STOKER_METADATA", server.address)
        server.mark()
        assert watching.run() == 75
    (limit,) = noted(watching, "limit")
    assert limit["reason"] == status(watching)["reason"] == "notice"
    assert datetime.fromisoformat(limit["stops_at"]) > datetime.now(timezone.utc)
    (end,) = noted(watching, "end")
    assert end["status"] == "stopped"
    assert noted(watching, "checkpoint")[-1]["step"] == end["step"]


@pytest.mark.parametrize("cloud", ["aws", "google", "azure"])
def test_without_a_notice_the_same_run_goes_on_to_its_end(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch, cloud: str
) -> None:
    """The negative control: the cloud is asked as before, and what it says is all that differs."""
    watching = stand_in("while not (run / 'go').exists(): time.sleep(0.01)\nfinish()")
    with simulated(cloud) as server:
        monkeypatch.setenv("STOKER_METADATA", server.address)

        def go() -> None:
            server.wait_until_asked(8)
            (watching.run_dir / "go").touch()

        threading.Thread(target=go, daemon=True).start()
        assert watching.run() == 0
    assert not noted(watching, "limit")
    assert status(watching)["state"] == "done"


def test_where_notices_are_off_a_marked_machine_trains_on(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulated("google") as server:
        server.mark()
        monkeypatch.setenv("STOKER_METADATA", "off")
        assert stand_in("finish()").run() == 0
        assert server.asked == []


@pytest.mark.parametrize("place", ["hanging", "moved", "nowhere"])
def test_a_metadata_service_that_does_not_answer_delays_nothing(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    looks: list[float] = []
    clock = Clock(wait=lambda seconds: (looks.append(time.monotonic()), time.sleep(seconds))[1])
    watching = stand_in("go(100000, commit=50)", clock=clock, limits={"time_seconds": 1.0})
    with simulated("hanging" if place == "nowhere" else place) as server:
        monkeypatch.setenv("STOKER_METADATA", "127.0.0.1:9" if place == "nowhere" else server.address)
        assert watching.run() == 75
    assert status(watching)["reason"] == "time"
    assert max(after - before for before, after in itertools.pairwise(looks)) < spot_notices._ANSWER_SECONDS


def test_a_notice_ends_a_wait_and_is_written_down(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SupervisorSettings(**{**QUICK.__dict__, "first_wait_seconds": 60, "longest_wait_seconds": 60})
    watching = stand_in("if attempt == 1: go(2)\nkill()", slow)
    with simulated("aws") as server:
        monkeypatch.setenv("STOKER_METADATA", server.address)

        def mark() -> None:
            while not status_is(watching.run_dir, "waiting", restarts=2):
                time.sleep(0.02)
            server.mark()

        threading.Thread(target=mark, daemon=True).start()
        assert watching.run() == 75
    assert status(watching)["reason"] == "notice"
    assert [one["reason"] for one in noted(watching, "limit")] == ["notice"]


def test_a_budget_counts_what_was_trained_on_other_machines(stand_in: Callable[..., Supervisor]) -> None:
    """A fresh machine has the events from the store, and no supervisor.json."""
    watching = stand_in("finish()", limits={"time_seconds": 150})
    at = "2026-11-15T{}+00:00".format
    past = [
        {"at": at("00:00:00"), "event": "attempt", "resumed_step": 0},
        {"at": at("00:01:20"), "event": "step", "step": 1, "seconds": 80},
        {"at": at("09:00:00"), "event": "attempt", "resumed_step": 1},
        {"at": at("09:01:20"), "event": "step", "step": 2, "seconds": 80},
    ]
    (watching.run_dir / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in past))
    assert watching.run() == 1
    (error,) = noted(watching, "error")
    assert error["error"] == {"code": "STK670", "where": "", "fields": {"reason": "time", "spent": 160}}


def test_at_most_of_a_budget_it_warns_once(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in(
        "if attempt == 1: time.sleep(1.8); go(3); kill()\ngo(100000, commit=50)", limits={"time_seconds": 2.0}
    )
    assert watching.run() == 75
    (warning,) = noted(watching, "warning")
    assert (warning["reason"], warning["limit_seconds"]) == ("time", 2.0)
    assert 1.6 <= warning["spent_seconds"] <= 2.0
    kinds = [event["event"] for event in events.read(watching.run_dir / "events.jsonl")]
    assert kinds.index("warning") < kinds.index("limit")
    again = Supervisor(watching.run_dir, QUICK)
    again._recall()
    again._limits.warn()
    assert len(noted(again, "warning")) == 1


def test_who_wants_news_is_told_of_the_warning(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_NOTIFY_COMMAND", "cat")
    watching = stand_in("go(100000, commit=50)", limits={"money_seconds": 1.0})
    asked: list[tuple[str, ...]] = []
    watching._run.start_stoker = lambda *words, **_: asked.append(words)  # type: ignore[assignment, return-value, func-returns-value]
    assert watching.run() == 75
    assert asked == [("settle", "settle.log", "--warning", "money")]


def test_the_time_of_the_launch_counts(stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Installing, preparing and copying are billed like training; a second supervisor of a launch adds nothing."""
    launched = datetime.now(timezone.utc) - timedelta(seconds=100)
    monkeypatch.setenv("STOKER_LAUNCHED", launched.isoformat(timespec="seconds"))
    watching = stand_in("finish()", limits={"time_seconds": 1000})
    assert watching.run() == 0
    assert 100 <= status(watching)["spent_seconds"] < 115
    again = Supervisor(watching.run_dir, QUICK)
    again._recall()
    assert 100 <= again._run.spent.seconds < 120


def test_a_launch_that_took_the_whole_budget_is_refused(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_LAUNCHED", (datetime.now(timezone.utc) - timedelta(hours=2)).isoformat())
    watching = stand_in("finish()", limits={"money_seconds": 3600})
    assert watching.run() == 1
    assert noted(watching, "error")[0]["error"]["code"] == "STK670"


def test_what_the_machine_waited_after_a_run_counts(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("finish()")
    (watching.run_dir / "settled.json").write_text(json.dumps({"spent_seconds": 500.0}))
    watching._recall()
    assert watching._run.spent.seconds >= 500


def test_a_trainer_that_does_not_stop_at_its_limit_is_ended(stand_in: Callable[..., Supervisor]) -> None:
    """Its newest committed checkpoint stays; nobody pays half an hour for a hang."""
    hasty = SupervisorSettings(
        **{
            **QUICK.__dict__,
            "overtime_seconds": 0.4,
            "silent_seconds": 0.4,
            "stop_seconds": 1.0,
            "hang_floor_seconds": 60,
        }
    )
    watching = stand_in(
        "go(4)\nwhile True: (run / 'heartbeat').touch(); time.sleep(0.05)", hasty, limits={"time_seconds": 1.0}
    )
    assert watching.run() == 75
    seen = status(watching)
    assert (seen["reason"], seen["ended"], seen["asked"], seen["committed_step"]) == ("time", "hang", "time", 4)
    assert seen["spent_seconds"] < 10


def test_a_checkpoint_being_written_at_the_limit_is_waited_for(stand_in: Callable[..., Supervisor]) -> None:
    """Also while it is synced and digested, which moves nothing."""
    hasty = SupervisorSettings(
        **{**QUICK.__dict__, "overtime_seconds": 0.2, "silent_seconds": 0.2, "hang_floor_seconds": 60}
    )
    body = """
go(4)
while not (run / "stop").exists(): time.sleep(0.02)
aside = run / "checkpoints" / ".step-00000005.1.tmp"
aside.mkdir(parents=True)
(aside / "model.safetensors").write_text("x")
time.sleep(2.5)
aside.rename(aside.with_name("step-00000005"))
go(5)
"""
    watching = stand_in(body, hasty, limits={"time_seconds": 1.0})
    assert watching.run() == 75
    assert (status(watching)["ended"], status(watching)["committed_step"]) == ("", 5)


def test_a_trainer_that_gives_signs_after_its_limit_is_left_to_its_commit(stand_in: Callable[..., Supervisor]) -> None:
    """It gathers what it will save: events and the heartbeat say that it works."""
    hasty = SupervisorSettings(
        **{**QUICK.__dict__, "overtime_seconds": 0.2, "silent_seconds": 0.5, "hang_floor_seconds": 60}
    )
    body = """
go(4)
while not (run / "stop").exists(): time.sleep(0.02)
for _ in range(20): (run / "heartbeat").touch(); time.sleep(0.1)
go(5)
"""
    watching = stand_in(body, hasty, limits={"time_seconds": 1.0})
    assert watching.run() == 75
    assert (status(watching)["ended"], status(watching)["committed_step"]) == ("", 5)


def test_a_silent_trainer_is_ended_after_what_a_save_may_take(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("", SupervisorSettings(), limits={"time_seconds": 1000.0})
    watching._run.read_plan()
    watching._life.silent_seconds = 1e6
    for late, expected in ((-1.0, False), (299.0, False), (301.0, True)):
        watching._run.spent.before_seconds = 1000.0 + late
        assert watching._limits.is_overdue("time") == expected


def test_folders_that_are_renamed_this_moment_are_being_written(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = stand_in("", SupervisorSettings(), limits={"time_seconds": 1.0})
    watching._run.read_plan()
    watching._life.silent_seconds, watching._run.spent.before_seconds = 1e6, 500.0
    assert watching._limits.is_overdue("time")

    def renamed(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "glob", renamed)
    assert not watching._limits.is_overdue("time")


def test_before_the_first_checkpoint_the_rehearsed_save_is_reserved(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("", limits={"time_seconds": 100.0})
    watching._run.read_plan()
    watching._events.take({"event": "rehearsal", "part": "step", "seconds": 500.0})
    assert watching._limits.reached() == ""
    watching._events.take({"event": "rehearsal", "part": "save", "seconds": 60.0})
    assert watching._limits.reached() == "time"


def test_a_deadline_that_is_none_does_not_end_the_supervisor(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("finish()", limits={"deadline": "tomorrow"})
    assert watching.run() == 0
