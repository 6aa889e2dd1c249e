"""A trainer started before its plan: it is taken where the plan starts the same, and never outlives a launch."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from supervised_case import noted, status

from stoker import env
from stoker.supervise import early_trainer, processes, starting
from stoker.supervise.early_trainer import EarlyTrainer
from stoker.supervise.supervisor import Supervisor

WAITS = """
import os, sys
from pathlib import Path
from stoker.supervise import early_trainer
early = bool(os.environ.get("STOKER_EARLY"))  # "" where the supervisor was, and this one is not
print("imported", flush=True)
(Path(sys.argv[-1]) / f"imported-{os.getpid()}").touch()
early_trainer.await_order()
os.environ.setdefault("STOKER_ATTEMPT", "0")
assert not os.environ["STOKER_EARLY"]
"""

Make = Callable[..., Supervisor]


@pytest.fixture
def run(stand_in: Make) -> Supervisor:
    watching = stand_in("say('mine', early=early, pid=os.getpid())\nfinish()")
    script = watching.run_dir.parent / "trainer.py"
    script.write_text(WAITS + script.read_text(encoding="utf-8"), encoding="utf-8")
    return watching


@contextmanager
def supervisor(watching: Supervisor, **told: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """A real supervisor, started early, with a trainer that has imported all it needs."""
    command = starting.command("stoker.supervise.supervisor", watching.run_dir)
    log = watching.run_dir / "logs" / "supervisor.log"
    plan = {"argv": [str(watching.run_dir.parent / "trainer.py")], "env": {}}
    with starting.start(command, log, early_trainer.ENVIRONMENT, detached=True, is_told=True) as program:
        early_trainer.tell(program, json.dumps({**plan, **told}))
        until(lambda: bool(waiting(watching)))
        assert not (watching.run_dir / "supervisor.json").exists()
        yield program


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def waiting(watching: Supervisor) -> list[int]:
    """Trainers that have imported, alive or not."""
    return [int(path.name.split("-")[1]) for path in watching.run_dir.glob("imported-*")]


def is_gone(pid: int) -> bool:
    return not processes.words_of(pid)


def test_a_plan_that_starts_the_same_takes_it(run: Supervisor) -> None:
    with supervisor(run) as program:
        (pid,) = waiting(run)
        early_trainer.go_on(program)
        assert program.wait(30) == 0
    (mine,) = noted(run, "mine")
    assert (mine["early"], mine["pid"]) == (True, pid)
    assert (status(run)["state"], status(run)["attempt"]) == ("done", 1)
    assert sorted(path.name for path in (run.run_dir / "logs").iterdir()) == ["supervisor.log", "train-1-rank0.log"]
    assert "imported" in processes.log_file(run.run_dir, 1).read_text(encoding="utf-8")


@pytest.mark.parametrize("other", ["argv", "env"])
def test_a_plan_that_starts_something_else_does_not(run: Supervisor, other: str) -> None:
    script = str(run.run_dir.parent / "trainer.py")
    told = {"argv": {"argv": [script, "other"]}, "env": {"env": {"OMP_NUM_THREADS": "7"}}}
    with supervisor(run, **told[other]) as program:
        (pid,) = waiting(run)
        early_trainer.go_on(program)
        assert program.wait(30) == 0
    (mine,) = noted(run, "mine")
    assert not mine["early"]
    assert mine["pid"] != pid
    assert is_gone(pid)
    assert status(run)["attempt"] == 1


def test_a_plan_of_several_machines_does_not(run: Supervisor) -> None:
    plan = json.loads((run.run_dir / "plan.json").read_text(encoding="utf-8"))
    early = EarlyTrainer(run.run_dir, plan["argv"], plan["env"])
    until(lambda: bool(waiting(run)))
    assert early.take(run.run_dir, {**plan, "nodes": ["one", "other"]}, 1) is None
    assert is_gone(*waiting(run))
    assert not list((run.run_dir / "logs").iterdir())


def test_a_trainer_that_was_killed_while_it_waited_is_replaced(run: Supervisor) -> None:
    with supervisor(run) as program:
        (pid,) = waiting(run)
        os.kill(pid, signal.SIGKILL)
        early_trainer.go_on(program)
        assert program.wait(30) == 0
    assert [one["early"] for one in noted(run, "mine")] == [False]


def test_a_later_attempt_starts_one_of_its_own(stand_in: Make) -> None:
    watching = stand_in("say('mine', early=early)\nif step < 4:\n    go(4)\n    kill()\nfinish()")
    script = watching.run_dir.parent / "trainer.py"
    script.write_text(WAITS + script.read_text(encoding="utf-8"), encoding="utf-8")
    with supervisor(watching) as program:
        early_trainer.go_on(program)
        assert program.wait(30) == 0
    assert [one["early"] for one in noted(watching, "mine")] == [True, False]
    assert status(watching)["attempt"] == 2


def test_a_launch_that_is_refused_leaves_nothing(run: Supervisor) -> None:
    with supervisor(run) as program:
        (pid,) = waiting(run)
        early_trainer.hang_up(program)
        assert program.wait(30) == 75
    assert is_gone(pid)
    assert not (run.run_dir / "supervisor.json").exists()
    assert [path.name for path in (run.run_dir / "logs").iterdir()] == ["supervisor.log"]
    assert processes.newest_attempt(run.run_dir) == 0


def test_a_supervisor_that_is_killed_while_it_waits_leaves_no_trainer(run: Supervisor) -> None:
    with supervisor(run) as program:
        (pid,) = waiting(run)
        program.kill()
        program.wait()
    until(lambda: is_gone(pid))
    assert not noted(run, "mine")


def test_a_launcher_that_dies_before_it_says_what_leaves_nothing(run: Supervisor) -> None:
    command = starting.command("stoker.supervise.supervisor", run.run_dir)
    with starting.start(command, None, early_trainer.ENVIRONMENT, detached=True, is_told=True) as program:
        early_trainer.hang_up(program)
        assert program.wait(30) == 75
    assert not waiting(run)


def test_programs_that_are_not_early_wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(env.EARLY.name, raising=False)
    monkeypatch.setattr(sys, "stdin", None)
    assert early_trainer.await_plan() is None
    early_trainer.await_order()
