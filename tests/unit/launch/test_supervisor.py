"""The supervisor with real child processes. What it starts here stands in for the trainer: a small script, no torch."""

import ast
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from stoker import errors
from stoker.launch import supervisor
from stoker.launch.supervisor import Ended, Settings, Supervisor, judge
from stoker.rundir import events

pytestmark = pytest.mark.skipif(os.name == "nt", reason="kills by signal")

STAND_IN = '''
import json, os, signal, subprocess, sys, time
from pathlib import Path
run, attempt = Path(sys.argv[-1]), int(os.environ["STOKER_ATTEMPT"])
committed = run / "committed"
step = int(committed.read_text()) if committed.exists() else 0

def say(event, **fields):
    with (run / "events.jsonl").open("a") as log:
        log.write(json.dumps({"at": "2026-11-15T00:00:00+00:00", "event": event, **fields}) + "\\n")

def go(last, commit=2):
    """Steps up to `last`; a checkpoint every so many; asked to stop, one more and the end."""
    global step
    while step < last:
        step += 1
        say("step", step=step, seconds=0.01, loss=1.0)
        time.sleep(0.01)
        if (run / "stop").exists():
            save()
            say("end", status="stopped", step=step)
            (run / "stop").unlink()
            sys.exit(75)
        if step % commit == 0:
            save()

def save():
    committed.write_text(str(step))
    say("checkpoint", step=step, seconds=0.01, bytes=1)

def fail(code, **fields):
    say("error", program="train", error={"code": code, "where": "", "fields": fields})
    sys.exit(1)

def finish():
    go(10)
    say("end", status="done", step=10)
    sys.exit(0)

def kill(number=signal.SIGKILL):
    os.kill(os.getpid(), number)

say("attempt", resumed_step=step)
'''

QUICK = Settings(
    look_seconds=0.02,
    beat_seconds=0.05,
    start_seconds=20,
    hang_floor_seconds=1.5,
    hang_steps=1,
    first_wait_seconds=0.05,
    longest_wait_seconds=0.2,
    fruitless_most=4,
    stop_seconds=20,
    deadline_reserve_seconds=0.3,
    copy_seconds=3,
)


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[..., Supervisor]:
    """A supervisor of a run whose trainer is `STAND_IN` and what follows it."""

    def make(body: str, settings: Settings = QUICK, **plan: Any) -> Supervisor:
        run_dir = tmp_path / "run"
        (run_dir / "logs").mkdir(parents=True, exist_ok=True)
        script = tmp_path / "trainer.py"
        script.write_text(STAND_IN + body, encoding="utf-8")
        content = {"argv": [str(script)], "env": {}, "strategy": "single", **plan}
        (run_dir / "plan.json").write_text(json.dumps(content), encoding="utf-8")
        return Supervisor(run_dir, settings)

    return make


def noted(watching: Supervisor, kind: str) -> list[dict[str, Any]]:
    return [event for event in events.read(watching.run_dir / "events.jsonl") if event["event"] == kind]


def status(watching: Supervisor) -> dict[str, Any]:
    return dict(json.loads((watching.run_dir / "supervisor.json").read_text(encoding="utf-8")))


def test_a_run_that_goes_well_is_started_once(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("finish()")
    assert watching.run() == 0
    seen = status(watching)
    assert (seen["state"], seen["attempt"], seen["restarts"], seen["step"]) == ("done", 1, 0, 10)
    assert seen["pid"] == os.getpid()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_killed_trainer_is_started_again_from_its_checkpoint(
    stand_in: Callable[..., Supervisor], number: signal.Signals
) -> None:
    watching = stand_in(f"go(5 * attempt)\nif attempt == 1: kill({int(number)})\nfinish()")
    assert watching.run() == 0
    (restart,) = noted(watching, "restart")
    assert (restart["reason"], restart["step"], restart["wait_seconds"]) == (number.name, 5, 0)
    assert [event["resumed_step"] for event in noted(watching, "attempt")] == [0, 4]
    assert status(watching)["restarts"] == 1


def test_a_user_error_is_not_tried_again(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in('fail("STK410", reason="other data")')
    assert watching.run() == 1
    assert len(noted(watching, "attempt")) == 1
    assert status(watching)["reason"] == "STK410"


def test_a_hub_that_is_away_after_the_first_steps_is_tried_again(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in('if attempt == 1: go(5); kill()\nif attempt == 2: fail("STK413")\nfinish()')
    assert watching.run() == 0
    assert [one["reason"] for one in noted(watching, "restart")] == ["SIGKILL", "STK413"]


def test_the_same_surprise_at_the_same_step_ends_it(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("go(7, commit=100)\nraise ValueError")
    assert watching.run() == 2
    assert len(noted(watching, "attempt")) == 2
    (error,) = noted(watching, "error")
    assert error["error"]["code"] == "STK673"
    assert error["error"]["fields"]["step"] == 7


def test_surprises_at_other_steps_are_tried_again(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("go(2 + attempt, commit=100)\nif attempt < 4: raise ValueError\nfinish()")
    assert watching.run() == 0
    assert len(noted(watching, "attempt")) == 4


def test_kills_without_a_new_checkpoint_do_not_go_on_for_ever(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("kill()")
    assert watching.run() == 2
    assert len(noted(watching, "attempt")) == 1 + QUICK.fruitless_most
    waits = [event["wait_seconds"] for event in noted(watching, "restart")]
    assert waits == [0, 0.05, 0.1, 0.2]
    assert noted(watching, "error")[0]["error"]["code"] == "STK674"


def test_progress_gives_new_patience(stand_in: Callable[..., Supervisor]) -> None:
    """Nine kills, each after a new checkpoint: more than would be borne without one."""
    watching = stand_in("go(min(10, step + 1), commit=1)\nif step < 10: kill()\nfinish()")
    assert watching.run() == 0
    assert status(watching)["restarts"] == 9


def test_a_checkpoint_nobody_was_told_of_is_progress_too(stand_in: Callable[..., Supervisor]) -> None:
    """Killed between the commit and its event, every time: the next attempt goes on from there all the same."""
    body = "go(min(10, step + 1), commit=100)\ncommitted.write_text(str(step))\nif step < 10: kill()\nfinish()"
    watching = stand_in(body)
    assert watching.run() == 0
    assert status(watching)["restarts"] == 9


def test_a_hanging_trainer_is_ended_with_its_children(stand_in: Callable[..., Supervisor], tmp_path: Path) -> None:
    body = """
if attempt == 1:
    go(4)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    (run / "child").write_text(str(child.pid))
    time.sleep(60)
finish()
"""
    watching = stand_in(body)
    assert watching.run() == 0
    assert [one["reason"] for one in noted(watching, "restart")] == ["hang"]
    child = int((watching.run_dir / "child").read_text())
    assert not supervisor._words(child)


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="asks /proc what a process does")
def test_a_trainer_that_hangs_before_its_model_is_there_is_noticed_too(stand_in: Callable[..., Supervisor]) -> None:
    """No event was written yet, and nothing is computed, read or written: not even the patience for a start applies."""
    watching = stand_in("finish()")
    script = watching.run_dir.parent / "trainer.py"
    script.write_text("import os, time\nif os.environ['STOKER_ATTEMPT'] == '1': time.sleep(60)\n" + script.read_text())
    started = time.monotonic()
    assert watching.run() == 0
    assert time.monotonic() - started < 15
    assert [one["reason"] for one in noted(watching, "restart")] == ["hang"]


def test_a_heartbeat_is_a_sign_of_life(stand_in: Callable[..., Supervisor]) -> None:
    body = """
go(4)
for _ in range(12):
    (run / "heartbeat").touch()
    time.sleep(0.2)
finish()
"""
    watching = stand_in(body)
    assert watching.run() == 0
    assert not noted(watching, "restart")


def test_a_growing_checkpoint_is_a_sign_of_life(stand_in: Callable[..., Supervisor]) -> None:
    body = """
go(4)
aside = run / "checkpoints" / ".step-00000004.1.tmp"
aside.mkdir(parents=True)
for _ in range(12):
    (aside / "model.safetensors").write_text("x")
    time.sleep(0.2)
finish()
"""
    watching = stand_in(body)
    assert watching.run() == 0
    assert not noted(watching, "restart")


def test_folders_that_come_and_go_do_not_end_the_supervisor(stand_in: Callable[..., Supervisor]) -> None:
    """Checkpoints are renamed and deleted while it looks at them."""
    body = """
import shutil
go(4)
for turn in range(300):
    aside = run / "checkpoints" / f".step-{turn % 3}.gone"
    (aside / "inner").mkdir(parents=True)
    shutil.rmtree(aside)
finish()
"""
    hasty = Settings(**{**QUICK.__dict__, "look_seconds": 0.0001})
    assert stand_in(body, hasty).run() == 0


def test_a_machine_that_starts_no_process_is_asked_again(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("finish()")
    plain, refused = watching._start, []

    def start(asked: Supervisor) -> Any:
        refused.append(1)
        if len(refused) < 3:
            raise OSError(28, "No space left on device")
        return plain(asked)

    watching._start = start
    assert watching.run() == 0
    assert [one["reason"] for one in noted(watching, "restart")] == ["machine", "machine"]


def test_the_stop_file_ends_it_with_75(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("if step == 0: go(3); (run / 'stop').touch()\nfinish()")
    assert watching.run() == 75
    assert status(watching)["state"] == "stopped"
    assert not (watching.run_dir / "stop").exists()
    again = Supervisor(watching.run_dir, QUICK)
    assert again.run() == 0


def test_a_stop_while_it_waits_to_start_again_ends_it_too(stand_in: Callable[..., Supervisor]) -> None:
    slow = Settings(**{**QUICK.__dict__, "first_wait_seconds": 30, "longest_wait_seconds": 30})
    watching = stand_in("if attempt == 1: go(2)\nkill()", slow)

    def ask() -> None:
        while not status_is(watching.run_dir, "waiting", restarts=2):
            time.sleep(0.02)
        (watching.run_dir / "stop").touch()

    threading.Thread(target=ask, daemon=True).start()
    assert watching.run() == 75
    assert status(watching)["state"] == "stopped"


def status_is(run_dir: Path, state: str, restarts: int) -> bool:
    try:
        seen = json.loads((run_dir / "supervisor.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(seen["state"] == state and seen["restarts"] == restarts)


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


def test_a_bad_step_stops_it_unless_the_plan_says_skip(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in('go(5)\nfail("STK405", step=5, loss="nan")')
    assert watching.run() == 1
    assert not noted(watching, "passed_over")


def test_a_bad_step_is_passed_over_where_the_plan_says_so(stand_in: Callable[..., Supervisor]) -> None:
    body = 'if attempt == 1: go(5); fail("STK405", step=5, loss="nan")\nfinish()'
    watching = stand_in(body, guard={"on_bad_step": "skip"})
    assert watching.run() == 0
    assert [event["step"] for event in noted(watching, "passed_over")] == [5]


def test_one_bad_step_after_the_other_is_divergence(stand_in: Callable[..., Supervisor]) -> None:
    body = 'go(4 + attempt, commit=100)\nfail("STK405", step=step, loss="nan")'
    watching = stand_in(body, guard={"on_bad_step": "skip"})
    assert watching.run() == 1
    assert len(noted(watching, "passed_over")) == QUICK.passed_over_most


def test_out_of_memory_asks_for_a_new_plan(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def replan(self: Supervisor, command: str, log: str, *words: str) -> "subprocess.Popen[bytes]":
        asked.append((command, *words))
        return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({0 if len(asked) < 3 else 1})"])

    monkeypatch.setattr(Supervisor, "_stoker", replan)
    watching = stand_in('go(3)\nfail("STK408", reason="no memory")')
    assert watching.run() == 1
    assert asked == [("replan", "3")] * 3


def test_every_commit_is_copied_to_the_store_and_the_end_waits_for_it(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[float] = []

    def push(self: Supervisor, command: str, log: str, *words: str) -> "subprocess.Popen[bytes]":
        assert command == "push"
        copies.append(time.monotonic())
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.1)"])

    monkeypatch.setattr(Supervisor, "_stoker", push)
    watching = stand_in("finish()", store="/elsewhere")
    assert watching.run() == 0
    assert copies
    assert status(watching)["stored_step"] == 10


def test_a_store_that_fails_is_said_and_does_not_undo_the_run(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def push(self: Supervisor, command: str, log: str, *words: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])

    monkeypatch.setattr(Supervisor, "_stoker", push)
    watching = stand_in("finish()", store="/elsewhere")
    assert watching.run() == 0
    assert (status(watching)["state"], status(watching)["reason"]) == ("done", "store")


def test_a_signal_to_the_supervisor_stops_the_trainer_first(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("go(100000, commit=50)")
    program = subprocess.Popen([sys.executable, "-m", "stoker.launch.supervisor", str(watching.run_dir)])
    while not (watching.run_dir / "committed").exists():
        time.sleep(0.02)
    program.terminate()
    assert program.wait(30) == 75
    assert noted(watching, "end")[-1]["status"] == "stopped"


def test_only_one_supervisor_watches_a_run(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("go(100000, commit=50)")
    command = [sys.executable, "-m", "stoker.launch.supervisor", str(watching.run_dir)]
    first = subprocess.Popen(command)
    while not (watching.run_dir / "committed").exists():
        time.sleep(0.02)
    assert subprocess.run(command, check=False).returncode == 1
    first.terminate()
    assert first.wait(30) == 75
    assert len(noted(watching, "attempt")) == 1


def test_an_orphaned_trainer_is_adopted(stand_in: Callable[..., Supervisor]) -> None:
    """The supervisor dies, the trainer goes on: the next supervisor watches that one and starts no second."""
    watching = stand_in("")
    # As the plan starts it: by the name it is recognised by.
    code = (watching.run_dir.parent / "trainer.py").read_text(encoding="utf-8") + "go(60, commit=10)\nfinish()"
    plan = json.loads((watching.run_dir / "plan.json").read_text(encoding="utf-8"))
    plan["argv"] = ["-c", code, "stoker.engine.train"]
    (watching.run_dir / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    program = subprocess.Popen([sys.executable, "-m", "stoker.launch.supervisor", str(watching.run_dir)])
    while not (watching.run_dir / "committed").exists():
        time.sleep(0.02)
    program.kill()
    program.wait()
    assert Supervisor(watching.run_dir, QUICK).run() == 0
    assert len(noted(watching, "attempt")) == 1


def test_a_line_cut_short_by_a_kill_is_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "step", "st', encoding="utf-8")
    supervisor.append_event(path, "restart", reason="SIGKILL")
    assert [event["event"] for event in events.read(path)] == ["restart"]


@pytest.mark.parametrize(
    ("ended", "act", "reason"),
    [
        (Ended(0, status="done"), "done", ""),
        (Ended(75), "stopped", "asked"),
        (Ended(0, status="stopped"), "stopped", "asked"),
        (Ended(-9), "retry", "SIGKILL"),
        (Ended(-9, starved=True), "replan", "memory"),
        (Ended(-9, hung=True), "retry", "hang"),
        (Ended(1, tail="  exitcode  : -9 (pid: 17)"), "retry", "SIGKILL"),
        (Ended(1, codes=["STK402", "STK408"]), "replan", "memory"),
        (Ended(1, codes=["STK402", "STK410"]), "fail", "STK410"),
        (Ended(1, codes=["STK402"]), "fail", "STK402"),
        (Ended(2, tail="RuntimeError: CUDA error: unspecified launch failure"), "retry", "device"),
        (Ended(2, tail="KeyError"), "retry", "surprise"),
        (Ended(1, codes=["STK416"], bad_step=3), "fail", "bad_step"),
        (Ended(0), "retry", "surprise"),
    ],
)
def test_what_will_repeat_is_told_from_what_may_pass(ended: Ended, act: str, reason: str) -> None:
    verdict = judge(ended, skip=False, trained=True)
    assert (verdict.act, verdict.reason) == (act, reason)


def test_it_needs_the_standard_library_only() -> None:
    tree = ast.parse(Path(supervisor.__file__).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


def test_its_exit_codes_are_those_of_the_house() -> None:
    for name in ("EXIT_DONE", "EXIT_USER", "EXIT_SURPRISE", "EXIT_STOPPED"):
        assert getattr(supervisor, name) == getattr(errors, name)
