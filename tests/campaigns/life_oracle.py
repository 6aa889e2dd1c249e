"""What C15 judges by: losses, commits, processes and files; Stoker's own words only where something must be said."""

import contextlib
import json
import re
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import life
from life import NAME, Machine, Said, World

from stoker.messages import en

_KEPT = ("manifest.json", "run.yaml", "data/report.json")
"""Files of a run that no refused command may change, whether it trains or not."""
_OWN_WORDS = {"stoker_version"}
ENDED = ("done", "stopped", "failed")


@dataclass(frozen=True)
class Reference:
    """A run that nobody disturbed: each step's loss in hex, the final weights, the code that its commits name."""

    losses: dict[int, str]
    orders: dict[int, str]
    """Checksums of the sequences of each step."""
    final: str
    code: str


def undisturbed(run: Path) -> Reference:
    """Of a run that is done."""
    steps = {one["step"]: one for one in life.events(run) if one["event"] == "step"}
    losses = {step: float(one["loss"]).hex() for step, one in steps.items()}
    orders = {step: str(one.get("order")) for step, one in steps.items()}
    return Reference(losses, orders, life.weights(run), code_of(life.commits(run)[life.STEPS]))


def code_of(commit: dict[str, Any]) -> str:
    """The digest of the code that decided a checkpoint's numbers, as its COMMIT.json names it."""
    return str(commit.get("fingerprint", {}).get("code"))


@dataclass
class Oracle:
    """Looks after every action; what is wrong is in `wrong`."""

    world: World
    reference: Reference
    wrong: list[str] = field(default_factory=list)
    tiers: list[str] = field(default_factory=list)
    is_lowered: bool = False
    """Whether it was said that later steps are computed in another way: then only their sequences are the same."""
    highest: int = 0
    """The newest commit of the run that was ever seen anywhere."""
    _before: int = 0
    """The same at the last look."""
    _seen: set[tuple[str, str]] = field(default_factory=set)
    _codes: dict[int, set[str]] = field(default_factory=dict)
    names: set[str] = field(default_factory=lambda: {NAME})
    """Names of the run's folder, on whichever machine."""
    copies: set[str] = field(default_factory=set)
    """Further folders that may not be trained beside it."""
    _over: threading.Event = field(default_factory=threading.Event)

    # ---- all the time

    @contextlib.contextmanager
    def watching(self) -> Any:
        """Looks all the time whether two trainings of the run are alive."""
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()

    def _watch(self) -> None:
        last: list[tuple[str, str]] = []
        while not self._over.wait(0.25):
            with contextlib.suppress(OSError):
                now = [one for one in self.world.trainers() if self._is_run(*one)]
                twice = [one for one in now if now.count(one) > 1 or len(set(now)) > 1]
                if twice and sorted(twice) == sorted(last):
                    self.say(f"two trainings at once: {sorted(twice)}")
                last = twice
            self._note_commits()

    def _is_run(self, name: str, path: str) -> bool:
        runs = self.world.machines[name].inside
        return path in self.copies or any(path == f"{runs}/{one}" for one in self.names)

    def _note_commits(self) -> None:
        for machine in self.world.machines.values():
            for folder in tuple(self.names):
                for step, commit in life.commits(machine.runs / folder).items():
                    self._codes.setdefault(step, set()).add(code_of(commit))
                    self.highest = max(self.highest, step)

    def say(self, what: str) -> None:
        """This is wrong."""
        if what not in self.wrong:
            self.wrong.append(what)

    # ---- commands

    def heard(self, said: Said) -> Said:
        """A command: no surprise, no traceback, no escapes, and a refusal has a known code."""
        text = said.output + said.errors
        if said.code == 99:
            self.say(f"hangs: {said}")
        elif said.code not in (0, 1, 75) or "Traceback" in text:
            self.say(f"a surprise: {said}")
        elif said.code == 1 and not said.codes:
            self.say(f"refused without a reason: {said}")
        if unknown := [code for code in said.codes if code not in en.ENGLISH]:
            self.say(f"unknown codes {unknown}: {said}")
        if "\x1b" in text:
            self.say(f"escapes: {said.words}")
        return said

    def state(self) -> dict[str, Any]:
        """What a refused command must leave as it is."""
        self._note_commits()
        found: dict[str, Any] = {"place": life.record(self.world.mine.runs / NAME, "place.json").get("on")}
        for machine in self.world.machines.values():
            idle = not machine.trainers() and not machine.programs("stoker.supervise.supervisor")
            for name in _KEPT:
                found[f"{machine.name} {name}"] = _content(machine.run / name)
            if idle:
                found[f"{machine.name} commits"] = sorted(life.commits(machine.run))
        return found

    def unchanged(self, before: dict[str, Any], said: Said) -> None:
        """A refused command changed nothing of a run that was trained."""
        after = self.state()
        if not self.highest:
            return
        for name in before.keys() & after.keys():
            if name.endswith("commits"):
                same = set(before[name]) <= set(after[name])  # what was brought along stays
            else:
                same = before[name] in (after[name], None)
            if not same:
                self.say(f"refused, and {name} changed: {said}: {_short(before[name])} -> {_short(after[name])}")

    # ---- what went on

    def look(self, floor: int = 0) -> None:
        """Every new event of every copy of the run: losses, tiers, steps gone back to."""
        for machine in self.world.machines.values():
            for folder in tuple(self.names):
                self._look(machine, machine.runs / folder, floor)
        self._note_commits()
        self._before = self.highest

    def _look(self, machine: Machine, run: Path, floor: int) -> None:
        for event in life.events(run):
            if event["event"] == "step":
                self._compare(machine, event)
            elif event["event"] == "attempt" and (key := (event["at"], str(event["pid"]))) not in self._seen:
                self._seen.add(key)
                self._judge(machine, event, floor)
            elif event["event"] == "error" and event["error"]["code"] not in en.ENGLISH:
                self.say(f"an error without a known code: {event}")

    def _compare(self, machine: Machine, event: dict[str, Any]) -> None:
        step = event["step"]
        if self.reference.orders.get(step) != str(event.get("order")):
            self.say(f"step {step} on {machine.name}: other sequences than those of an undisturbed run")
        if self.reference.losses.get(step) != float(event["loss"]).hex() and not self.is_lowered:
            self.say(f"step {step} on {machine.name}: another loss than that of an undisturbed run")

    def _judge(self, machine: Machine, attempt: dict[str, Any], floor: int) -> None:
        step, tier, changed = attempt["resumed_step"], attempt["tier"], attempt["changed"]
        self.tiers.append(tier)
        if step == 0 and (committed := max(floor, self._before)):
            self.say(f"step 0 in silence on {machine.name}: step {committed} was committed")
        elif step < floor:
            self.say(f"went back on {machine.name} to step {step}: step {floor} was committed")
        own, seen = machine.changes.get("code", self.reference.code), self._codes.get(step, set())
        if step and own not in seen and tier == "EXACT":
            self.say(f"EXACT said of another code: step {step} by {seen}, now {own}")
        if step and seen == {own} and tier != "EXACT" and all(one.startswith("code") for one in changed):
            self.say(f"{tier} said of the same training: {changed}")
        self.is_lowered |= tier != "EXACT" and any(not one.startswith("code") for one in changed)
        if tier != "EXACT" and not changed:
            self.say(f"{tier} without saying why")

    def final(self, run: Path) -> None:
        """The run is done there: its weights are those of an undisturbed run."""
        if not life.weights(run) or (life.weights(run) != self.reference.final and not self.is_lowered):
            self.say(f"other final weights: {life.weights(run) or 'none'}")

    def boxes(self) -> None:
        """No box is on without a word why: a run that ended there is being settled, or a record says why not."""
        for machine in self.world.machines.values():
            if machine.box is None or not machine.box.alive:
                continue
            for run in machine.runs.iterdir():
                if life.record(run, "supervisor.json").get("state") not in ENDED:
                    continue
                told = life.until(lambda run=run, machine=machine: _told(machine, run), 30.0, 0.2)
                if not told and machine.box.alive:
                    self.say(f"{machine.name} is left on without a word: {life.record(run, 'supervisor.json')}")


def _told(machine: Machine, run: Path) -> bool:
    settled = life.record(run, "settled.json")
    return bool(settled.get("reason") or settled.get("state")) or bool(machine.programs("settle"))


def _content(path: Path) -> Any:
    try:
        text = path.read_text()
    except OSError:
        return None
    if path.suffix == ".json":
        with contextlib.suppress(ValueError):
            return {key: value for key, value in json.loads(text).items() if key not in _OWN_WORDS}
    return text


def _short(value: Any) -> str:
    return re.sub(r"\s+", " ", str(value))[-300:]


def wait_for_end(run: Path, seconds: float) -> str:
    """The state of the run's supervisor once it has ended, or what it is after so long."""
    until = time.monotonic() + seconds
    while (state := str(life.record(run, "supervisor.json").get("state"))) not in ENDED and time.monotonic() < until:
        time.sleep(0.05)
    return state
