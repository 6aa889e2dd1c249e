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
import shutil
import statistics
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import life
import life_actions
import life_oracle
import quick_python
import store_servers
from campaign import Campaign
from life import BOXES, LAPTOP, NAME, World
from life_oracle import Reference
from life_walk import DONE_SECONDS, Walk

LEAST_ACTIONS = 12
DRAWN_ACTIONS = 60
"""Names drawn for a walk: those that cannot happen in its state are passed over."""
ALL_CONTROLS = 4
"""From so many walks on all controls are tried, else the first."""
TWO_WORLDS = 20
"""From so many on there are two worlds side by side."""
COUNTING = threading.Lock()
CONTROLS: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "words of the run file are not compared": ("words_not_compared", LAPTOP, "", ("edit the run file",)),
    "a move brings nothing along": ("moves_bring_nothing", BOXES[0], "", ("move",)),
    "a copied folder has the lease": ("token_not_bound", LAPTOP, "s3", ("clone",)),
    "a place is recorded before it has the run": ("recorded_before_it_is_sent", BOXES[0], "", ("fill a disk",) * 2),
    "the optimizer starts anew": ("no_optimizer", LAPTOP, "", ("kill both",)),
}
"""By what is taken away: the change, where the run begins, its store, and what happens to it."""
TRIES = 4
"""Of a control: some of its actions need a certain draw."""


def possible() -> str:
    """Why it cannot run here; empty where it can."""
    here = store_servers.has_rclone() and store_servers.has_moto() and shutil.which("cc")
    return life.boxes.available() or ("" if here else "needs rclone, moto and a C compiler")


def run(campaign: Campaign) -> None:
    """As many walks as asked, then the controls."""
    assert not possible(), possible()
    count = 2 if campaign.n >= TWO_WORLDS else 1
    with contextlib.ExitStack() as stack:
        quick = stack.enter_context(quick_python.serving(campaign.folder))
        worlds = [stack.enter_context(life.world(campaign.folder / f"w{number}", quick)) for number in range(count)]
        reference = undisturbed(worlds[0], campaign.folder / "pristine")
        campaign.measured |= {"final": reference.final, "steps": len(reference.losses)}
        with ThreadPoolExecutor(count) as pool:
            for one in [
                pool.submit(_all_of, campaign, each, reference, number, count) for number, each in enumerate(worlds)
            ]:
                one.result()
        for name in list(CONTROLS)[: None if campaign.n >= ALL_CONTROLS else 1]:
            wrong = control(campaign, worlds[0], reference, name)
            campaign.control(name, caught=bool(wrong), what="; ".join(wrong))


def undisturbed(world: World, pristine: Path) -> Reference:
    """A run that nobody disturbs; its directory as it was when the data was prepared is kept aside for all walks."""
    world.clear(None)
    world.pace(life.FAST)
    world.writes("")
    mine = world.mine
    assert mine.says("prepare", f"{NAME}.yaml").code == 0
    shutil.copytree(mine.runs / NAME, pristine)
    said = mine.says("train", f"{NAME}.yaml", "--detach")
    assert said.code == 0, said
    assert life_oracle.wait_for_end(mine.runs / NAME, DONE_SECONDS) == "done", said
    return life_oracle.undisturbed(mine.runs / NAME)


def drawn(campaign: Campaign, world: World, reference: Reference, number: int) -> tuple[Walk, list[str], int]:
    """A walk, names of actions and how many must happen, by its number alone."""
    chance = campaign.random(number)
    enough = chance.randint(LEAST_ACTIONS, LEAST_ACTIONS + 3)
    names = [chance.choice(list(life_actions.ACTIONS)) for _ in range(DRAWN_ACTIONS)]
    at, store = chance.choice([LAPTOP, LAPTOP, *BOXES]), chance.choice(["", "", *sorted(world.stores)])
    return Walk(world, chance, reference, campaign.folder / "pristine", store, at), names, enough


def play(walk: Walk, names: list[str], enough: int) -> list[str]:
    """The first of these actions that can happen; what was wrong."""
    return walk.play([(name, life_actions.ACTIONS[name]) for name in names], enough)


def control(campaign: Campaign, world: World, reference: Reference, name: str) -> list[str]:
    """Walks without one safeguard, until the oracle says so."""
    change, at, store, actions = CONTROLS[name]
    for number in range(TRIES):
        chance = campaign.random("control", name, number)
        walk = Walk(world, chance, reference, campaign.folder / "pristine", store, at, changes={change: True})
        if wrong := play(walk, ["kill trainer", *actions], 1 + len(actions)):
            return wrong
    return []


def _all_of(campaign: Campaign, world: World, reference: Reference, first: int, every: int) -> None:
    for number in range(first, campaign.n, every):
        if campaign.hopeless:
            break
        walk, names, enough = drawn(campaign, world, reference, number)
        if not play(walk, names, enough) and len(walk.done) < LEAST_ACTIONS:
            walk.oracle.say(f"only {len(walk.done)} of {enough} actions could happen")
        with COUNTING:
            _count(campaign, number, walk)


def _count(campaign: Campaign, number: int, walk: Walk) -> None:
    for wrong in walk.oracle.wrong:
        campaign.fail([number, walk.store or "no store"], f"{walk.story}\n=> {wrong}")
    seconds = campaign.measured.setdefault("seconds_of_walks", [])
    seconds.append(round(walk.seconds, 1))
    campaign.measured |= {"median_seconds": statistics.median(seconds), "longest_seconds": max(seconds)}
    campaign.measured["actions"] = campaign.measured.get("actions", 0) + len(walk.done)
    campaign.counts.update(walk.done)
    campaign.counts.update(f"tier {tier}" for tier in walk.oracle.tiers)
    campaign.case("walks", f"store: {walk.store or 'none'}")
