"""The part of C6 between two ranks: the connections that gloo opens are cut, as they meet and as they train.

Gloo connects by itself, so `connect` is redirected to our proxy by a preloaded library (`redirect.c`), in a process of
its own (`meeting.py`), which trains as often as asked.
"""

import contextlib
import itertools
import json
import os
import random
import secrets
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign import Campaign
from network import DOWN, KINDS, UP, Cut, Proxy, proxied

HERE = Path(__file__).parent
PATIENCE = {"give_up_seconds": 5.0, "hang_seconds": 15.0}
"""Of the ranks with each other and of the supervisor; 30 and 15 minutes elsewhere."""
ENDLESS = {"give_up_seconds": 3600.0, "hang_seconds": 3600.0}
LIMIT_SECONDS = 90.0
"""For a training that is cut once, on a busy machine: about 6 without a cut, the supervisor's patience, and again."""
START_SECONDS = 300.0
MEETING_BYTES = 200
TRAINING_BYTES = 900_000
"""Fewer than pass in the direction of the first weights; which rank connects, and so which one that is, differs."""
LATE = 8
FULL = 40
"""From so many cases on, the control that takes a minute is run, too."""
NAMED = {"lost", "hang"}
_MARK = "RANKS_OF"
"""In the environment of every process that is started here, and of those that these fork."""


def possible() -> bool:
    return sys.platform == "linux" and shutil.which("cc") is not None


@dataclass
class Ranks:
    """The process that trains, behind a proxy."""

    process: "subprocess.Popen[str]"
    proxy: Proxy
    targets: Path

    def train(self, cut: Cut | None, limit_seconds: float = LIMIT_SECONDS, **words: Any) -> dict[str, Any] | None:
        """Train once; None where that takes longer than it may."""
        assert self.process.stdin
        assert self.process.stdout
        self.proxy.arm([cut] if cut else [])
        asked = {"port": self.proxy.port, "targets": str(self.targets), **PATIENCE, **words}
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], limit_seconds)[0]:
            return None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        found["cut"] = bool(self.proxy.fired)
        self.proxy.heal()
        return found


def cut(campaign: Campaign, until: int) -> None:
    """Train and cut once each time, then the controls."""
    with _started(campaign.folder / "ranks") as ranks:
        wanted = ranks.train(None, START_SECONDS)
        assert wanted is not None
        assert wanted["code"] == 0, wanted["log"]
        longest = 0.0
        for number in itertools.count():
            if campaign.done >= until:
                break
            one = _cut(campaign.random("ranks", number))
            found = ranks.train(one)
            for wrong in _wrong(found, wanted):
                campaign.fail([number, "ranks", vars(one)], wrong)
            if found is None:
                return  # nobody is left to ask
            if found["cut"]:  # it may be over before the cut is due
                longest = max(longest, found["seconds"])
                _count(campaign, one, found)
        campaign.measured["ranks"] = {
            "seconds_without_a_cut": round(wanted["seconds"], 1),
            "longest_seconds": round(longest, 1),
            "allowed_seconds": LIMIT_SECONDS,
        }
        _controls(campaign, ranks, wanted)


def _cut(chance: random.Random) -> Cut:
    most = chance.choice((MEETING_BYTES, TRAINING_BYTES))
    return Cut(chance.choice(KINDS), chance.choice((UP, DOWN)), chance.randrange(most))


def _count(campaign: Campaign, one: Cut, found: dict[str, Any]) -> None:
    met = found["attempts"] > len(found["restarts"])
    when = "ranks: cut in training" if met else "ranks: cut before the first step"
    campaign.case(f"ranks {one.kind}", when, *(f"ranks: started again, {reason}" for reason in found["restarts"]))


def _wrong(found: dict[str, Any] | None, wanted: dict[str, Any]) -> list[str]:
    if found is None:
        return [f"hangs: not over after {LIMIT_SECONDS:.0f} s"]
    if found["code"]:
        return [f"ended with {found['code']} after {found['restarts']}, {found['errors']}: {found['log']}"]
    wrong = [f"{key} differ" for key in ("losses", "evals", "sha") if found[key] != wanted[key]]
    if found["went_back"]:
        wrong.append("went on from less than it had committed")
    if unnamed := set(found["restarts"]) - NAMED:
        wrong.append(f"started again without a name for it: {unnamed}")
    return wrong


def _controls(campaign: Campaign, ranks: Ranks, wanted: dict[str, Any]) -> None:
    """Checkpoints are thrown away before a restart; nobody looks at the clock (the last: the process is stuck then)."""
    for way in (UP, DOWN) * LATE:
        found = ranks.train(Cut("reset", way, TRAINING_BYTES), forgets=True)
        if found is None or found["cut"]:
            break
    wrong = _wrong(found, wanted)
    campaign.control("ranks that start over", caught=bool(wrong), what="; ".join(wrong))
    if campaign.n >= FULL:
        found = ranks.train(Cut("stall", UP, TRAINING_BYTES // 2), **ENDLESS)
        wrong = _wrong(found, wanted)
        campaign.control("ranks without a timeout", caught=bool(wrong), what="; ".join(wrong))


@contextlib.contextmanager
def _started(folder: Path) -> Iterator[Ranks]:
    library, targets, mark = folder / "redirect.so", folder / "targets", secrets.token_hex(8)
    targets.mkdir(parents=True)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(HERE / "redirect.c"), "-ldl"], check=True)
    settings = {"LD_PRELOAD": str(library), "STOKER_METADATA": "off", _MARK: mark}
    with (folder / "said.log").open("w") as log, proxied(lambda port: int((targets / str(port)).read_text())) as proxy:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "meeting.py"), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **settings},
        )
        try:
            yield Ranks(process, proxy, targets)
        finally:
            _end(mark)
            process.communicate()


def _end(mark: str) -> None:
    """Kill what was started here and what that forked: each training has a session of its own."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{_MARK}={mark}\0".encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
