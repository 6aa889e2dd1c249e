"""What may happen to a run in C15. Each action leaves a world in which the walk can go on, and says how it ended."""

import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import life
import life_oracle
from life import BOXES, CLONE, LAPTOP, NAME
from life_walk import GO_ON_SECONDS, IMPOSSIBLE, Walk, now

TRAINER, SUPERVISOR = "stoker.engine.train", "stoker.supervise.supervisor"
PASSING = 1.5
"""Seconds for which a disk is full, a line cut, a store down, a process stopped."""
WORDS = (
    ("steps: 240", "steps: 300"),
    ("learning_rate: 1e-3", "learning_rate: 1e-2"),
    ("batch: 4", "batch: 8"),
    ("schedule: constant", "schedule: linear"),
    ("objective: pretrain", "objective: pretrain, seed: 7"),
)


# ---- processes and machines end


def kill_trainer(walk: Walk) -> str:
    """The supervisor starts it again."""
    return _hit(walk, TRAINER)


def kill_supervisor(walk: Walk) -> str:
    """The trainer goes on alone; the same command finds it."""
    return _hit(walk, SUPERVISOR, again=True)


def kill_both(walk: Walk) -> str:
    return _hit(walk, SUPERVISOR, TRAINER, again=True)


def out_of_memory(walk: Walk) -> str:
    """A stand-in for the kernel's OOM-kill: the container's counter is raised, and SIGKILL."""
    if walk.here.box is None:
        return IMPOSSIBLE
    counter = walk.here.box.root / "sys/fs/cgroup/memory.events"
    before = int(counter.read_text().split()[-1]) if counter.exists() else 0
    counter.write_text(f"oom 0\noom_kill {before + 1}\n")
    return _hit(walk, TRAINER)


def freeze(walk: Walk) -> str:
    """The machine stands still for a while."""
    _trains(walk)
    modules = walk.chance.choice([(TRAINER,), (SUPERVISOR,), (TRAINER, SUPERVISOR)])
    for number in (signal.SIGSTOP, signal.SIGCONT):
        since = now()
        for module in modules:
            walk.here.signal(module, number)
        time.sleep(PASSING if number == signal.SIGSTOP else 0)
    return walk.goes_on(walk.here, since)


def reboot(walk: Walk) -> str:
    """Everything ends at once; the same command goes on."""
    floor = life.newest(walk.here.run)
    if walk.here.box:
        walk.here.box.reboot()
    else:
        walk.world.mine.kill()
        walk.world.mine.switch_on()
    return walk.train(walk.at, floor=floor)


def switch_off(walk: Walk) -> str:
    """The box is off: its own command is refused, another machine goes on from what the laptop has, or is refused."""
    if walk.here.box is None:
        return IMPOSSIBLE
    off, floor = walk.here.box, life.newest(walk.here.run)
    off.power_off()
    outcome = walk.train(walk.at)
    if not outcome.startswith("refused"):
        walk.oracle.say(f"started on a box that is off: {outcome}")
    if walk.chance.random() < 0.5:
        target = walk.chance.choice([one for one in walk.world.machines if one != walk.at])
        outcome = walk.train(target, floor=life.newest(walk.world.mine.runs / NAME))
        off.power_on()
        return f"elsewhere, {outcome}"
    off.power_on()
    return walk.train(walk.at, floor=floor)


def _hit(walk: Walk, *modules: str, again: bool = False) -> str:
    _trains(walk)
    since, floor = now(), life.newest(walk.here.run)
    for module in modules:
        walk.here.signal(module, signal.SIGKILL)
    if again:
        time.sleep(0.2)
        return walk.train(walk.at, floor=floor)
    outcome = walk.goes_on(walk.here, since)
    walk.oracle.look(floor)
    return outcome


def _trains(walk: Walk) -> None:
    if not walk.trains:
        walk.train(walk.at)


# ---- lines, disks, stores


def lose_line(walk: Walk) -> str:
    """Nobody can tell what the box does: it goes on, and no other machine may begin without a word of the user."""
    if walk.here.box is None:
        return IMPOSSIBLE
    _trains(walk)
    walk.here.box.cut()
    try:
        if walk.stoker("stop", NAME).code == 0:
            walk.oracle.say("stopped over a dead line")
        if not walk.store:  # with one, the lease of a box that cannot reach it runs out
            target = walk.chance.choice([one for one in BOXES if one != walk.at])
            outcome = walk.train(target, yes=False)
            if not outcome.startswith("refused"):
                walk.oracle.say(f"started beside a box that does not answer: {outcome}")
    finally:
        walk.here.box.mend()
    return walk.start()


def fill_disk(walk: Walk) -> str:
    """Of the box it is on, or of the one it is to move to."""
    if walk.here.box is not None and walk.chance.random() < 0.5:
        _trains(walk)
        walk.here.box.fill("/root/autodl-tmp")
        time.sleep(PASSING)
        walk.here.box.unfill("/root/autodl-tmp")
        return walk.start()
    target = walk.world.machines[walk.chance.choice([one for one in BOXES if one != walk.at])]
    walk.idle()
    floor = life.newest(walk.here.run)
    assert target.box is not None
    target.box.fill("/root/autodl-tmp")
    outcome = walk.train(target.name)
    target.box.unfill("/root/autodl-tmp")
    return f"full: {outcome}, {walk.train(walk.at, floor=floor)}"


def store_fault(walk: Walk) -> str:
    """The store answers 403, 500, late or not at all, while it trains and while it is started."""
    if not walk.store:
        return IMPOSSIBLE
    store = walk.world.stores[walk.store]
    store.set(mode := walk.chance.choice(["403", "500", "slow", "down"]))
    floor = life.newest(walk.here.run)
    try:
        if walk.chance.random() < 0.5:
            walk.here.signal(SUPERVISOR, signal.SIGKILL)
            walk.here.signal(TRAINER, signal.SIGKILL)
            walk.train(walk.at, floor=floor)
        else:
            time.sleep(PASSING)
    finally:
        store.set("ok")
    return f"{mode}: {walk.train(walk.at, floor=floor)}"


# ---- words, data, versions


def edit_run_file(walk: Walk) -> str:
    """Other words after training began: refused, or without effect."""
    before, after = walk.chance.choice(WORDS)
    walk.world.writes(walk.address, before=before, after=after)
    return _changed(walk)


def set_word(walk: Walk) -> str:
    return _changed(walk, "--set", walk.chance.choice(["train.seed=7", "train.learning_rate=1e-2", "train.batch=8"]))


def edit_inside(walk: Walk) -> str:
    """The copy in the run's own folder."""
    walk.idle()
    file = walk.here.run / "run.yaml"
    before, after = walk.chance.choice(WORDS)
    file.write_text(file.read_text().replace(before, after))
    return walk.start()


def edit_manifest(walk: Walk) -> str:
    """The record that training reads, edited by hand: refused, until it is as it was."""
    walk.idle()
    file = walk.here.run / "manifest.json"
    kept = file.read_text()
    file.write_text(kept.replace('"overrides": []', '"overrides": ["train.seed=7"]'))
    outcome = walk.start()
    if outcome.startswith("refused"):
        file.write_text(kept)
        return f"{outcome}, {walk.start()}"
    return outcome


def _changed(walk: Walk, *more: str) -> str:
    """A training with other words must not begin as the same run."""
    if walk.oracle.highest == 0:
        walk.world.writes(walk.address)
        return IMPOSSIBLE
    if walk.chance.random() < 0.7:
        walk.idle()
    outcome = walk.train(walk.at, *more)
    walk.world.writes(walk.address)
    return f"{outcome}, {walk.start()}" if outcome.startswith("refused") else outcome


def prepare_beside(walk: Walk) -> str:
    """A command beside a training is refused and changes nothing, also not after a kill."""
    if walk.at != LAPTOP:
        return IMPOSSIBLE
    _trains(walk)
    before = walk.oracle.state()
    said = walk.stoker("prepare", f"{NAME}.yaml", "--set", "train.seed=7")
    if said.code == 0 and walk.trains:
        walk.oracle.say(f"prepared beside a training: {said}")
    walk.oracle.unchanged(before, said)
    return kill_trainer(walk)


def append_data(walk: Walk) -> str:
    """The source grows, or is gone; what was prepared is gone on with."""
    walk.idle()
    grows = walk.chance.random() < 0.5
    if grows:
        walk.world.writes_data("more words\n")
    else:
        (walk.world.mine.folder / "words.txt").unlink()
    outcome = walk.start()
    if grows and outcome == "goes on" and walk.at == LAPTOP and not _said_sources(walk.here.run):
        walk.oracle.say("other sources, and no word of it")
    walk.world.writes_data()
    return outcome if outcome == "goes on" else f"{outcome}, {walk.start()}"


def _said_sources(run: Path) -> bool:
    said = [one for one in life.events(run) if one["event"] == "sources"]
    return bool(said and said[-1]["changed"])


def upgrade(walk: Walk) -> str:
    """A stand-in for another version of Stoker: other code that decides numbers, or another number of the version."""
    if walk.chance.random() < 0.5:
        walk.here.change(code=f"{walk.chance.randrange(16**16):016x}")
        return f"other code: {kill_both(walk)}"
    walk.here.change(version="9.9.9")
    return f"other version: {kill_both(walk)}"


# ---- folders


def clone(walk: Walk) -> str:
    """A copy of the run's folder is another run; with a store, only one of them may write there."""
    if walk.at != LAPTOP:
        return IMPOSSIBLE
    walk.idle() if walk.chance.random() < 0.5 else _trains(walk)
    target = walk.world.mine.folder / CLONE
    # As people do; files that come and go while it trains are passed over.
    subprocess.run(["cp", "-a", walk.world.mine.runs, target], check=False, stderr=subprocess.DEVNULL)
    if walk.store:
        walk.oracle.copies.add(str(target / NAME))
    since, runs = now(), {"STOKER_RUNS": str(target)}
    said = walk.stoker("train", f"{NAME}.yaml", "--detach", env=runs)
    outcome = "refused" if said.code else _other_goes_on(walk, target / NAME, since, 0)
    walk.stoker("stop", NAME, env=runs)
    life.until(lambda: not any(str(target) in path for _, path in walk.here.trainers()), GO_ON_SECONDS)
    walk.oracle.copies.clear()
    outcome = f"copy {outcome}, {walk.start()}"
    shutil.rmtree(target)
    return outcome


def rename(walk: Walk) -> str:
    """An idle run's folder and file get another name; it goes on, and comes back."""
    if walk.at != LAPTOP or life.newest(walk.here.run) == 0:
        return IMPOSSIBLE
    walk.idle()
    runs, floor, since = walk.world.mine.runs, life.newest(walk.here.run), now()
    (runs / NAME).rename(runs / "other")
    walk.oracle.names.add("other")
    walk.world.writes(walk.address, "other")
    said = walk.stoker("train", "other.yaml", "--detach")
    outcome = "refused" if said.code else _other_goes_on(walk, runs / "other", since, floor)
    walk.stoker("stop", "other")
    life_oracle.wait_for_end(runs / "other", GO_ON_SECONDS)
    walk.oracle.look(floor)
    walk.oracle.names.discard("other")
    if (runs / NAME).exists():
        walk.oracle.say("the old folder is there again")
        walk.go()
    (runs / "other").rename(runs / NAME)
    return f"{outcome}, {walk.start()}"


def fork(walk: Walk) -> str:
    """A new run from this one's newest checkpoint; this one stays as it is."""
    walk.idle()
    floor, since, before = life.newest(walk.here.run), now(), walk.oracle.state()
    made = walk.world.mine.runs / "fork"
    said = walk.stoker("train", NAME, "--fork", "fork", "--set", "train.steps=400", "--detach")
    walk.oracle.unchanged(before, said)
    outcome = "refused"
    if said.code == 0:
        outcome = _other_goes_on(walk, made, since, floor if walk.at == LAPTOP else 0, tier="FORK")
        walk.stoker("stop", "fork")
        life_oracle.wait_for_end(made, GO_ON_SECONDS)
    shutil.rmtree(made, ignore_errors=True)
    return f"{outcome}, {walk.start()}"


def _other_goes_on(walk: Walk, run: Path, since: str, floor: int, tier: str = "") -> str:
    """Another folder of the same training: it goes on from there, and its next loss is that of an undisturbed run."""

    def new() -> list[dict[str, object]]:
        return [one for one in life.events(run) if str(one["at"]) >= since]

    def steps() -> list[dict[str, object]]:
        return [one for one in new() if one["event"] == "step"]

    if not life.until(lambda: steps() or life.record(run, "supervisor.json").get("state") == "failed", GO_ON_SECONDS):
        walk.oracle.say(f"neither goes on nor says why: {run.name}")
    attempts = [one for one in new() if one["event"] == "attempt"]
    if attempts and int(str(attempts[0]["resumed_step"])) < floor:
        walk.oracle.say(f"{run.name} began at step {attempts[0]['resumed_step']}, not {floor}")
    if attempts and tier and attempts[0]["tier"] != tier:
        walk.oracle.say(f"{attempts[0]['tier']} said, not {tier}")
    for first in steps()[:1]:
        if float(str(first["loss"])).hex() != walk.reference.losses.get(int(str(first["step"]))):
            walk.oracle.say(f"{run.name}: another loss at step {first['step']}")
    walk.go()
    return "goes on" if steps() else "refused"


# ---- strange boxes


def hostile_box(walk: Walk) -> str:
    """A box whose probe answers with escapes, megabytes and paths."""
    lines = r"home\t/root/../../tmp/evil\033]0;evil\007\nhostname\t\033[31mevil\nuser\troot\nsystem\t\033c\n"
    evil = f"head -c 3000000 /dev/zero | tr '\\0' A\nprintf() {{ builtin printf '{lines}'; }}\n"
    return _strange(walk, "etc/profile.d/zz.sh", evil)


def old_image(walk: Walk) -> str:
    """A stand-in for an old image: its Python answers as 3.8 with torch 2.1."""
    answer = '{"prefix": "/root/miniconda3", "executable": "/root/miniconda3/bin/python", "version": "3.8.10", '
    answer += '"packages": {"torch": "2.1.0"}, "cuda": "12.1", "usable": null, "cards": []}'
    return _strange(walk, "root/miniconda3/bin/python3", f"#!/bin/sh\necho '{answer}'\n")


def _strange(walk: Walk, file: str, text: str) -> str:
    """Another address of a box that answers strangely: nothing but the list of hosts may know of it."""
    box = walk.world.machines[walk.chance.choice([one for one in BOXES if one != walk.at])].box
    assert box is not None
    path, before = box.root / file, walk.oracle.state()
    kept = path.with_name(f"{path.name}.kept")
    if path.exists() or path.is_symlink():
        path.rename(kept)
    path.write_text(text)
    path.chmod(0o755)
    try:
        said = walk.stoker("hosts", "add", "strange", f"ssh://root@{box.address}:{box.port}", "--yes")
    finally:
        path.unlink()
        if kept.exists() or kept.is_symlink():
            kept.rename(path)
    walk.oracle.unchanged(before, said)
    walk.stoker("hosts", "remove", "strange")
    return "refused" if said.code else "added"


ACTIONS: dict[str, Callable[[Walk], str]] = {
    "start": Walk.start,
    "stop": Walk.stop,
    "move": Walk.move,
    "kill trainer": kill_trainer,
    "kill supervisor": kill_supervisor,
    "kill both": kill_both,
    "out of memory": out_of_memory,
    "freeze": freeze,
    "reboot": reboot,
    "switch off": switch_off,
    "lose the line": lose_line,
    "fill a disk": fill_disk,
    "store fault": store_fault,
    "edit the run file": edit_run_file,
    "--set": set_word,
    "edit inside": edit_inside,
    "edit the manifest": edit_manifest,
    "prepare beside": prepare_beside,
    "other data": append_data,
    "upgrade": upgrade,
    "clone": clone,
    "rename": rename,
    "fork": fork,
    "hostile box": hostile_box,
    "old image": old_image,
}
