"""C1: SIGKILL of the whole process group at random instants, half of them inside saves, one and two ranks, which each
write a share of their checkpoints in the last kind.

After each kill the same program is started again. Every run is taken to its end; all its losses, eval losses and its
final weights must be equal to those of a run that was never touched, to the last bit, and so must the last checkpoint.
No start may fail and no folder may be rejected. A kill is inside a save where this start's own temporary or outgoing
folder was there; at least half must be. Controls: a save under its final name, the optimizer's state not put back,
random streams not keyed, ranks that save by their own clocks.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import controls
import tiny_run
import trainings
from campaign import Campaign
from trainings import Outcome

from stoker.rundir import events
from stoker.rundir.layout import RunDir

KINDS: dict[str, dict[str, Any]] = {
    "lora": {},
    "full": {"method": "full"},
    "two ranks": {"ranks": 2},
    "shares": {"method": "full", "where": "{micro: 2, gpus: 0, processes: 2, strategy: fsdp2}"},
}
KILLS_PER_RUN = 25
IN_SAVE_SECONDS = 0.08
ANY_SECONDS = 1.4
HANG_SECONDS = 300.0
CONTROL_HANG_SECONDS = 40.0
MAY_HANG = "ranks save by their own clocks"
INSIDE = "kills inside a save"


def run(campaign: Campaign) -> None:
    base = tiny_run.make_base_model(campaign.folder / "base", dropout=0.1)
    known: dict[str, tuple[RunDir, Outcome]] = {}

    def of(kind: str) -> tuple[RunDir, Outcome]:
        if kind not in known:
            known[kind] = _untouched(campaign, kind, base)
        return known[kind]

    number = 0
    while _more(campaign) and not campaign.hopeless:
        kind = min(KINDS, key=lambda kind: campaign.counts[f"kills: {kind}"])
        _one_run(campaign, kind, number, *of(kind))
        number += 1
        campaign.counts[f"runs: {kind}"] += 1
    if 2 * campaign.counts[INSIDE] < campaign.n:
        campaign.fail(["inside"], f"only {campaign.counts[INSIDE]} kills were inside a save")
    if campaign.n >= 50:
        _other_clocks(campaign, *of("two ranks"))
    for name, (kind, change) in list(CONTROLS.items())[: None if campaign.n >= 50 else 1]:
        _control(campaign, name, *of(kind), change)


def _more(campaign: Campaign) -> bool:
    """Until all are done and half of them were inside a save; an aim that never hits ends, too."""
    few = 2 * campaign.counts[INSIDE] < campaign.n and campaign.done < 2 * campaign.n
    return campaign.done < campaign.n or few


def _untouched(campaign: Campaign, kind: str, base: Path) -> tuple[RunDir, Outcome]:
    """A run, and what it ends with when nobody touches it."""
    run_dir = trainings.make(campaign.folder / kind, trainings.text(base, **KINDS[kind]))
    attempt = trainings.start(trainings.again(run_dir, campaign.folder / f"whole {kind}"))
    assert attempt.wait() == 0, trainings.log_of(attempt.run_dir)
    return run_dir, trainings.outcome(attempt.run_dir)


def _one_run(campaign: Campaign, kind: str, number: int, template: RunDir, wanted: Outcome) -> None:
    """Kill a run again and again until it is done."""
    random = campaign.random(number)
    run_dir = trainings.again(template, campaign.folder / "killed")
    kills, most = 0, min(KILLS_PER_RUN, -(-campaign.n // len(KINDS)))
    while True:
        before = _being_written(run_dir)
        attempt = trainings.start(run_dir)
        in_save = 2 * campaign.counts[INSIDE] <= campaign.done
        if kills >= most or not _more(campaign) or not _kill(attempt, random, before, in_save=in_save):
            break
        kills += 1
        inside = _being_written(run_dir) - before
        campaign.case("kills", f"kills: {kind}", *([INSIDE, f"{INSIDE}: {kind}"] if inside else []))
    if attempt.wait() != 0:
        campaign.fail([number, kills], f"{attempt.codes}: {trainings.log_of(run_dir)}")
        return
    if wrong := _judge(run_dir, wanted):
        campaign.fail([number], wrong)
    campaign.counts["resumes"] += sum(e["event"] == "attempt" and e["resumed_step"] > 0 for e in _events(run_dir))


def _being_written(run_dir: RunDir) -> set[str]:
    """Folders of a save or a rotation on its way, or left by one; the rehearsal's is none."""
    found = {path.name for path in run_dir.checkpoints.glob(".step-*") if path.suffix in (".tmp", ".gone")}
    return {name for name in found if "step-00000000" not in name}


def _kill(
    attempt: trainings.Attempt, random: Any, before: set[str], *, in_save: bool, hang_seconds: float = HANG_SECONDS
) -> bool:
    """Wait for an instant and kill; False where the training ended before."""
    if not in_save:
        return _kill_at(attempt, time.monotonic() + random.uniform(0.0, ANY_SECONDS))
    # Inside a save: the first sign of its folder, and a little later.
    saves, seen, late = random.randint(1, 3), set(), time.monotonic() + hang_seconds
    while attempt.running() and time.monotonic() < late:
        seen |= {name for name in _being_written(attempt.run_dir) - before if name.endswith(".tmp")}
        if len(seen) >= saves:
            return _kill_at(attempt, time.monotonic() + random.uniform(0.0, IN_SAVE_SECONDS))
        time.sleep(0.001)
    return False


def _kill_at(attempt: trainings.Attempt, moment: float) -> bool:
    while time.monotonic() < moment:
        if not attempt.running():
            return False
        time.sleep(0.0005)
    if not attempt.running():
        return False
    attempt.kill()
    return True


def _judge(run_dir: RunDir, wanted: Outcome) -> str:
    rejected = [e for e in _events(run_dir) if e["event"] == "rejected"]
    if rejected:
        return f"rejected {rejected}"
    tiers = {e["tier"] for e in _events(run_dir) if e["event"] == "attempt"}
    if tiers != {"EXACT"}:
        return f"tiers {tiers}"
    return trainings.difference(trainings.outcome(run_dir), wanted)


def _events(run_dir: RunDir) -> list[dict[str, Any]]:
    return list(events.read(run_dir.events_file))


# ---- controls


def _other_clocks(campaign: Campaign, template: RunDir, wanted: Outcome) -> None:
    """What the last control does, but for the safeguard: ranks whose clocks differ agree, and all is well."""
    run_dir = trainings.again(template, campaign.folder / "control")
    attempt = trainings.start(run_dir, before=controls.ranks_have_other_clocks)
    wrong = f"{attempt.codes} {trainings.log_of(run_dir)}" if attempt.wait() else _judge(run_dir, wanted)
    if wrong:
        campaign.fail(["ranks have other clocks"], wrong)


def _control(campaign: Campaign, name: str, template: RunDir, wanted: Outcome, change: Callable[[], None]) -> None:
    random = campaign.random("control", name)
    for _ in range(3):
        run_dir = trainings.again(template, campaign.folder / "control")
        wrong = ""
        for kill in range(8):
            before = _being_written(run_dir)
            attempt = trainings.start(run_dir, before=change)
            patience = CONTROL_HANG_SECONDS if name == MAY_HANG else HANG_SECONDS
            if kill < 7 and _kill(attempt, random, before, in_save=kill % 2 == 0, hang_seconds=patience):
                continue
            if attempt.wait(seconds=patience) != 0:
                wrong = f"exit codes {list(attempt.codes.values())}"
            break
        wrong = wrong or _judge(run_dir, wanted)
        campaign.control(name, caught=bool(wrong), what=wrong)
        if wrong:
            break


CONTROLS: dict[str, tuple[str, Callable[[], None]]] = {
    "a save under its final name": ("lora", controls.final_name_from_the_first_byte),
    "the optimizer's state is not put back": ("full", controls.no_optimizer),
    "random streams are not keyed": ("lora", controls.no_random_streams),
    MAY_HANG: ("two ranks", controls.ranks_save_by_their_own_clocks),
}
