"""C12: runs from a laptop to an AutoDL-like box and home again, with faults of line, laptop, box, disk and store.

Laptop and box have networks, processes and disks of their own; all is done by the commands of a user, who says `train
--on` again when it failed or the box was rebooted, adds a box that was replaced anew, and brings the result home. Each
case has one to three faults at random moments: while it is sent and set up, in a training step, at its end. Judged: the
final weights are, bit for bit, those of a run nobody disturbed; the box switches itself off, once, by the verb that can
be undone, not before all of the result stands elsewhere (where there is a store it is brought home after the box is
off), and does not stay on. Controls: a Stoker that stops the meter without a verified copy, that resumes without the
optimizer's state, that leaves the meter running.
"""

import contextlib
import hashlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "places")]

import boxes  # noqa: E402
import store_servers  # noqa: E402
from campaign import Campaign  # noqa: E402
from laptop import Laptop, laptop  # noqa: E402
from launched import HEAVY  # noqa: E402

import stoker  # noqa: E402

NAME, HOST = "tiny", "autodl-1"
STEPS, EVERY = 60, 10
BASE = "/root/autodl-tmp/stoker"
SHARED = "/root/autodl-fs/store"
FAULTS = ("line", "laptop", "reboot", "replace", "disk", "store")
STORES = ("s3", "s3", "shared", "none")
"""An S3-compatible server, a network disk of the place, or nothing but the laptop."""
FULL = 20
"""From so many runs on all controls are tried."""
COUNTING = threading.Lock()
LIMIT_SECONDS = 600.0
"""For a case on a busy machine; most of it is imports of torch."""
OFF_SECONDS = 200.0
"""From the moment that the result stands elsewhere until the box is off."""
LOOK_SECONDS = 0.05
LAUNCH_SECONDS = 6.0
"""What a launch takes about; faults while it is sent come within."""


@dataclass
class Fault:
    """One fault: what, when, and for how long."""

    kind: str
    moment: str
    """sending, training or ending."""
    at: float
    """Seconds after the beginning of that, or a step."""
    lasts: float
    began: float | None = None
    over: bool = False

    def __str__(self) -> str:
        return f"{self.kind} while {self.moment} at {self.at:.1f} for {self.lasts:.1f} s"


@dataclass
class World:
    """What all cases of a campaign share."""

    campaign: Campaign
    box: boxes.Box
    mine: Laptop
    bucket: "Bucket"
    expected: str = ""

    @property
    def run(self) -> Path:
        """The run directory on the box."""
        return self.box.root / BASE.lstrip("/") / "runs" / NAME

    @property
    def home(self) -> Path:
        """The run directory on the laptop."""
        return self.mine.runs / NAME

    @property
    def pristine(self) -> Path:
        """It as it was when the data was prepared."""
        return self.mine.folder / "pristine"


class Bucket:
    """A real S3-compatible server that the box can reach, and that can be down."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address, self.port = folder, address, store_servers.free_port()
        (folder / store_servers.BUCKET).mkdir(parents=True)
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def settings(self) -> dict[str, str]:
        there = store_servers.s3_settings(self.port)
        return {**there, "AWS_ENDPOINT_URL": f"http://{self.address}:{self.port}"}

    def up(self) -> None:
        if self._server is None:
            keys = f"{store_servers.KEY},{store_servers.SECRET}"
            program = str(store_servers.executable("rclone", "rclone"))
            words = [
                "setpriv",
                "--pdeathsig",
                "KILL",
                program,
                "serve",
                "s3",
                "--auth-key",
                keys,
                "--addr",
                f"{self.address}:{self.port}",
            ]
            words += ["--config", os.devnull, "--vfs-cache-mode", "off", "--dir-cache-time", "1s", str(self.folder)]
            with (self.folder.parent / "rclone.log").open("ab") as log:
                self._server = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def down(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None

    def empty(self) -> None:
        shutil.rmtree(self.folder / store_servers.BUCKET)
        (self.folder / store_servers.BUCKET).mkdir()


def possible() -> str:
    """Why it cannot run here; empty where it can."""
    return boxes.available() or ("" if store_servers.has_rclone() else "needs rclone")


def run(campaign: Campaign) -> None:
    """As many runs as asked, two at a time where there are many; then controls: a Stoker that lacks a safeguard."""
    assert not possible(), possible()
    count = 2 if campaign.n >= FULL else 1
    with contextlib.ExitStack() as stack:
        worlds = [stack.enter_context(_world(campaign, f"world-{number}")) for number in range(count)]
        quiet = Case(worlds[0], random.Random(0), [], "none")
        assert not quiet.play(), f"{quiet.wrong}\n{quiet.story}"
        campaign.measured |= {"expected": quiet.final, "undisturbed_seconds": round(quiet.seconds, 1)}
        with ThreadPoolExecutor(count) as pool:
            for one in [pool.submit(_all_of, world, number, count) for number, world in enumerate(worlds)]:
                one.result()
    for name, control in list(CONTROLS.items())[: None if campaign.n >= FULL else 1]:
        wrong = control(campaign)
        campaign.control(name, caught=bool(wrong), what="; ".join(wrong))


def _all_of(world: "World", first: int, every: int) -> None:
    """The cases of one world."""
    campaign = world.campaign
    world.expected = str(campaign.measured["expected"])
    for number in range(first, campaign.n, every):
        if campaign.hopeless:
            break
        case = drawn(world, number)
        case.play()
        with COUNTING:
            for what in case.wrong:
                campaign.fail([number, case.store, [str(fault) for fault in case.faults]], f"{what}\n{case.story}")
            _count(campaign, case)


def drawn(world: World, number: int) -> "Case":
    """The case of this number."""
    chance = world.campaign.random(number)
    kinds = [FAULTS[number % len(FAULTS)], *chance.sample(FAULTS, chance.choice((0, 0, 1, 2)))]
    store = chance.choice(STORES)
    if "store" in kinds:
        store = "s3"
    faults = [_fault(kind, chance) for kind in dict.fromkeys(kinds)]
    return Case(world, chance, faults, store, fresh=number % 5 == 0)


def _fault(kind: str, chance: random.Random) -> Fault:
    moments = {"store": ("training", "ending"), "laptop": ("sending", "sending", "ending")}
    moment = chance.choice(moments.get(kind, ("sending", "training", "training", "ending")))
    at = {
        "sending": chance.uniform(0, LAUNCH_SECONDS),
        "training": chance.randrange(1, STEPS),
        "ending": chance.uniform(0, 4),
    }
    return Fault(kind, moment, at[moment], chance.uniform(1, 6))


def _count(campaign: Campaign, case: "Case") -> None:
    hit = [f"{fault.kind} while {fault.moment}" for fault in case.faults if fault.began is not None]
    seconds = campaign.measured.setdefault("seconds_of_runs", [])
    seconds.append(round(case.seconds, 1))
    campaign.case(*hit, f"store: {case.store}", "finished" if not case.wrong else "wrong", *case.marks)
    campaign.measured |= {
        "median_seconds": statistics.median(seconds),
        "longest_seconds": max(seconds),
        "faults": campaign.measured.get("faults", 0) + len(hit),
        "boxes_left_running": campaign.counts["left running"],
        "stopped_before_a_verified_copy": campaign.counts["stopped too early"],
        "irreversible_verbs": campaign.counts["irreversible"],
    }


# ---- one run


@dataclass
class Case:
    """One run with its faults, and the user who wants it done."""

    world: World
    chance: random.Random
    faults: list[Fault]
    store: str
    fresh: bool = False
    """Whether the box is a new one, with nothing of ours on it."""
    wrong: list[str] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    final: str = ""
    seconds: float = 0.0
    is_started: bool = False
    is_known: bool = True
    is_home: bool = False
    elsewhere_at: float | None = None
    _command: "subprocess.Popen[str] | None" = None
    _words: tuple[str, ...] = ()
    _began: float = 0.0
    _sent_at: float | None = None
    _ended_at: float | None = None
    _calls: int = 0

    def play(self) -> list[str]:
        """Until it is done and the box is off; what was wrong."""
        self._set_the_stage()
        try:
            while not self._is_over():
                self._look()
                for fault in self.faults:
                    self._strike(fault)
                self._act()
                time.sleep(LOOK_SECONDS)
        finally:
            self.seconds = time.monotonic() - self._began
            self._clear_the_stage()
        return self.wrong

    @property
    def story(self) -> str:
        """What happened, for whoever looks into a failure."""
        return "\n".join(self.said)[-1500:]

    def _say(self, what: str) -> None:
        self.said.append(f"{time.monotonic() - self._began:6.1f} {what}")

    def _set_the_stage(self) -> None:
        world = self.world
        self._began = time.monotonic()
        if world.home.exists():
            shutil.rmtree(world.home)
        shutil.copytree(world.pristine, world.home)
        world.bucket.empty()
        world.bucket.up()
        shutil.rmtree(world.box.root / SHARED.lstrip("/"), ignore_errors=True)
        stores = {"s3": f"s3://{store_servers.BUCKET}/c12", "shared": SHARED, "none": ""}
        world.mine.writes(NAME, steps=STEPS, every=f"{EVERY} steps", store=stores[self.store])
        if not world.box.alive:
            world.box.power_on()
        if self.fresh:
            world.box.replace()
            self._forget()
            self._meet()
        shutil.rmtree(world.run, ignore_errors=True)
        self._calls = len(world.box.calls)

    def _clear_the_stage(self) -> None:
        self._give_up_command()
        for fault in self.faults:
            if fault.began is not None and not fault.over:
                self._undo(fault)

    # ---- what is seen

    def _look(self) -> None:
        if self._ended_at is None and self._state("events.jsonl", '"event": "end"', '"status": "done"'):
            self._ended_at = time.monotonic()
            self._say("done")
        if self.elsewhere_at is None and self._ended_at is not None and self._stands_elsewhere():
            self.elsewhere_at = time.monotonic()
            self._say("stands elsewhere")

    def _state(self, name: str, *words: str) -> bool:
        """Whether a file of the run there has a line with all of these words."""
        try:
            lines = (self.world.run / name).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return False
        return any(all(word in line for word in words) for line in lines)

    def _step(self) -> int:
        try:
            lines = (self.world.run / "events.jsonl").read_bytes().splitlines()
        except OSError:
            return 0
        for line in reversed(lines):
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if event["event"] == "step":
                    return int(event["step"])
        return 0

    def _stands_elsewhere(self) -> bool:
        """Whether a copy of the finished model is complete, by its files; not whether anybody verified it."""
        if self.store == "none":
            return self.is_home
        root = {
            "s3": self.world.bucket.folder / store_servers.BUCKET / "c12",
            "shared": self.world.box.root / SHARED.lstrip("/"),
        }
        return any(_sha(path.parent) == self._there() for path in root[self.store].rglob("model.safetensors"))

    def _there(self) -> str:
        return _sha(self.world.run / "artifacts/final")

    def _supervisor(self) -> str:
        try:
            return str(json.loads((self.world.run / "supervisor.json").read_text())["state"])
        except (OSError, ValueError, KeyError):
            return ""

    # ---- what goes wrong

    def _strike(self, fault: Fault) -> None:
        if fault.over:
            return
        now = time.monotonic()
        if fault.began is None:
            if self._is_due(fault):
                fault.began = now
                self._say(f"{fault.kind}: begins")
                self._do(fault)
        elif now - fault.began > fault.lasts:
            fault.over = True
            self._say(f"{fault.kind}: over")
            self._undo(fault)

    def _is_due(self, fault: Fault) -> bool:
        if not self.world.box.alive:
            return False
        if fault.moment == "training":
            return self._ended_at is None and self._step() >= fault.at
        since = self._sent_at if fault.moment == "sending" else self._ended_at
        return since is not None and time.monotonic() - since >= fault.at

    def _do(self, fault: Fault) -> None:
        world = self.world
        if fault.kind == "line":
            world.box.cut()
        elif fault.kind == "laptop":
            self._give_up_command()
            world.mine.kill()
        elif fault.kind == "reboot":
            self.is_started = False
            world.box.reboot()
        elif fault.kind == "replace":
            self.is_started = self.is_known = False
            self._ended_at = self.elsewhere_at = None
            world.box.replace()
        elif fault.kind == "disk":
            world.box.fill("/root/autodl-tmp")
        elif fault.kind == "store":
            world.bucket.down()

    def _undo(self, fault: Fault) -> None:
        world = self.world
        if fault.kind == "line":
            world.box.mend()
        elif fault.kind == "laptop":
            world.mine.switch_on()
        elif fault.kind == "disk":
            world.box.unfill("/root/autodl-tmp")
        elif fault.kind == "store":
            world.bucket.up()

    def _is_down(self, *kinds: str) -> bool:
        return any(fault.kind in kinds and fault.began is not None and not fault.over for fault in self.faults)

    # ---- what the user does

    def _act(self) -> None:
        """One command at a time; again, when it failed and there is reason to hope."""
        if self._command is not None:
            if self._command.poll() is None:
                return
            self._read_command()
        box = self.world.box
        if self._is_down("line", "laptop", "disk") or not box.alive:
            return
        if not self.is_known:
            self._forget()
            self._meet()
        elif not self.is_started:
            self._sent_at = self._sent_at or time.monotonic()
            self._start("train", f"{NAME}.yaml", "--on", HOST, "--yes")
        elif self._supervisor() in ("failed", "stopped"):
            self._say(f"the supervisor says {self._supervisor()}")
            self.is_started = False
        elif self.store == "none" and self._ended_at is not None and not self.is_home:
            self._start("pull", NAME)

    def _start(self, *words: str) -> None:
        self._say(f"stoker {' '.join(words)}")
        self._words, self._command = words, self.world.mine.start(*words)

    def _read_command(self) -> None:
        assert self._command is not None
        output, errors = self._command.communicate()
        code, self._command = self._command.returncode, None
        self._say(f"exit {code}" + (f" {_end_of(output, errors)}" if code else ""))
        if code == 2:
            self.wrong.append(f"a surprise: {_end_of(output, errors)}")
        if self._words[0] == "train":
            self.is_started = code == 0 and self.is_known  # what began on a box that was replaced meanwhile is gone
        elif code == 0:
            self.is_home = True
        if code:
            time.sleep(0.5)

    def _give_up_command(self) -> None:
        if self._command is not None:
            self._command.kill()
            self._command.communicate()
            self._command = None

    def _forget(self) -> None:
        self.world.mine.stoker("hosts", "remove", HOST, check=False)

    def _meet(self) -> None:
        self.world.mine.knows(self.world.box, HOST)
        self.is_known = True

    # ---- how it ends

    def _is_over(self) -> bool:
        """Whether the box is off, or has had its time."""
        now = time.monotonic()
        if not self.world.box.alive:
            self._judge()
            return True
        if self.elsewhere_at is not None and now - self.elsewhere_at > OFF_SECONDS:
            self._wrong("left running", f"the box is on {OFF_SECONDS:.0f} s after its result stood elsewhere")
        elif now - self._began > LIMIT_SECONDS:
            self._wrong("unfinished", f"not done after {LIMIT_SECONDS:.0f} s; {self._last_words()}")
        return bool(self.wrong)

    def _judge(self) -> None:
        """The box is off: whatever is not elsewhere now was not there when it stopped."""
        calls = [words for _, words in self.world.box.calls[self._calls :]]
        self._say(f"off after {calls}")
        if calls != ["shutdown"]:
            kind = "irreversible" if set(calls) - {"shutdown"} else "not once"
            self._wrong(kind, f"asked of the meter: {calls}")
        self.world.bucket.up()
        for fault in self.faults:
            if fault.began is not None and not fault.over and fault.kind in ("laptop", "line"):
                fault.over = True
                self._undo(fault)
        self._give_up_command()
        if self.store != "none":
            self._bring_from_store()
        self.final = _sha(self.world.home / "artifacts/final")
        if not self.final:
            self._wrong("stopped too early", f"the box was off before its result stood elsewhere; {self._held()}")
        elif self.world.expected and self.final != self.world.expected:
            self._wrong("other bits", f"other bits: {self.final}, expected {self.world.expected}")

    def _bring_from_store(self) -> None:
        if self.store == "shared":  # a disk of the place: its files are read as another machine there would
            found = (self.world.box.root / SHARED.lstrip("/")).rglob("model.safetensors")
            final = [path.parent for path in found if "artifacts" in path.parts]
            if final:
                shutil.copytree(final[0], self.world.home / "artifacts/final", dirs_exist_ok=True)
            return
        address = f"s3://{store_servers.BUCKET}/c12"
        said = self.world.mine.stoker("pull", NAME, "--from", address, env=self.world.bucket.settings, check=False)
        self._say(f"pull --from store: exit {said.returncode}" + (f" {said.stderr[-300:]}" if said.returncode else ""))

    def _wrong(self, mark: str, what: str) -> None:
        self.marks.append(mark)
        self.wrong.append(what)

    def _held(self) -> str:
        """What either side has of the result, and what the box was told that the laptop has."""
        both = {"here": self.world.home, "there": self.world.run}
        found = {
            name: sorted(str(path.relative_to(run)) for path in (run / "artifacts").rglob("*"))
            for name, run in both.items()
        }
        record = self.world.run / "pulled.json"
        return f"{found}; {record.read_text(encoding='utf-8') if record.exists() else 'no record'}"

    def _last_words(self) -> str:
        logs = [self.world.run / name for name in ("supervisor.json", "settled.json", "logs/settle.log")]
        logs += [self.world.run / "logs/launch.log"]
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-400:]}" for path in logs if path.exists())


def _sha(folder: Path) -> str:
    """SHA-256 of the weights of a model folder; empty where there are none."""
    digest, found = hashlib.sha256(), False
    with contextlib.suppress(OSError):
        for path in sorted(folder.glob("*.safetensors")):
            if path.name != "state.safetensors":
                digest.update(path.read_bytes())
                found = True
    return digest.hexdigest() if found else ""


def _end_of(output: str, errors: str) -> str:
    return " | ".join([line for line in (output + errors).splitlines() if line.strip()][-4:])[-400:]


# ---- the stage


@contextlib.contextmanager
def _world(campaign: Campaign, name: str, source: Path | None = None) -> Iterator[World]:
    """A laptop with a prepared run, a box it knows, and a store; `source` is another Stoker than this tree's."""
    folder = campaign.folder / name
    folder.mkdir()
    small = {"/root/autodl-tmp": "250m"}
    with laptop(folder) as mine, boxes.autodl(folder, without=HEAVY, disks=small, system_size="200m") as box:
        if source:
            mine.env["PYTHONPATH"] = str(source)
        bucket = Bucket(folder / "bucket", box.gateway)
        bucket.up()
        try:
            mine.env |= bucket.settings
            mine.writes(NAME, steps=STEPS, every=f"{EVERY} steps")
            mine.stoker("prepare", f"{NAME}.yaml")
            world = World(campaign, box, mine, bucket)
            shutil.copytree(world.home, world.pristine)
            mine.knows(box, HOST)
            assert BASE in mine.stoker("hosts", "list", "--json").stdout
            yield world
        finally:
            bucket.down()


# ---- controls: a Stoker without one safeguard goes to the box, as ours does


def _without(campaign: Campaign, name: str, file: str, *changes: tuple[str, str]) -> Path:
    """A copy of the package with some words changed."""
    source = campaign.folder / name
    shutil.copytree(Path(stoker.__file__).parent, source / "stoker", ignore=shutil.ignore_patterns("__pycache__"))
    path = source / "stoker" / file
    text = path.read_text(encoding="utf-8")
    for before, after in changes:
        assert text.count(before) == 1, f"{file} has no {before!r}"
        text = text.replace(before, after)
    path.write_text(text, encoding="utf-8")
    return source


def _unverified(campaign: Campaign) -> list[str]:
    """The laptop is gone when the run ends, there is no store, and the meter is stopped all the same."""
    look = '        """Whether a copy is verified by now."""\n'
    source = _without(campaign, "unverified", "settle/verified_copy.py", (look, f"{look}        return True\n"))
    with _world(campaign, f"with-{source.name}", source) as world:
        gone = Fault("laptop", "training", 1, 3600)
        return Case(world, random.Random(1), [gone], "none").play()


def _forgetful(campaign: Campaign) -> list[str]:
    """After a reboot the optimizer starts anew."""
    source = _without(
        campaign,
        "forgetful",
        "engine/checkpoint.py",
        ('self.load_optimizer(index["optimizer"], tensors)', "pass"),
    )
    with _world(campaign, f"with-{source.name}", source) as world:
        world.expected = str(campaign.measured["expected"])
        return Case(world, random.Random(2), [Fault("reboot", "training", 3 * EVERY + 2, 1)], "none").play()


def _running_on(campaign: Campaign) -> list[str]:
    """The platform's command is never run."""
    source = _without(
        campaign, "running-on", "settle/meter.py",
        ("problem = self._act(own_interpreter(words), variables)", 'problem = ""'),
    )  # fmt: skip
    global OFF_SECONDS
    kept, OFF_SECONDS = OFF_SECONDS, 30.0
    try:
        with _world(campaign, f"with-{source.name}", source) as world:
            return Case(world, random.Random(3), [], "none").play()
    finally:
        OFF_SECONDS = kept


CONTROLS: dict[str, Callable[[Campaign], list[str]]] = {
    "the meter is stopped without a verified copy": _unverified,
    "resume without the optimizer's state": _forgetful,
    "the meter is left running": _running_on,
}
