"""One launch from a laptop to a fresh AutoDL-like box and back, by the commands of a user; several tests look at it.

The laptop is killed the moment the command returns, the line is cut until the training is over, then another session of
the laptop brings the result home. Secrets of the laptop's environment are canaries.
"""

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boxes
from laptop import Laptop, laptop

from stoker.rundir import events

CANARIES = {
    "HF_TOKEN": "hf_canaryTokenOfTheHub00000001",
    "AWS_ACCESS_KEY_ID": "CANARYACCESS00000002",
    "AWS_SECRET_ACCESS_KEY": "canary-of-the-store-0000000003",
    "STOKER_WEBHOOK": "http://127.0.0.1:9/canary-of-the-hook-00000004",
}
HEAVY = ("torchao", "bitsandbytes", "deepspeed", "trl", "datasets", "pandas", "sklearn", "matplotlib", "scipy")
"""Packages that a start does not need: without them it is over sooner."""
BASE = "root/autodl-tmp/stoker"
RUN = "tiny"


@dataclass
class Launch:
    """What was seen."""

    box: boxes.Box
    laptop: Laptop
    launch: "subprocess.CompletedProcess[str]"
    seconds: dict[str, float] = field(default_factory=dict)
    listeners: set[str] = field(default_factory=set)
    """Addresses anything listened on, at any look."""
    command_lines: set[str] = field(default_factory=set)
    watched: dict[str, Any] = field(default_factory=dict)
    pull: "subprocess.CompletedProcess[str] | None" = None

    @property
    def run(self) -> Path:
        """The run directory on the box."""
        return self.box.root / BASE / "runs" / RUN

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in events.read(self.run / "events.jsonl") if event["event"] == kind]

    def look(self) -> None:
        """What there is to see on the box right now."""
        self.listeners |= set(self.box.listeners())
        self.command_lines |= set(self.box.processes())


def wait(true: Any, what: str, seconds: float = 120.0, every: float = 0.1) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, what
        time.sleep(every)


@contextlib.contextmanager
def launched(folder: Path) -> Iterator[Launch]:
    with laptop(folder) as mine, boxes.autodl(folder, without=HEAVY) as box:
        mine.env |= CANARIES
        mine.writes(RUN, steps=40, every="5 steps")
        mine.stoker("prepare", f"{RUN}.yaml")
        mine.knows(box, "autodl-1")
        began = time.monotonic()
        seen = Launch(box, mine, mine.stoker("train", f"{RUN}.yaml", "--on", "autodl-1", "--yes"))
        seen.seconds["launch"] = time.monotonic() - began
        mine.kill()
        box.cut()
        _until_done(seen)
        box.mend()
        mine.switch_on()
        seen.watched = json.loads(mine.stoker("watch", RUN, "--once", "--json").stdout)
        began = time.monotonic()
        seen.pull = mine.stoker("pull", RUN)
        with contextlib.suppress(AssertionError):  # a test says so
            wait(lambda: not box.alive, "", 60)
        seen.seconds["off"] = time.monotonic() - began
        yield seen


def _until_done(seen: Launch) -> None:
    def done() -> bool:
        seen.look()
        with contextlib.suppress(OSError, ValueError):
            return json.loads((seen.run / "supervisor.json").read_text())["state"] == "done"  # type: ignore[no-any-return]
        return False

    wait(done, f"no end\n{seen.launch.stdout}\n{seen.launch.stderr}", every=0.5)
