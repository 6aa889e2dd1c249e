"""Hangs, with real child processes: what counts as a sign of life, and what does not."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from supervised_case import QUICK, noted, pushed

from stoker.supervise import processes, ranks
from stoker.supervise.limits import Clock
from stoker.supervise.settings import SupervisorSettings
from stoker.supervise.status import SupervisedRun
from stoker.supervise.supervisor import Supervisor

pytestmark = pytest.mark.skipif(os.name == "nt", reason="kills by signal")


def test_silence_is_counted_by_the_time_that_passed(tmp_path: Path) -> None:
    class Counted(ranks.RankWatch):
        passed = 0.0

        def see(self, pulses: list[dict[str, Any]], passed_seconds: float) -> None:
            self.passed += passed_seconds

    watching, counted, began = Supervisor(tmp_path, QUICK), Counted(30, 900), time.monotonic()
    watching._ranks.begin()
    for _ in range(10):
        watching._ranks._examine(counted)
    assert counted.passed <= time.monotonic() - began


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
    hasty = SupervisorSettings(**{**QUICK.__dict__, "look_seconds": 0.0001})
    assert stand_in(body, hasty).run() == 0


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
def test_a_machine_that_slept_did_not_hang(stand_in: Callable[..., Supervisor], wall: float, own: float) -> None:
    clocks = Clocks()
    looks: list[float] = []

    def wait(seconds: float) -> None:
        looks.extend([seconds] * (watching.status.committed_step == 4))
        if len(looks) == 5:
            clocks.jump(wall, own)
        time.sleep(seconds)

    watching = stand_in("go(4)\ntime.sleep(1)\nfinish()", clock=Clock(clocks.time, wait, clocks.monotonic))
    assert watching.run() == 0
    assert clocks.wall == wall
    assert not noted(watching, "restart")


def test_a_clock_that_is_set_back_hides_no_hang(stand_in: Callable[..., Supervisor]) -> None:
    clocks = Clocks()

    def wait(seconds: float) -> None:
        clocks.jump(-3600.0 if watching.status.step == 4 else clocks.wall, 0.0)
        time.sleep(seconds)

    clock = Clock(clocks.time, wait, clocks.monotonic)
    watching = stand_in("if attempt == 1: go(4); time.sleep(20)\nfinish()", clock=clock)
    assert watching.run() == 0
    assert [one["reason"] for one in noted(watching, "restart")] == ["hang"]


def test_copies_are_no_sign_of_life(stand_in: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Their events stand in the same file as the trainer's, and a store that is away brings ever more of them."""

    def program(self: SupervisedRun) -> str:
        path, line = str(self.run_dir / "events.jsonl"), '{"event": "store", "copied": false}\n'
        return f"open({path!r}, 'a').write({line!r}); raise SystemExit(75)"

    pushed(monkeypatch, program)
    watching = stand_in("if attempt == 1: go(4); time.sleep(20)\nfinish()", store="/elsewhere")
    assert watching.run() == 0
    assert [one["reason"] for one in noted(watching, "restart")] == ["hang"]
