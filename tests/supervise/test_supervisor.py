"""The supervisor with real child processes: restarts, stops, new plans, adoption."""

import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from metadata_server import simulated
from supervised_case import QUICK, noted, pushed, status, status_is

from stoker.rundir import events, in_place, lock
from stoker.supervise import limit_watch, processes, supervisor
from stoker.supervise.settings import SupervisorSettings
from stoker.supervise.status import SupervisedRun
from stoker.supervise.supervisor import Supervisor

pytestmark = pytest.mark.skipif(os.name == "nt", reason="kills by signal")


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
    watching = stand_in("go(7, commit=100)\nraise ValueError('no such column: frage')")
    assert watching.run() == 2
    assert len(noted(watching, "attempt")) == 2
    (error,) = noted(watching, "error")
    assert error["error"]["code"] == "STK673"
    assert error["error"]["fields"]["step"] == 7
    assert error["error"]["fields"]["cause"] == "ValueError: no such column: frage"


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


def test_a_stop_that_was_asked_for_during_the_launch_starts_no_trainer(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("finish()")
    (watching.run_dir / "stop").touch()
    assert watching.run() == 75
    assert (status(watching)["state"], status(watching)["attempt"]) == ("stopped", 0)
    assert not (watching.run_dir / "stop").exists()
    assert Supervisor(watching.run_dir, QUICK).run() == 0


def test_a_stop_while_it_waits_to_start_again_ends_it_too(stand_in: Callable[..., Supervisor]) -> None:
    slow = SupervisorSettings(**{**QUICK.__dict__, "first_wait_seconds": 30, "longest_wait_seconds": 30})
    watching = stand_in("if attempt == 1: go(2)\nkill()", slow)

    def ask() -> None:
        while not status_is(watching.run_dir, "waiting", restarts=2):
            time.sleep(0.02)
        (watching.run_dir / "stop").touch()

    threading.Thread(target=ask, daemon=True).start()
    assert watching.run() == 75
    assert status(watching)["state"] == "stopped"


def test_it_works_where_no_package_is_installed(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = stand_in("go(100000, commit=50)")
    source = Path(str(supervisor.__file__)).parents[2]
    program = f"import sys; sys.path.insert(0, {str(source)!r}); from stoker.supervise import supervisor as one"
    with simulated("azure") as server:
        monkeypatch.setenv("STOKER_METADATA", server.address)
        server.mark()
        command = [sys.executable, "-I", "-S", "-c", f"{program}; sys.exit(one.main())", str(watching.run_dir)]
        assert subprocess.run(command, check=False, timeout=60).returncode == 75
    assert status(watching)["reason"] == "notice"


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

    def replan(self: SupervisedRun, command: str, log: str, *words: str) -> "subprocess.Popen[bytes]":
        asked.append((command, *words))
        return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({0 if len(asked) < 3 else 1})"])

    monkeypatch.setattr(SupervisedRun, "start_stoker", replan)
    watching = stand_in('go(3)\nfail("STK408", reason="no memory")')
    assert watching.run() == 1
    assert asked == [("replan", "3")] * 3


def test_a_signal_to_the_supervisor_stops_the_trainer_first(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("go(100000, commit=50)")
    program = subprocess.Popen([sys.executable, "-m", "stoker.supervise.supervisor", str(watching.run_dir)])
    while not (watching.run_dir / "committed").exists():
        time.sleep(0.02)
    program.terminate()
    assert program.wait(30) == 75
    assert noted(watching, "end")[-1]["status"] == "stopped"


def test_only_one_supervisor_watches_a_run(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("go(100000, commit=50)")
    command = [sys.executable, "-m", "stoker.supervise.supervisor", str(watching.run_dir)]
    first = subprocess.Popen(command)
    while not (watching.run_dir / "committed").exists():
        time.sleep(0.02)
    assert subprocess.run(command, check=False).returncode == 1
    first.terminate()
    assert first.wait(30) == 75
    assert len(noted(watching, "attempt")) == 1


def test_steps_done_again_after_a_damaged_checkpoint_are_no_progress(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("")
    watching._events.take({"event": "checkpoint", "step": 900, "seconds": 1})
    watching.status.stored_step, watching.status.fruitless = 900, 3
    watching._events.take({"event": "attempt", "resumed_step": 850})
    watching._events.take({"event": "checkpoint", "step": 900, "seconds": 1})
    assert (watching.status.committed_step, watching.status.stored_step, watching.status.fruitless) == (900, None, 3)
    watching._events.take({"event": "checkpoint", "step": 901, "seconds": 1})
    assert watching.status.fruitless == 0


def orphaned(watching: Supervisor, body: str) -> None:
    """Leaves a trainer behind whose supervisor was killed."""
    # As the plan starts it: by the name it is recognised by.
    code = (watching.run_dir.parent / "trainer.py").read_text(encoding="utf-8") + body
    plan = json.loads((watching.run_dir / "plan.json").read_text(encoding="utf-8"))
    plan["argv"] = ["-c", code, "stoker.engine.train"]
    (watching.run_dir / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    program = subprocess.Popen([sys.executable, "-m", "stoker.supervise.supervisor", str(watching.run_dir)])
    while not (watching.run_dir / "committed").exists():
        time.sleep(0.02)
    program.kill()
    program.wait()


@pytest.mark.parametrize("source", ["proc", "ps"])
def test_an_orphaned_trainer_is_adopted(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """The supervisor dies, the trainer goes on: the next supervisor watches that one and starts no second."""
    watching = stand_in("")
    orphaned(watching, "go(60, commit=10)\nfinish()")
    monkeypatch.setattr(processes, "_HAS_PROC", processes._HAS_PROC and source == "proc")
    assert Supervisor(watching.run_dir, QUICK).run() == 0
    assert len(noted(watching, "attempt")) == 1


def test_an_orphaned_trainer_past_its_limit_is_asked_to_commit(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("")
    orphaned(watching, "go(1000, commit=10)\nfinish()")
    plan = json.loads((watching.run_dir / "plan.json").read_text(encoding="utf-8"))
    (watching.run_dir / "plan.json").write_text(json.dumps({**plan, "limits": {"time_seconds": 0.0}}))
    assert Supervisor(watching.run_dir, QUICK).run() == 75
    assert noted(watching, "end")[-1]["status"] == "stopped"
    assert status(watching)["reason"] == "time"


def test_the_next_attempt_follows_the_new_plan(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(self: SupervisedRun) -> str:
        after = json.dumps({**self.plan, "env": {"RUNG": "2"}})
        path = str(self.run_dir / "plan.json")
        return f"import time; time.sleep(0.3); open({path!r}, 'w').write({after!r})"

    asked = pushed(monkeypatch, program)
    watching = stand_in('if os.environ.get("RUNG") != "2": fail("STK408", reason="no memory")\nfinish()')
    assert watching.run() == 0
    assert len(asked) == 1


def test_a_plan_that_does_not_come_ends_the_run(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed(monkeypatch, lambda _: "import time; time.sleep(30)")
    hasty = SupervisorSettings(**{**QUICK.__dict__, "plan_seconds": 0.5})
    watching = stand_in('go(3)\nfail("STK408", reason="no memory")', hasty)
    started = time.monotonic()
    assert watching.run() == 1
    assert time.monotonic() - started < 15
    assert status(watching)["reason"] == "memory"


def test_a_machine_that_starts_no_planning_is_asked_again(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []

    def program(self: SupervisedRun) -> str:
        refused.append(1)
        if len(refused) < 2:
            raise OSError(12, "Cannot allocate memory")
        return ""

    pushed(monkeypatch, program)
    watching = stand_in('if attempt < 3: fail("STK408", reason="no memory")\nfinish()')
    assert watching.run() == 0
    assert [one["reason"] for one in noted(watching, "restart")] == ["machine", "memory"]


def test_it_can_be_stopped_while_it_plans(stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch) -> None:
    def program(self: SupervisedRun) -> str:
        (self.run_dir / "stop").touch()
        return "import time; time.sleep(30)"

    pushed(monkeypatch, program)
    watching = stand_in('go(3)\nfail("STK408", reason="no memory")')
    started = time.monotonic()
    assert watching.run() == 75
    assert time.monotonic() - started < 15
    assert (status(watching)["reason"], status(watching)["ended"]) == ("user", "memory")


def test_events_of_others_do_not_end_it(stand_in: Callable[..., Supervisor]) -> None:
    body = """
for text in ('{"event": "step"}', '{"event": ["x"]}', '{"event": "step", "step": 1e999, "seconds": 1}',
             '{"event": "checkpoint", "step": "x", "seconds": null}', '{"event": "error", "program": "train"}',
             '{"event": "attempt", "resumed_step": {}}', '{"event": "error", "program": "train", "error": []}'):
    with (run / "events.jsonl").open("a") as log:
        log.write(text + "\\n")
finish()
"""
    watching = stand_in(body)
    assert watching.run() == 0
    assert status(watching)["committed_step"] == 10
    again = stand_in("finish()")
    assert again.run() == 0


def test_a_disk_that_takes_no_stop_file_is_asked_again(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, refused = in_place.touch, []

    def touch(path: Path) -> None:
        refused.append(path.name)
        if len(refused) < 4:
            raise OSError(28, "No space left on device")
        plain(path)

    monkeypatch.setattr(in_place, "touch", touch)
    watching = stand_in("go(100000, commit=50)", limits={"time_seconds": 0.5})
    assert watching.run() == 75
    assert refused[:4] == ["stop"] * 4
    assert "No space left" in status(watching)["trouble"]


def test_a_rank_the_kernel_killed_for_memory_asks_for_a_new_plan(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun itself ends with 1 and says in its log what became of the rank."""
    asked = pushed(monkeypatch, lambda _: "")
    kills = itertools.count()
    monkeypatch.setattr(processes, "oom_kills", lambda: next(kills))
    watching = stand_in("if attempt == 1: go(3); print('  exitcode  : -9 (pid: 17)'); sys.exit(1)\nfinish()")
    assert watching.run() == 0
    assert len(asked) == 1
    assert [one["reason"] for one in noted(watching, "restart")] == ["memory"]


def test_a_trainer_that_dies_while_it_is_stopped_is_said_to_have_died(stand_in: Callable[..., Supervisor]) -> None:
    body = "go(3)\n(run / 'stop').touch()\ntime.sleep(0.3)\nkill()"
    watching = stand_in(body)
    assert watching.run() == 75
    seen = status(watching)
    assert (seen["reason"], seen["ended"], seen["committed_step"], seen["step"]) == ("user", "SIGKILL", 2, 3)


def test_an_error_while_it_is_stopped_is_an_error(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in('go(3)\n(run / "stop").touch()\ntime.sleep(0.3)\nfail("STK410", reason="other data")')
    assert watching.run() == 1
    assert (status(watching)["state"], status(watching)["reason"]) == ("failed", "STK410")


def test_who_looks_at_the_lock_does_not_turn_the_supervisor_away(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking whether a lock is held takes it for a moment."""
    watching = stand_in("finish()")
    path = str(watching.run_dir / "supervisor.lock")
    code = (
        f"import fcntl, time; f = open({path!r}, 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as looker:
        assert looker.stdout is not None
        looker.stdout.readline()

        def let_go(seconds: float) -> None:
            looker.kill()
            looker.wait()

        monkeypatch.setattr(lock, "held", functools.partial(lock.held, wait=let_go))
        monkeypatch.setattr(sys, "argv", ["supervisor", str(watching.run_dir)])
        try:
            assert supervisor.main() == 0
        finally:
            looker.kill()


def test_no_number_of_an_attempt_is_used_twice(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("finish()")
    for number in (1, 3):
        (watching.run_dir / "logs" / f"train-{number}-rank0.log").touch()
    assert watching.run() == 0
    assert status(watching)["attempt"] == 4
    (watching.run_dir / "logs" / "train-4-rank0.log").unlink()
    again = Supervisor(watching.run_dir, QUICK)
    assert again.run() == 0
    assert status(again)["attempt"] == 5


def test_a_line_cut_short_by_a_kill_is_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "step", "st', encoding="utf-8")
    events.append(path, "restart", reason="SIGKILL")
    assert [event["event"] for event in events.read(path)] == ["restart"]


def test_the_end_is_settled_where_there_is_something_to_settle(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    for hook in limit_watch.HOOKS:
        monkeypatch.delenv(hook.name, raising=False)
    for plan, hook, expected in (({}, "", 0), ({"after": "stay"}, "", 0), ({"after": "stop"}, "", 1), ({}, "cat", 1)):
        monkeypatch.setenv("STOKER_NOTIFY_COMMAND", hook)
        watching = stand_in("finish()", **plan)
        watching._run.read_plan()
        asked: list[tuple[Any, ...]] = []
        watching._run.start_stoker = lambda *words, asked=asked, **options: asked.append((*words, options))  # type: ignore
        watching.settle()
        assert asked == [("settle", "settle.log", {"detached": True})] * expected


def test_without_a_log_its_subcommands_run_too(stand_in: Callable[..., Supervisor]) -> None:
    """A full disk takes no log, and the meter must be stopped."""
    watching = stand_in("")
    shutil.rmtree(watching.run_dir / "logs")
    (watching.run_dir / "logs").write_text("no folder")
    begun = watching._run.start_stoker("--version", "settle.log")
    assert begun.wait(60) is not None


@pytest.mark.parametrize(("clumsy", "code", "state"), [(2, 0, "done"), (3, 2, "failed")])
def test_a_surprise_of_its_own_leaves_no_run_without_a_guard(
    stand_in: Callable[..., Supervisor], clumsy: int, code: int, state: str
) -> None:
    """The next one takes over what trains; in the end there is a verdict, nobody trains, and it is settled."""
    watching = stand_in("go(3)\ntime.sleep(1)\nfinish()")
    code_text = (watching.run_dir.parent / "trainer.py").read_text(encoding="utf-8")
    plan = {"argv": ["-c", code_text, "stoker.engine.train"], "env": {}, "strategy": "single", "after": "stop"}
    (watching.run_dir / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    made: list[Supervisor] = []
    begun: list[Any] = []
    asked: list[tuple[Any, ...]] = []

    def start(one: Supervisor) -> Any:
        begun.append(processes.start_trainer(one.run_dir, one.plan, one.status.attempt, None))
        return begun[-1]

    def make(folder: Path) -> Supervisor:
        one, looks = Supervisor(folder, QUICK, start), iter(range(5))
        one._run.start_stoker = lambda *words, **_: asked.append(words)  # type: ignore[assignment, return-value, func-returns-value]
        if len(made) < clumsy:
            one._limits.warn = lambda: next(looks)  # type: ignore[method-assign, assignment, return-value]
        made.append(one)
        return one

    assert supervisor.supervised(watching.run_dir, make) == code
    assert (len(made), len(begun), status(watching)["state"]) == (3, 1, state)
    assert asked == [("settle", "settle.log")]
    assert begun[0].wait(10) == (0 if state == "done" else -signal.SIGKILL)
