"""C15: seeded random walks of one run over a laptop, two boxes and a store, by the commands of a user.

Actions are those of life: start, stop, kill, reboot, move, clone, rename, edit, append, upgrade, lose the line, fill a
disk, fork, a store that fails. After each, exactly one of these must hold: the same training goes on, with the losses
of a run that nobody disturbed; it goes on at a lower tier that is said; or the command is refused with a known reason
and nothing has changed. Never two trainings of the run at once, never from step 0 in silence, never a box left on
without a word why. At the end of a walk all is healed, and the same command must lead to the same final weights.
Stand-ins, as no other exists here: another version is another digest of the own code; an old image is a Python that
answers as one; an OOM-kill is SIGKILL with the cgroup's counter raised; SIGSTOP lasts seconds, leases last seconds.
Controls take away one safeguard each, on all machines, in the programs of the walk only.
"""

import contextlib
import datetime
import random
import shutil
import signal
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import life
import life_oracle
import quick_python
import store_servers
from campaign import Campaign
from life import BOXES, LAPTOP, NAME, Machine, Said, World
from life_oracle import Oracle, Reference

from stoker.facts import own_code

ACTIONS = 12
"""Of a walk, at least."""
FULL = 20
"""From so many walks on there are two worlds side by side, and all controls are tried."""
GO_ON_SECONDS = 40.0
DONE_SECONDS = 90.0
COUNTING = threading.Lock()


def possible() -> str:
    """Why it cannot run here; empty where it can."""
    return life.boxes.available() or (
        "" if store_servers.has_rclone() and shutil.which("cc") else "needs rclone and cc"
    )


def run(campaign: Campaign) -> None:
    """As many walks as asked, then the controls."""
    assert not possible(), possible()
    count = 2 if campaign.n >= FULL else 1
    with contextlib.ExitStack() as stack:
        quick = stack.enter_context(quick_python.serving(campaign.folder))
        worlds = [stack.enter_context(life.world(campaign.folder / f"w{number}", quick)) for number in range(count)]
        reference = _reference(worlds[0], campaign.folder / "pristine")
        campaign.measured |= {"final": reference.final, "steps": len(reference.losses)}
        with ThreadPoolExecutor(count) as pool:
            for one in [
                pool.submit(_all_of, campaign, each, reference, number, count) for number, each in enumerate(worlds)
            ]:
                one.result()
        for name, control in list(CONTROLS.items())[: None if campaign.n >= FULL else 1]:
            wrong = control(worlds[0], reference)
            campaign.control(name, caught=bool(wrong), what="; ".join(wrong))


def _reference(world: World, pristine: Path) -> Reference:
    """An undisturbed run; its directory as it was when the data was prepared is kept aside for all walks."""
    world.clear(None)
    world.pace(life.FAST)
    world.writes("")
    mine = world.mine
    assert mine.says("prepare", f"{NAME}.yaml").code == 0
    shutil.copytree(mine.runs / NAME, pristine)
    said = mine.says("train", f"{NAME}.yaml", "--detach")
    assert said.code == 0, said
    assert life_oracle.wait_for_end(mine.runs / NAME, DONE_SECONDS) == "done", said
    return Reference(life_oracle.hex_losses(mine.runs / NAME), life.weights(mine.runs / NAME))


def _all_of(campaign: Campaign, world: World, reference: Reference, first: int, every: int) -> None:
    for number in range(first, campaign.n, every):
        if campaign.hopeless:
            break
        walk = Walk(world, campaign.random(number), reference, campaign.folder / "pristine")
        walk.play()
        with COUNTING:
            _count(campaign, number, walk)


def _count(campaign: Campaign, number: int, walk: "Walk") -> None:
    for wrong in walk.oracle.wrong:
        campaign.fail([number, walk.store or "no store"], f"{wrong}\n{walk.story}")
    seconds = campaign.measured.setdefault("seconds_of_walks", [])
    seconds.append(round(walk.seconds, 1))
    campaign.measured |= {"median_seconds": statistics.median(seconds), "longest_seconds": max(seconds)}
    campaign.counts.update(walk.done)
    campaign.counts.update(f"tier {tier}" for tier in walk.oracle.tiers)
    campaign.case("walks", f"store: {walk.store or 'none'}")


# ---- one walk


class WrongAlready(Exception):  # ends a walk
    """Something was wrong."""


@dataclass
class Walk:
    """One run and the user who wants it done, whatever happens."""

    world: World
    chance: random.Random
    reference: Reference
    pristine: Path
    store: str = ""
    at: str = LAPTOP
    """Where the run was trained last."""
    done: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    seconds: float = 0.0
    _began: float = 0.0

    def __post_init__(self) -> None:
        self.oracle = Oracle(self.world, self.reference, own_code.digest())
        self.address = ""

    def play(self, actions: "list[str] | None" = None) -> list[str]:
        """All actions, then the end that every run must reach; what was wrong."""
        self._began = time.monotonic()
        self._set_out()
        with self.oracle.watching(), contextlib.suppress(WrongAlready):
            for name in ["begin", *(actions or self._drawn()), "end"]:
                self._act(name, ALL[name])
        self.seconds = time.monotonic() - self._began
        return self.oracle.wrong

    @property
    def story(self) -> str:
        """What happened, for whoever looks into a failure."""
        return "\n".join(self.told)[-3000:]

    def say(self, what: object) -> None:
        self.told.append(f"{time.monotonic() - self._began:5.1f} {what}")

    def _drawn(self) -> list[str]:
        return [self.chance.choice(WEIGHTED) for _ in range(self.chance.randint(ACTIONS, ACTIONS + 3))]

    def _set_out(self) -> None:
        world = self.world
        world.clear(self.pristine)
        self.at = self.chance.choice([LAPTOP, *BOXES])
        self.store = self.chance.choice(["", "", *world.stores])
        if self.store:
            there = world.stores[self.store]
            world.mine.env["AWS_ENDPOINT_URL"] = f"http://{there.address}:{there.port}"
            self.address = f"s3://{store_servers.BUCKET}/{self.chance.randrange(10**9)}"
        world.writes(self.address)

    def _act(self, name: str, action: "Callable[[Walk], str]") -> None:
        self.say(f"-- {name} (at {self.at}, committed {self.oracle.highest})")
        outcome = action(self)
        self.say(outcome)
        self.oracle.look()
        self._go()
        self.done.append(f"{name}: {outcome}")

    def _go(self) -> None:
        """No further where something is wrong: the rest would only follow from it."""
        if self.oracle.wrong:
            raise WrongAlready

    # ---- small things

    @property
    def here(self) -> Machine:
        return self.world.machines[self.at]

    @property
    def trains(self) -> bool:
        return any(folder == NAME for _, folder in self.here.trainers())

    @property
    def is_done(self) -> bool:
        return bool(life.weights(self.here.run))

    def stoker(self, *words: str, env: dict[str, str] | None = None) -> Said:
        said = self.oracle.heard(self.world.mine.says(*words, env=env))
        self.say(said)
        self._go()
        return said

    def train(self, place: str, *more: str, name: str = NAME, yes: bool = True, floor: int | None = None) -> str:
        """The user's command; `goes on`, `done`, or `refused CODE`, and anything else is wrong."""
        machine, before, since = self.world.machines[place], self.oracle.state(), _now()
        least = max(life.newest(machine.run), floor or 0)
        where = ["--detach"] if place == LAPTOP else ["--on", place, *(["--yes"] if yes else [])]
        said = self.stoker("train", f"{name}.yaml", *more, *where)
        if said.code:
            self.oracle.unchanged(before, said)
            self._go()
            return f"refused {' '.join(said.codes[:1])}"
        if place != self.at:
            self.say(f"now at {place}")
        self.at = place
        outcome = self.goes_on(machine, since)
        self.oracle.look(least)
        self._go()
        return outcome

    def goes_on(self, machine: Machine, since: str, folder: str = NAME) -> str:
        """New steps, or the end, or a reason in the events; silence is wrong."""
        run, found = machine.runs / folder, [""]

        def seen() -> bool:
            new = [one for one in life.events(run) if one["at"] >= since]
            errors = [one["error"]["code"] for one in new if one["event"] == "error"]
            ended = life.record(run, "supervisor.json").get("state")
            if sum(one["event"] == "step" for one in new) >= 2:
                found[0] = "goes on"
            elif ended == "done" and not machine.programs("stoker.supervise.supervisor"):
                found[0] = "done"
            elif ended == "failed" and errors:
                found[0] = f"refused {errors[-1]}"
            return bool(found[0])

        if not life.until(seen, GO_ON_SECONDS):
            state = life.record(run, "supervisor.json")
            last = life.events(run)[-1:]
            self.oracle.say(f"neither goes on nor says why on {machine.name}: {state} {last}")
        return found[0]

    def idle(self) -> None:
        """The user stops it, so that it can be moved or changed."""
        if self.trains:
            self.stop()

    # ---- actions: the user's own

    def start(self) -> str:
        """The same command, whatever the state is."""
        return self.train(self.at)

    def stop(self) -> str:
        """Stopped with all steps committed."""
        if not self.trains:
            return "idle"
        said = self.stoker("stop", NAME)
        if said.code:
            return f"refused {' '.join(said.codes[:1])}"
        if not life.until(lambda: not self.trains, GO_ON_SECONDS):
            self.oracle.say("does not stop")
            self._go()
        steps = [one["step"] for one in life.events(self.here.run) if one["event"] == "step"]
        if steps and life.newest(self.here.run) != steps[-1]:
            self.oracle.say(f"stopped at step {steps[-1]}, committed {life.newest(self.here.run)}")
        life_oracle.wait_for_end(self.here.run, GO_ON_SECONDS)
        self.oracle.boxes()
        return "stopped"

    def move(self) -> str:
        """To another machine: refused while it trains, then with all it has."""
        target = self.chance.choice([one for one in self.world.machines if one != self.at])
        if self.trains and self.chance.random() < 0.5:
            outcome = self.train(target)
            if not outcome.startswith("refused"):
                return f"moved while it trains: {outcome}"
        self.idle()
        return "moved, " + self.train(target, floor=life.newest(self.here.run))

    # ---- actions: processes end

    def kill_trainer(self) -> str:
        """The supervisor starts it again."""
        return self._hit(["stoker.engine.train"], signal.SIGKILL)

    def kill_supervisor(self) -> str:
        """The trainer goes on alone; the same command finds it."""
        return self._hit(["stoker.supervise.supervisor"], signal.SIGKILL, again=True)

    def kill_both(self) -> str:
        return self._hit(["stoker.supervise.supervisor", "stoker.engine.train"], signal.SIGKILL, again=True)

    def _hit(self, modules: list[str], number: int, *, again: bool = False) -> str:
        if not self.trains:
            self.train(self.at)
        since, floor = _now(), life.newest(self.here.run)
        for module in modules:
            self.here.signal(module, number)
        if again:
            time.sleep(0.2)
            return self.train(self.at, floor=floor)
        outcome = self.goes_on(self.here, since)
        self.oracle.look(floor)
        return outcome

    # ---- the end

    def end(self) -> str:
        """All is healed: the same command, to the same weights."""
        self.world.pace(life.FAST)
        for machine in self.world.machines.values():
            if machine.box and not machine.box.alive:
                machine.box.power_on()
        outcome = self.train(self.at)
        if outcome.startswith("refused"):
            self.oracle.say(f"refused when all was well: {outcome}")
            return outcome
        state = life_oracle.wait_for_end(self.here.run, DONE_SECONDS)
        if state != "done":
            self.oracle.say(f"{state} when all was well")
            return state
        self.oracle.look()
        self.oracle.final(self.here.run)
        if self.here.box:
            return self._home()
        return "done"

    def _home(self) -> str:
        """The result is brought home, and the box switches itself off."""
        said = self.stoker("pull", NAME)
        if said.code == 0:
            self.oracle.final(self.world.mine.runs / NAME)
        if not life.until(lambda: not self.here.is_on, 15.0):
            self.oracle.boxes()
            return "done, on"
        return "done, off"


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")


ALL: dict[str, Callable[[Walk], str]] = {
    "start": Walk.start,
    "stop": Walk.stop,
    "move": Walk.move,
    "kill trainer": Walk.kill_trainer,
    "kill supervisor": Walk.kill_supervisor,
    "kill both": Walk.kill_both,
}
WEIGHTED = list(ALL)
ALL |= {"begin": Walk.start, "end": Walk.end}
CONTROLS: dict[str, Callable[[World, Reference], list[str]]] = {}
