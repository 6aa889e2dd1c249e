"""A supervised run whose trainer is a stand-in: a small script, no torch."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.rundir import events
from stoker.supervise.limits import Clock
from stoker.supervise.settings import SupervisorSettings
from stoker.supervise.status import SupervisedRun
from stoker.supervise.supervisor import Supervisor

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

QUICK = SupervisorSettings(
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


def make(
    folder: Path, body: str, settings: SupervisorSettings = QUICK, clock: Clock | None = None, **plan: Any
) -> Supervisor:
    """A supervisor of a run whose trainer is `STAND_IN` and what follows it."""
    run_dir = folder / "run"
    (run_dir / "logs").mkdir(parents=True, exist_ok=True)
    script = folder / "trainer.py"
    script.write_text(STAND_IN + body, encoding="utf-8")
    content = {"argv": [str(script)], "env": {}, "strategy": "single", **plan}
    (run_dir / "plan.json").write_text(json.dumps(content), encoding="utf-8")
    return Supervisor(run_dir, settings, clock=clock)


def noted(watching: Supervisor, kind: str) -> list[dict[str, Any]]:
    return [event for event in events.read(watching.run_dir / "events.jsonl") if event["event"] == kind]


def status(watching: Supervisor) -> dict[str, Any]:
    return dict(json.loads((watching.run_dir / "supervisor.json").read_text(encoding="utf-8")))


def status_is(run_dir: Path, state: str, restarts: int) -> bool:
    try:
        seen = json.loads((run_dir / "supervisor.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(seen["state"] == state and seen["restarts"] == restarts)


def pushed(monkeypatch: pytest.MonkeyPatch, program: Callable[[SupervisedRun], str]) -> list[float]:
    """What `stoker push` does, as a program's text by the state of things; says when each was begun."""
    begun: list[float] = []

    def push(self: SupervisedRun, command: str, log: str, *words: str) -> "subprocess.Popen[bytes]":
        begun.append(time.monotonic())
        return subprocess.Popen([sys.executable, "-S", "-c", program(self)])

    monkeypatch.setattr(SupervisedRun, "start_stoker", push)
    return begun
