"""The supervisor with real child processes. What it starts here stands in for the trainer: a small script, no torch."""

import ast
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
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from metadata_server import simulated

from stoker import errors
from stoker.rundir import events
from stoker.supervise import processes, ranks, spot_notices, supervisor, wire
from stoker.supervise.supervisor import Ended, Settings, Supervisor, judge

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
    notice_seconds=0.05,
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


def written(folder: Path, pid: int, mark: str = "sum") -> Path:
    """A rank's pulse."""
    said = {
        "rank": 1,
        "pid": pid,
        "node": "",
        "at": 1.0,
        "step": 7,
        "mark": mark,
        "own_seconds": [],
        "data_seconds": [],
    }
    path = folder / "pulse-1.json"
    path.write_text(json.dumps(said), encoding="utf-8")
    return path


def test_a_process_that_has_a_ranks_number_is_no_rank(tmp_path: Path) -> None:
    """It is not taken for alive, nor asked for its stacks, which would end it."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        written(tmp_path, stranger.pid)
        (pulse,) = processes.read_pulses(str(tmp_path), tmp_path)
        assert not pulse["alive"]
        processes.dump_stacks([pulse], tmp_path)
        time.sleep(0.2)
        assert stranger.poll() is None
        stranger.kill()


def test_a_rank_that_ends_while_it_is_looked_at_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(pids: set[int], run_dir: Path) -> set[int]:
        written(tmp_path, pids.pop(), mark="end")
        return set()

    written(tmp_path, 1 << 30)
    monkeypatch.setattr(processes, "_training", end)
    (pulse,) = processes.read_pulses(str(tmp_path), tmp_path)
    assert (pulse["mark"], pulse["alive"]) == ("end", False)


def test_silence_is_counted_by_the_time_that_passed(tmp_path: Path) -> None:
    class Counted(ranks.Ranks):
        passed = 0.0

        def see(self, pulses: list[dict[str, Any]], passed_seconds: float) -> None:
            self.passed += passed_seconds

    watching, counted, began = Supervisor(tmp_path, QUICK), Counted(30, 900), time.monotonic()
    watching._watch_anew()
    watching._passed = 5.0  # of the last look
    for _ in range(10):
        watching._examine(counted)
    assert counted.passed <= time.monotonic() - began


def test_a_trainer_that_cannot_be_started_leaves_no_meeting_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(11, "no process to be had")

    meeting = tmp_path / "meeting"
    meeting.mkdir()
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(OSError, match="no process"):
        processes.start_trainer(tmp_path, {"env": {}, "argv": []}, 1, str(meeting))
    assert not meeting.exists()


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
    assert not processes.words_of(child)


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
    watching = stand_in("go(100000, commit=50)", limits={"time_seconds": 1.0})
    looks: list[float] = []
    plain = watching._wait
    watching._wait = lambda seconds: (looks.append(time.monotonic()), plain(seconds))[1]
    with simulated("hanging" if place == "nowhere" else place) as server:
        monkeypatch.setenv("STOKER_METADATA", "127.0.0.1:9" if place == "nowhere" else server.address)
        assert watching.run() == 75
    assert status(watching)["reason"] == "time"
    assert max(after - before for before, after in itertools.pairwise(looks)) < spot_notices._ANSWER_SECONDS


def test_a_notice_ends_a_wait_and_is_written_down(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Settings(**{**QUICK.__dict__, "first_wait_seconds": 60, "longest_wait_seconds": 60})
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


@pytest.mark.parametrize(("seconds", "reason"), [(0.3, "notice"), (60, "store")])
def test_the_copy_in_the_store_is_waited_for_as_long_as_the_notice_leaves(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch, seconds: float, reason: str
) -> None:
    def push(self: Supervisor, command: str, log: str, *words: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})"])

    monkeypatch.setattr(Supervisor, "_stoker", push)
    patient = Settings(**{**QUICK.__dict__, "copy_seconds": 600})
    watching = stand_in("go(100000, commit=100000)", patient, store="/elsewhere")
    with simulated("aws") as server:
        monkeypatch.setenv("STOKER_METADATA", server.address)
        end = server.mark(seconds=6 if reason == "store" else 60)
        assert watching.run() == 75
    assert (status(watching)["state"], status(watching)["reason"]) == ("stopped", reason)
    assert (time.time() >= end) == (reason == "store")
    assert time.time() < end + 5
    assert [one["reason"] for one in noted(watching, "limit")] == ["notice"]


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


def pushed(monkeypatch: pytest.MonkeyPatch, program: Callable[[Supervisor], str]) -> list[float]:
    """What `stoker push` does, as a program's text by the state of things; says when each was begun."""
    begun: list[float] = []

    def push(self: Supervisor, command: str, log: str, *words: str) -> "subprocess.Popen[bytes]":
        begun.append(time.monotonic())
        return subprocess.Popen([sys.executable, "-S", "-c", program(self)])

    monkeypatch.setattr(Supervisor, "_stoker", push)
    return begun


@pytest.mark.parametrize("seconds", [0.0, 0.6])
def test_the_finished_model_is_in_the_last_copy(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """The last checkpoint comes before the finished model: a copy begun in between has not seen it."""
    seen: list[bool] = []

    def program(self: Supervisor) -> str:
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

    def program(self: Supervisor) -> str:
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


def test_steps_done_again_after_a_damaged_checkpoint_are_no_progress(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("")
    watching._understand({"event": "checkpoint", "step": 900, "seconds": 1})
    watching.status.stored_step, watching.status.fruitless = 900, 3
    watching._understand({"event": "attempt", "resumed_step": 850})
    watching._understand({"event": "checkpoint", "step": 900, "seconds": 1})
    assert (watching.status.committed_step, watching.status.stored_step, watching.status.fruitless) == (900, None, 3)
    watching._understand({"event": "checkpoint", "step": 901, "seconds": 1})
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


def test_a_number_that_is_another_process_now_is_left_alone(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True) as stranger:
        assert supervisor.Adopted(stranger.pid, watching.run_dir).poll() is not None
        while len(processes.words_of(stranger.pid)) < 3:
            time.sleep(0.02)
        watching._end_group(stranger.pid, gone=True)
        time.sleep(0.2)
        assert stranger.poll() is None
        watching._end_group(stranger.pid)
        assert stranger.wait(10) == -signal.SIGKILL


def test_a_group_that_may_not_be_signalled_does_not_end_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    """What macOS answers for a group of ended processes."""

    def kill(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", kill)
    processes.kill(1)


def test_the_next_attempt_follows_the_new_plan(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(self: Supervisor) -> str:
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
    hasty = Settings(**{**QUICK.__dict__, "plan_seconds": 0.5})
    watching = stand_in('go(3)\nfail("STK408", reason="no memory")', hasty)
    started = time.monotonic()
    assert watching.run() == 1
    assert time.monotonic() - started < 15
    assert status(watching)["reason"] == "memory"


def test_a_machine_that_starts_no_planning_is_asked_again(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []

    def program(self: Supervisor) -> str:
        refused.append(1)
        if len(refused) < 2:
            raise OSError(12, "Cannot allocate memory")
        return ""

    pushed(monkeypatch, program)
    watching = stand_in('if attempt < 3: fail("STK408", reason="no memory")\nfinish()')
    assert watching.run() == 0
    assert [one["reason"] for one in noted(watching, "restart")] == ["machine", "memory"]


def test_it_can_be_stopped_while_it_plans(stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch) -> None:
    def program(self: Supervisor) -> str:
        (self.run_dir / "stop").touch()
        return "import time; time.sleep(30)"

    pushed(monkeypatch, program)
    watching = stand_in('go(3)\nfail("STK408", reason="no memory")')
    started = time.monotonic()
    assert watching.run() == 75
    assert time.monotonic() - started < 15
    assert (status(watching)["reason"], status(watching)["ended"]) == ("user", "memory")


class Clocks:
    """The clocks as the supervisor sees them, which may jump."""

    def __init__(self) -> None:
        self.wall = self.own = 0.0

    def time(self) -> float:
        return time.time() + self.wall

    def monotonic(self) -> float:
        return time.monotonic() + self.own

    def jump(self, wall: float, own: float) -> None:
        self.wall, self.own = wall, own


@pytest.mark.parametrize(("wall", "own"), [(3600.0, 3600.0), (3600.0, 0.0)])
def test_a_machine_that_slept_did_not_hang(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch, wall: float, own: float
) -> None:
    clocks = Clocks()
    monkeypatch.setattr(supervisor, "time", clocks)
    watching = stand_in("go(4)\ntime.sleep(1)\nfinish()")
    looks: list[float] = []

    def wait(seconds: float) -> None:
        looks.extend([seconds] * (watching.status.committed_step == 4))
        if len(looks) == 5:
            clocks.jump(wall, own)
        time.sleep(seconds)

    watching._wait = wait
    assert watching.run() == 0
    assert clocks.wall == wall
    assert not noted(watching, "restart")


def test_a_clock_that_is_set_back_hides_no_hang(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks()
    monkeypatch.setattr(supervisor, "time", clocks)
    watching = stand_in("if attempt == 1: go(4); time.sleep(20)\nfinish()")

    def wait(seconds: float) -> None:
        clocks.jump(-3600.0 if watching.status.step == 4 else clocks.wall, 0.0)
        time.sleep(seconds)

    watching._wait = wait
    assert watching.run() == 0
    assert [one["reason"] for one in noted(watching, "restart")] == ["hang"]


def test_copies_are_no_sign_of_life(stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Their events stand in the same file as the trainer's, and a store that is away brings ever more of them."""

    def program(self: Supervisor) -> str:
        path, line = str(self.run_dir / "events.jsonl"), '{"event": "store", "copied": false}\n'
        return f"open({path!r}, 'a').write({line!r}); raise SystemExit(75)"

    pushed(monkeypatch, program)
    watching = stand_in("if attempt == 1: go(4); time.sleep(20)\nfinish()", store="/elsewhere")
    assert watching.run() == 0
    assert [one["reason"] for one in noted(watching, "restart")] == ["hang"]


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
    plain, refused = Path.touch, []

    def touch(self: Path, *args: Any, **kwargs: Any) -> None:
        refused.append(self.name)
        if len(refused) < 4:
            raise OSError(28, "No space left on device")
        plain(self, *args, **kwargs)

    monkeypatch.setattr(Path, "touch", touch)
    watching = stand_in("go(100000, commit=50)", limits={"time_seconds": 0.5})
    assert watching.run() == 75
    assert refused[:4] == ["stop"] * 4
    assert "No space left" in status(watching)["trouble"]


def test_a_copy_that_cannot_be_started_is_tried_again(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []

    def program(self: Supervisor) -> str:
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

    def program(self: Supervisor) -> str:
        begun.extend([time.monotonic()] * (self.status.state == "copying"))
        return "raise SystemExit(75)"

    pushed(monkeypatch, program)
    calm = Settings(**{**QUICK.__dict__, "first_wait_seconds": 0.2, "longest_wait_seconds": 60, "copy_seconds": 4})
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
    patient = Settings(**{**QUICK.__dict__, "copy_seconds": 30})
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
    patient = Settings(**{**QUICK.__dict__, "copy_seconds": 40})
    watching = stand_in("go(100000, commit=50)", patient, store="/elsewhere", limits={"time_seconds": 2.0})
    started = time.monotonic()
    assert watching.run() == 75
    assert time.monotonic() - started < 20
    assert status(watching)["reason"] == "store"


def test_a_copy_that_failed_is_tried_again_before_the_next_checkpoint(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(self: Supervisor) -> str:
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

    def program(self: Supervisor) -> str:
        ended = self.status.state == "copying"
        after.extend([1] * ended)
        return f"raise SystemExit({code if ended else 75})"

    pushed(monkeypatch, program)
    watching = stand_in('go(4)\nfail("STK410", reason="other data")', store="/elsewhere")
    assert watching.run() == 1
    assert after == [1]
    seen = status(watching)
    assert (seen["state"], seen["reason"], seen["stored_step"]) == ("failed", "STK410", None if code else 4)


def test_a_budget_counts_what_was_trained_on_other_machines(stand_in: Callable[..., Supervisor]) -> None:
    """A fresh machine has the events from the store, and no supervisor.json."""
    watching = stand_in("finish()", limits={"time_seconds": 150})
    at = "2026-11-15T{}+00:00".format
    past = [
        {"at": at("00:00:00"), "event": "attempt", "resumed_step": 0},
        {"at": at("00:01:20"), "event": "step", "step": 1, "seconds": 1},
        {"at": at("09:00:00"), "event": "attempt", "resumed_step": 0},
        {"at": at("09:01:20"), "event": "step", "step": 2, "seconds": 1},
    ]
    (watching.run_dir / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in past))
    assert watching.run() == 1
    (error,) = noted(watching, "error")
    assert error["error"] == {"code": "STK670", "where": "", "fields": {"reason": "time", "spent": 160}}


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

        monkeypatch.setattr(time, "sleep", let_go)
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
        (Ended(1, codes=["STK402"], tail="  exitcode  : -9 (pid: 17)"), "retry", "SIGKILL"),
        (Ended(1, codes=["STK423", "STK423"]), "retry", "lost"),
        (Ended(1, codes=["STK423", "STK408"]), "replan", "memory"),
        (Ended(1, codes=["STK423", "STK410"]), "fail", "STK410"),
        (Ended(1, codes=["STK423"], tail="  exitcode  : -9 (pid: 17)"), "retry", "SIGKILL"),
        (Ended(1, codes=["STK423"], tail="  exitcode  : 2 (pid: 17)"), "retry", "surprise"),
        (Ended(2, tail="RuntimeError: CUDA error: unspecified launch failure"), "retry", "device"),
        (Ended(2, tail="KeyError"), "retry", "surprise"),
        (Ended(1, codes=["STK416"], bad_step=3), "fail", "bad_step"),
        (Ended(-9, codes=["STK423"], lost="silent"), "retry", "silent"),
        (Ended(-9, codes=["STK423", "STK408"], lost="node"), "replan", "memory"),
        (Ended(1, codes=["STK424", "STK423"]), "retry", "STK424"),
        (Ended(1, codes=["STK425", "STK423"]), "fail", "STK425"),
        (Ended(0), "retry", "surprise"),
    ],
)
def test_what_will_repeat_is_told_from_what_may_pass(ended: Ended, act: str, reason: str) -> None:
    verdict = judge(ended, skip=False, trained=True)
    assert (verdict.act, verdict.reason) == (act, reason)


@pytest.mark.parametrize("module", [supervisor, spot_notices, wire, ranks, processes])
def test_it_needs_the_standard_library_only(module: ModuleType) -> None:
    """And of our own files those that need no more, and only for several processes."""
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    own = {wire.__name__, ranks.__name__, processes.__name__, "stoker.supervise"} if module is supervisor else set()
    assert {name.partition(".")[0] for name in imported - own} <= sys.stdlib_module_names


def test_its_exit_codes_are_those_of_the_house() -> None:
    for name in ("EXIT_DONE", "EXIT_USER", "EXIT_SURPRISE", "EXIT_STOPPED"):
        assert getattr(supervisor, name) == getattr(errors, name)


# ---- budgets on a rented machine


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
    again._warn()
    assert len(noted(again, "warning")) == 1


def test_who_wants_news_is_told_of_the_warning(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_NOTIFY_COMMAND", "cat")
    watching = stand_in("go(100000, commit=50)", limits={"money_seconds": 1.0})
    asked: list[tuple[str, ...]] = []
    watching._stoker = lambda *words, **_: asked.append(words)  # type: ignore[assignment, return-value, func-returns-value]
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
    assert 100 <= again._spent_seconds < 120


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
    assert watching._spent_seconds >= 500


def test_a_trainer_that_does_not_stop_at_its_limit_is_ended(stand_in: Callable[..., Supervisor]) -> None:
    """Its newest committed checkpoint stays; nobody pays half an hour for a hang."""
    hasty = Settings(
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
    hasty = Settings(**{**QUICK.__dict__, "overtime_seconds": 0.2, "silent_seconds": 0.2, "hang_floor_seconds": 60})
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


def test_the_end_is_settled_where_there_is_something_to_settle(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in supervisor._HOOKS:
        monkeypatch.delenv(name, raising=False)
    for plan, hook, expected in (({}, "", 0), ({"after": "stay"}, "", 0), ({"after": "stop"}, "", 1), ({}, "cat", 1)):
        monkeypatch.setenv("STOKER_NOTIFY_COMMAND", hook)
        watching = stand_in("finish()", **plan)
        watching._read_plan()
        asked: list[tuple[Any, ...]] = []
        watching._stoker = lambda *words, asked=asked, **options: asked.append((*words, options))  # type: ignore
        watching.settle()
        assert asked == [("settle", "settle.log", {"detached": True})] * expected


def test_a_trainer_that_gives_signs_after_its_limit_is_left_to_its_commit(stand_in: Callable[..., Supervisor]) -> None:
    """It gathers what it will save: events and the heartbeat say that it works."""
    hasty = Settings(**{**QUICK.__dict__, "overtime_seconds": 0.2, "silent_seconds": 0.5, "hang_floor_seconds": 60})
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
    watching = stand_in("", limits={"time_seconds": 1000.0})
    watching._read_plan()
    watching._asked, watching._silent = "time", 1e6
    for late, expected in ((-1.0, False), (299.0, False), (301.0, True)):
        watching.settings = Settings()
        watching._spent_before = 1000.0 + late
        assert watching._is_overdue() == expected


def test_folders_that_are_renamed_this_moment_are_being_written(
    stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = stand_in("", Settings(), limits={"time_seconds": 1.0})
    watching._read_plan()
    watching._asked, watching._silent, watching._spent_before = "time", 1e6, 500.0
    assert watching._is_overdue()

    def renamed(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "glob", renamed)
    assert not watching._is_overdue()


def test_before_the_first_checkpoint_the_rehearsed_save_is_reserved(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("", limits={"time_seconds": 100.0})
    watching._read_plan()
    watching._understand({"event": "rehearsal", "part": "step", "seconds": 500.0})
    assert watching._limit() == ""
    watching._understand({"event": "rehearsal", "part": "save", "seconds": 60.0})
    assert watching._limit() == "time"


def test_a_deadline_that_is_none_does_not_end_the_supervisor(stand_in: Callable[..., Supervisor]) -> None:
    watching = stand_in("finish()", limits={"deadline": "tomorrow"})
    assert watching.run() == 0


def test_without_a_log_its_subcommands_run_too(stand_in: Callable[..., Supervisor]) -> None:
    """A full disk takes no log, and the meter must be stopped."""
    watching = stand_in("")
    shutil.rmtree(watching.run_dir / "logs")
    (watching.run_dir / "logs").write_text("no folder")
    begun = watching._stoker("--version", "settle.log")
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
        one._stoker = lambda *words, **_: asked.append(words)  # type: ignore[assignment, return-value, func-returns-value]
        if len(made) < clumsy:
            one._warn = lambda: next(looks)  # type: ignore[method-assign, assignment, return-value]
        made.append(one)
        return one

    assert supervisor.supervised(watching.run_dir, make) == code
    assert (len(made), len(begun), status(watching)["state"]) == (3, 1, state)
    assert asked == [("settle", "settle.log")]
    assert begun[0].wait(10) == (0 if state == "done" else -signal.SIGKILL)
