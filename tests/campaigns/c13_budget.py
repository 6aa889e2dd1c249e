"""C13: budgets. Runs with random limits on a box-like tree: off within 60 s of the limit, a verified copy elsewhere.

Trainer, supervisor, copies, verification and the command that switches off are real; a second here stands for some of
a user's. Launches took random times before; a third of the runs loses its trainer once. What stands elsewhere when the
command runs is found by comparing bytes. Controls: no guard; a verification that always says yes.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import forked_trainer
import tiny_run
from campaign import Campaign
from settle_case import Box, Gone

from stoker.rundir import checkpoints, events, files
from stoker.settle import meter
from stoker.settle.meter import Settling
from stoker.store import verification
from stoker.supervise.settings import SupervisorSettings
from stoker.supervise.supervisor import Supervisor

SCALE = 6.0
"""Seconds of a user in one of this campaign."""
BAR_SECONDS = 60.0
SHORTEST, LONGEST = 90.0, 240.0
"""Limits, in a user's seconds."""
BEYOND = 90.0
"""How far past its limit a run without a guard is let go."""


@dataclass(frozen=True)
class Case:
    """One run, in seconds of this machine."""

    name: str
    word: str
    limit: float
    launch: float
    every: int
    dies_at: float | None

    @staticmethod
    def drawn(name: str, chance: Random) -> "Case":
        return Case(
            name=name,
            word=chance.choice(("time", "money")),
            limit=chance.uniform(SHORTEST, LONGEST) / SCALE,
            launch=chance.uniform(0, 30) / SCALE,
            every=chance.choice((5, 20, 100, 1000)),
            dies_at=chance.uniform(0.3, 0.7) if chance.random() < 1 / 3 else None,
        )


def run(campaign: Campaign) -> None:
    """As many runs as asked, and the controls."""
    base = tiny_run.make_base_model(campaign.folder / "base")
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "SETTLE_TEST_KEY": "none"}
    starts = _start_seconds()
    campaign.measured |= {"scale": SCALE, "settle_start_seconds": round(starts, 2), "bar_seconds": BAR_SECONDS}
    off: list[float] = []
    for number in range(campaign.n):
        case = Case.drawn(f"run{number}", campaign.random(number))
        ended = _settled(campaign, base, case, starts)
        off.append(ended.off_seconds)
        if problem := ended.problem():
            campaign.fail(number, f"{problem} {case} {ended}")
        campaign.case(case.word, "died once" if case.dies_at else "undisturbed")
        campaign.measured["off_seconds_after_limit"] = _figures(off)
        if campaign.hopeless:
            return
    _control_without_guard(campaign, base, starts)
    _control_without_verification(campaign, base, starts)


def _figures(off: list[float]) -> dict[str, float]:
    return {name: round(of(off), 1) for name, of in (("min", min), ("median", statistics.median), ("max", max))}


def _start_seconds() -> float:
    """From the supervisor's end to the first line of `stoker settle`: a program of its own, which runs here inside."""
    started = time.monotonic()
    words = [sys.executable, "-c", "import stoker.cli.internal_commands"]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    return time.monotonic() - started


@dataclass
class Ended:
    """How a machine went off."""

    code: int
    reason: str
    settled: str
    off_seconds: float
    """After the limit, in a user's seconds; negative: before."""
    witnessed: list[str]
    committed: str
    """What is wrong with the newest checkpoint, or that steps behind it are lost."""

    def problem(self) -> str:
        """What a user would complain about."""
        if abs(self.off_seconds) > BAR_SECONDS:
            return f"off {self.off_seconds:.0f} s after the limit"
        if self.settled != "gone" or self.code != 75 or self.reason not in ("time", "money"):
            return f"ended with {self.code} {self.reason} {self.settled}"
        if self.witnessed != ["whole"]:
            return "switched off without a whole copy"
        return self.committed


def _settled(campaign: Campaign, base: Path, case: Case, starts: float, **guards: Any) -> Ended:
    """Train under a limit, then settle, as on a box."""
    box = Box(campaign.folder / case.name)
    run_dir = _make(box, base, case, store=guards.get("store", True))
    launched = time.time() - case.launch
    kind = guards.get("supervisor", Supervisor)
    os.environ["STOKER_LAUNCHED"] = _iso(launched)
    watching = kind(run_dir.path, SupervisorSettings(look_seconds=0.1, beat_seconds=0.5), forked_trainer.starter())
    if case.dies_at:
        _kill_later(run_dir, case.dies_at * (case.limit - case.launch))
    code = watching.run()
    time.sleep(starts)
    off_at: list[float] = []

    def act(words: list[str], variables: dict[str, str]) -> str:
        off_at.append(time.time())
        return box.act(run_dir, words, variables)

    patience = meter.SettleSettings(look_seconds=0.2, last_seconds=60 / SCALE, first_wait_seconds=0.5, gone_seconds=5.0)
    try:
        settled = Settling(run_dir, box.platform, box.news.append, patience, act=act).run()
    except Gone:
        settled = "gone"
    spent = (off_at[0] if off_at else time.time()) - launched
    ended = Ended(
        code=code,
        reason=watching.status.asked,
        settled=settled,
        off_seconds=(spent - case.limit) * SCALE,
        witnessed=box.witnessed,
        committed=_lost(run_dir),
    )
    shutil.rmtree(box.folder)
    return ended


def _make(box: Box, base: Path, case: Case, *, store: bool) -> tiny_run.RunDir:
    text = f"""
model: {base}
data: {{train: rows.jsonl, length: 32}}
tune: {{method: full}}
train: {{batch: 4, steps: 1000000, epochs: 1000000, learning_rate: 1e-3, schedule: constant, warmup: 0}}
save: {{every: {case.every} steps, keep: 2, store: {box.shared / "store"}}}
where: {{micro: 4, arrange: rows}}
native: {{trainer: {{report_to: none}}}}
"""
    run_dir = tiny_run.make_run(box.disk / "runs", text, tiny_run.random_rows(61, seed=5, longest=32))
    run_dir.logs.mkdir(exist_ok=True)
    plan = files.read_json(run_dir.plan_file)
    plan |= {"after": "stop", "limits": {f"{case.word}_seconds": case.limit}, "store": plan["store"] if store else None}
    files.write_json(run_dir.plan_file, plan)
    return run_dir


def _kill_later(run_dir: tiny_run.RunDir, seconds: float) -> None:
    """A SIGKILL for whoever trains then."""

    def kill() -> None:
        try:
            os.kill(files.read_json(run_dir.process_file)["pid"], signal.SIGKILL)
        except (OSError, ValueError):
            return

    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()


def _lost(run_dir: tiny_run.RunDir) -> str:
    """Whether the newest checkpoint is whole and of the last step that was done."""
    there = checkpoints.committed(run_dir.checkpoints)
    if not there:
        return "no checkpoint"
    # After a death steps are done again: the last line counts.
    last = [event["step"] for event in events.read(run_dir.events_file) if event["event"] == "step"][-1:] or [0]
    wrong = checkpoints.verify(there[-1])
    return wrong or ("" if [there[-1].step] == last else f"steps {there[-1].step + 1} to {last[0]} are lost")


def _iso(seconds: float) -> str:
    from datetime import datetime, timezone

    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()


# ---- controls


class Unguarded(Supervisor):
    """Counts nothing; somebody ends it long after its limit."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self._limits.reached = self._reached  # type: ignore[method-assign]

    def _reached(self) -> str:
        limits = json.loads((self.run_dir / "plan.json").read_text())["limits"]
        late = self._run.spent.seconds > next(iter(limits.values())) + BEYOND / SCALE
        return "time" if late else ""


def _control_without_guard(campaign: Campaign, base: Path, starts: float) -> None:
    case = Case("unguarded", "time", SHORTEST / SCALE, 0.0, 20, None)
    ended = _settled(campaign, base, case, starts, supervisor=Unguarded)
    campaign.control("no guard", caught="after the limit" in ended.problem(), what=f"{ended.off_seconds:.0f} s")


def _control_without_verification(campaign: Campaign, base: Path, starts: float) -> None:
    kept = verification.wrong_copy
    verification.wrong_copy = lambda *_: ""
    case = Case("unverified", "time", SHORTEST / SCALE, 0.0, 20, None)
    try:
        ended = _settled(campaign, base, case, starts, store=False)
    finally:
        verification.wrong_copy = kept
    campaign.control(
        "verification that always says yes", caught="without a whole copy" in ended.problem(), what=str(ended.witnessed)
    )
