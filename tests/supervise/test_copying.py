"""Copies in the store, with real child processes in place of `stoker push`."""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from metadata_server import simulated
from supervised_case import QUICK, noted, pushed, status

from stoker.supervise.settings import SupervisorSettings
from stoker.supervise.status import SupervisedRun
from stoker.supervise.supervisor import Supervisor

pytestmark = pytest.mark.skipif(os.name == "nt", reason="kills by signal")


@pytest.mark.parametrize(("seconds", "reason"), [(0.3, "notice"), (60, "store")])
def test_the_copy_in_the_store_is_waited_for_as_long_as_the_notice_leaves(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch, seconds: float, reason: str
) -> None:
    def push(self: SupervisedRun, command: str, log: str, *words: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})"])

    monkeypatch.setattr(SupervisedRun, "start_stoker", push)
    patient = SupervisorSettings(**{**QUICK.__dict__, "copy_seconds": 600})
    watching = stand_in("go(100000, commit=100000)", patient, store="/elsewhere")
    with simulated("aws") as server:
        monkeypatch.setenv("STOKER_METADATA", server.address)
        end = server.mark(seconds=6 if reason == "store" else 60)
        assert watching.run() == 75
    assert (status(watching)["state"], status(watching)["reason"]) == ("stopped", reason)
    assert (time.time() >= end) == (reason == "store")
    assert time.time() < end + 5
    assert [one["reason"] for one in noted(watching, "limit")] == ["notice"]


def test_every_commit_is_copied_to_the_store_and_the_end_waits_for_it(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[float] = []

    def push(self: SupervisedRun, command: str, log: str, *words: str) -> "subprocess.Popen[bytes]":
        assert command == "push"
        copies.append(time.monotonic())
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.1)"])

    monkeypatch.setattr(SupervisedRun, "start_stoker", push)
    watching = stand_in("finish()", store="/elsewhere")
    assert watching.run() == 0
    assert copies
    assert status(watching)["stored_step"] == 10


def test_a_store_that_fails_is_said_and_does_not_undo_the_run(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def push(self: SupervisedRun, command: str, log: str, *words: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])

    monkeypatch.setattr(SupervisedRun, "start_stoker", push)
    watching = stand_in("finish()", store="/elsewhere")
    assert watching.run() == 0
    assert (status(watching)["state"], status(watching)["reason"]) == ("done", "store")


@pytest.mark.parametrize("seconds", [0.0, 0.6])
def test_the_finished_model_is_in_the_last_copy(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """The last checkpoint comes before the finished model: a copy begun in between has not seen it."""
    seen: list[bool] = []

    def program(self: SupervisedRun) -> str:
        seen.append((self.run_dir / "final").exists())
        return f"import time; time.sleep({seconds})"

    pushed(monkeypatch, program)
    body = "go(10)\ntime.sleep(0.3)\n(run / 'final').touch()\nsay('end', status='done', step=10)"
    watching = stand_in(body, store="/elsewhere")
    assert watching.run() == 0
    assert seen[0] is False
    assert seen[-1] is True
    assert (status(watching)["stored_step"], status(watching)["reason"]) == (10, "")


def test_what_is_committed_is_what_the_attempt_went_on_from(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fresh machine: the events in the store were ahead of the copies there."""
    copies: list[int] = []

    def program(self: SupervisedRun) -> str:
        copies.append(int((self.run_dir / "committed").read_text()))
        return ""

    pushed(monkeypatch, program)
    watching = stand_in("go(880, commit=10)\nsay('end', status='stopped')\nsys.exit(75)", store="/elsewhere")
    (watching.run_dir / "committed").write_text("850")
    past = ({"event": "attempt", "resumed_step": 0}, {"event": "checkpoint", "step": 900, "seconds": 1})
    (watching.run_dir / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in past))
    (watching.run_dir / "supervisor.json").write_text(json.dumps({"stored_step": 900}))
    assert watching.run() == 75
    assert (status(watching)["committed_step"], status(watching)["stored_step"]) == (880, 880)
    assert copies[-1] == 880


def test_a_copy_that_cannot_be_started_is_tried_again(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []

    def program(self: SupervisedRun) -> str:
        refused.append(1)
        if len(refused) < 3:
            raise OSError(11, "Resource temporarily unavailable")
        return ""

    pushed(monkeypatch, program)
    watching = stand_in("finish()", store="/elsewhere")
    assert watching.run() == 0
    assert status(watching)["stored_step"] == 10


def test_a_store_that_is_away_is_asked_ever_less_often(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[float] = []

    def program(self: SupervisedRun) -> str:
        begun.extend([time.monotonic()] * (self.status.state == "copying"))
        return "raise SystemExit(75)"

    pushed(monkeypatch, program)
    calm = SupervisorSettings(
        **{**QUICK.__dict__, "first_wait_seconds": 0.2, "longest_wait_seconds": 60, "copy_seconds": 4}
    )
    watching = stand_in("go(2)\nsay('end', status='done', step=2)", calm, store="/elsewhere")
    assert watching.run() == 0
    assert status(watching)["reason"] == "store"
    gaps = [after - before for before, after in itertools.pairwise(begun)]
    assert len(gaps) >= 2
    assert all(gap >= 0.2 * 2**number for number, gap in enumerate(gaps))


def test_a_store_that_refuses_is_not_waited_for(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = pushed(monkeypatch, lambda _: "raise SystemExit(1)")
    patient = SupervisorSettings(**{**QUICK.__dict__, "copy_seconds": 30})
    watching = stand_in("go(2)\nsay('end', status='done', step=2)", patient, store="/elsewhere")
    started = time.monotonic()
    assert watching.run() == 0
    assert time.monotonic() - started < 15
    assert len(begun) <= 2
    assert status(watching)["reason"] == "store"


def test_a_budget_is_not_waited_away_for_a_store(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed(monkeypatch, lambda _: "raise SystemExit(75)")
    patient = SupervisorSettings(**{**QUICK.__dict__, "copy_seconds": 40})
    watching = stand_in("go(100000, commit=50)", patient, store="/elsewhere", limits={"time_seconds": 2.0})
    started = time.monotonic()
    assert watching.run() == 75
    assert time.monotonic() - started < 20
    assert status(watching)["reason"] == "store"


def test_a_copy_that_failed_is_tried_again_before_the_next_checkpoint(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(self: SupervisedRun) -> str:
        failed = self.run_dir / "failed"
        if failed.exists():
            (self.run_dir / "copied").touch()
            return ""
        failed.touch()
        return "raise SystemExit(75)"

    pushed(monkeypatch, program)
    body = """
go(2)
for _ in range(100):
    (run / "heartbeat").touch()
    time.sleep(0.05)
    if (run / "copied").exists():
        finish()
fail("STK410", reason="no second try")
"""
    assert stand_in(body, store="/elsewhere").run() == 0


def test_what_an_earlier_supervisor_knew_of_the_store_is_asked_again(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may be another one now, or have lost it."""
    pushed(monkeypatch, lambda self: f"open({str(self.run_dir / 'copied')!r}, 'w')")
    body = """
for _ in range(100):
    (run / "heartbeat").touch()
    time.sleep(0.05)
    if (run / "copied").exists():
        finish()
fail("STK410", reason="nobody asked")
"""
    watching = stand_in(body, store="/elsewhere")
    (watching.run_dir / "committed").write_text("4")
    (watching.run_dir / "supervisor.json").write_text(json.dumps({"stored_step": 4}))
    assert watching.run() == 0


def test_the_last_copy_is_counted_too(stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch) -> None:
    pushed(monkeypatch, lambda _: "import time; time.sleep(1.5)")
    watching = stand_in("go(2)\nsay('end', status='done', step=2)", store="/elsewhere")
    assert watching.run() == 0
    assert status(watching)["spent_seconds"] > 1.5


@pytest.mark.parametrize("code", [0, 75])
def test_a_run_that_failed_is_copied_once_too(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    after: list[int] = []

    def program(self: SupervisedRun) -> str:
        ended = self.status.state == "copying"
        after.extend([1] * ended)
        return f"raise SystemExit({code if ended else 75})"

    pushed(monkeypatch, program)
    watching = stand_in('go(4)\nfail("STK410", reason="other data")', store="/elsewhere")
    assert watching.run() == 1
    assert after == [1]
    seen = status(watching)
    assert (seen["state"], seen["reason"], seen["stored_step"]) == ("failed", "STK410", None if code else 4)
