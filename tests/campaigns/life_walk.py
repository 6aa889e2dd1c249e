"""One walk of C15: a run, the user who wants it done, and the commands that lead there."""

import contextlib
import datetime
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import life
import life_oracle
import store_servers
from life import LAPTOP, NAME, Machine, Said, World
from life_oracle import Oracle, Reference

GO_ON_SECONDS = 180.0
DONE_SECONDS = 300.0
OFF_SECONDS = 60.0
IMPOSSIBLE = "impossible"
"""How an action ends that cannot happen in the walk's state; it does not count."""


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
    """Actions that happened, and how each ended."""
    told: list[str] = field(default_factory=list)
    changes: dict[str, object] = field(default_factory=dict)
    """On all machines, all the time."""
    seconds: float = 0.0
    _began: float = 0.0

    def __post_init__(self) -> None:
        self.oracle = Oracle(self.world, self.reference)
        self.address = ""

    def play(self, actions: "Iterable[tuple[str, Callable[[Walk], str]]]", enough: int) -> list[str]:
        """A start, actions until enough have happened, then the end that every run must reach; what was wrong."""
        self._began = time.monotonic()
        self._set_out()
        with self.oracle.watching(), contextlib.suppress(WrongAlready):
            self._act("begin", Walk.begin)
            for name, action in actions:
                if len(self.done) == enough:
                    break
                if (outcome := self._act(name, action)) != IMPOSSIBLE:
                    self.done.append(f"{name}: {outcome}")
            self._act("end", Walk.end)
        self.seconds = time.monotonic() - self._began
        return self.oracle.wrong

    @property
    def story(self) -> str:
        """What happened, for whoever looks into a failure."""
        return "\n".join(self.told)[-3000:]

    def say(self, what: object) -> None:
        self.told.append(f"{time.monotonic() - self._began:5.1f} {what}")

    def _set_out(self) -> None:
        world = self.world
        world.clear(self.pristine)
        for machine in world.machines.values():
            machine.change(**self.changes)
        if self.store:
            there = world.stores[self.store]
            world.mine.env["AWS_ENDPOINT_URL"] = f"http://{there.address}:{there.port}"
            self.address = f"s3://{store_servers.BUCKET}/{self.chance.randrange(10**9)}"
        world.writes(self.address)

    def _act(self, name: str, action: "Callable[[Walk], str]") -> str:
        self.say(f"-- {name} (at {self.at}, committed {self.oracle.highest})")
        outcome = action(self)
        self.say(outcome)
        self.oracle.look()
        self.go()
        return outcome

    def go(self) -> None:
        """No further where something is wrong: the rest would only follow from it."""
        if self.oracle.wrong:
            raise WrongAlready

    # ---- small things

    @property
    def here(self) -> Machine:
        return self.world.machines[self.at]

    @property
    def trains(self) -> bool:
        return any(path == f"{self.here.inside}/{NAME}" for _, path in self.here.trainers())

    @property
    def is_done(self) -> bool:
        return bool(life.weights(self.here.run))

    def stoker(self, *words: str, env: dict[str, str] | None = None) -> Said:
        said = self.oracle.heard(self.world.mine.says(*words, env=env))
        self.say(said)
        self.go()
        return said

    def train(self, place: str, *more: str, yes: bool = True, floor: int = 0) -> str:
        """The user's command; `goes on`, `done`, or `refused CODE`, and anything else is wrong."""
        machine, before, since = self.world.machines[place], self.oracle.state(), now()
        least = max(life.newest(machine.run), floor)
        where = ["--detach"] if place == LAPTOP else ["--on", place, *(["--yes"] if yes else [])]
        said = self.stoker("train", f"{NAME}.yaml", *more, *where)
        if said.code:
            self.oracle.unchanged(before, said)
            self.go()
            return f"refused {' '.join(said.codes[:1])}"
        if place != self.at:
            self.say(f"now at {place}")
        self.at = place
        outcome = self.goes_on(machine, since)
        self.oracle.look(least)
        self.go()
        return outcome

    def goes_on(self, machine: Machine, since: str, folder: str = NAME) -> str:
        """New steps, or the end, or a reason in the events; silence is wrong."""
        run, found = machine.runs / folder, [""]

        def seen() -> bool:
            every = life.events(run)
            new = [one for one in every if one["at"] >= since]
            errors = [one["error"]["code"] for one in new if one["event"] == "error"]
            ended = life.record(run, "supervisor.json").get("state")
            last = [one.get("status") for one in every if one["event"] in ("attempt", "end")][-1:]
            is_done = ended == "done" or last == ["done"]  # its supervisor may have died before it could say so
            if sum(one["event"] == "step" for one in new) >= 2:
                found[0] = "goes on"
            elif is_done and not machine.programs("stoker.supervise.supervisor"):
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

    def begin(self) -> str:
        """The first start, and until there is a checkpoint to lose."""
        outcome = self.start()
        if not life.until(lambda: life.newest(self.here.run), GO_ON_SECONDS):
            self.oracle.say("no checkpoint")
        return outcome

    def start(self) -> str:
        """The same command, whatever the state is."""
        return self.train(self.at)

    def stop(self) -> str:
        """Stopped with all steps committed."""
        if not self.trains:
            return IMPOSSIBLE
        said = self.stoker("stop", NAME)
        if said.code:
            return f"refused {' '.join(said.codes[:1])}"
        if not life.until(lambda: not self.trains, GO_ON_SECONDS):
            self.oracle.say("does not stop")
            self.go()
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

    # ---- the end

    def end(self) -> str:
        """All is healed: the same command, to the same weights."""
        self.world.pace(life.FAST)
        for machine in self.world.machines.values():
            if machine.box and not machine.box.alive:
                machine.box.power_on()
        outcome = "goes on" if self.trains else self.train(self.at)
        # STK411: it goes on by itself, or its supervisor is about to end; that it is done is waited for.
        if outcome.startswith("refused") and outcome != "refused STK411" and not self.trains:
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
        if not life.until(lambda: not self.here.is_on, OFF_SECONDS):
            self.oracle.boxes()
            return "done, on"
        return "done, off"


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
