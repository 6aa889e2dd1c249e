"""C1x: SIGKILL at every system call of one save that touches a file, one and two ranks, both ways to commit.

What is left must hold the checkpoint before, or the new one, whole and equal to the bit to what an undisturbed save
writes; nothing may be rejected. `--n` is the most points per way; the list of calls is in the report. Linux, strace.
Control: a save under its final name, with the record first.
"""

import json
from pathlib import Path
from typing import Any

import at_save
import controls
import tiny_run
import trainings
from campaign import Campaign

from stoker.engine.saving import SaveJob, Saver
from stoker.rundir import checkpoints
from stoker.rundir.layout import RunDir

STEP = 6
WAYS = {"one rank": (1, True), "two ranks": (2, True), "one rank, by record": (1, False)}


def run(campaign: Campaign) -> None:
    base = tiny_run.make_base_model(campaign.folder / "base", dropout=0.1)
    for way, (ranks, renames) in WAYS.items():
        run_dir = trainings.make(campaign.folder / way, trainings.text(base, ranks=ranks))
        results = campaign.folder / "results.jsonl"
        results.write_text("")
        at_save.reach(run_dir, STEP, lambda saver, job: _all(campaign, way, run_dir, saver, job, renames, results))
        points = [json.loads(line) for line in results.read_text().splitlines()]
        for point in points:
            if point["control"]:
                campaign.control("a save under its final name", caught=bool(point["wrong"]), what=point["wrong"])
                continue
            if point["wrong"]:
                campaign.fail([way, point["call"], point["nth"]], point["wrong"])
            campaign.case(f"points: {way}", f"found step {point['found']}")
        covered = [f"{p['call']}#{p['nth']}" for p in points if not p["control"]]
        campaign.measured[way] = {"calls": len(covered), "list": " ".join(covered)}
    campaign.n = campaign.done


def _all(
    campaign: Campaign, way: str, run_dir: RunDir, saver: Saver, job: SaveJob, renames: bool, results: Path
) -> None:
    """In the training process, at its save."""
    saver.renames = renames
    trace, work = campaign.folder / "trace", campaign.folder / "work"
    listed = []
    for _ in range(2):
        with at_save.copy_of(run_dir.checkpoints, work) as folder:
            assert at_save.traced(lambda: _save(saver, job, folder), trace) == 0
            wanted = at_save.digests(folder, STEP)
            before = at_save.digests(run_dir.checkpoints, STEP - 2)
            listed.append(at_save.calls(trace))
    # On a busy machine one save was seen to make two more `newfstatat` than others: only what both make comes again.
    points = [point for point in listed[0] if point in listed[1]]
    if len(points) > campaign.n:
        points = campaign.random(way).sample(points, campaign.n)
    tries = [(name, nth, False) for name, nth in points]
    if way == "one rank":
        tries += [(name, nth, True) for name, nth in points if name in ("write", "pwrite64", "openat")][
            -min(40, 2 * campaign.n) :
        ]
    with results.open("a") as out:
        for name, nth, control in tries:
            with at_save.copy_of(run_dir.checkpoints, work) as folder:
                inject = ("-e", f"inject={name}:signal=KILL:when={nth}")
                code = at_save.traced(lambda: _save(saver, job, folder, control=control), trace, *inject)
                wrong, found = _judge(folder, wanted, before)
            if code != -9 and not control:
                wrong = wrong or f"not killed: {code}"
            out.write(json.dumps({"call": name, "nth": nth, "control": control, "wrong": wrong, "found": found}) + "\n")
            out.flush()


def _save(saver: Saver, job: SaveJob, folder: Path, *, control: bool = False) -> int:
    if control:
        controls.final_name_from_the_first_byte()
    saver.folder = folder
    saver._save(job)
    return 0


def _judge(folder: Path, wanted: dict[str, Any], before: dict[str, Any]) -> tuple[str, int]:
    """What the next start would find."""
    checkpoints.sweep(folder)
    found, rejected = checkpoints.newest_verified(folder)
    if found is None:
        return f"nothing found, rejected {rejected}", -1
    if rejected:
        return f"rejected {rejected}", found.step
    if any(path.name.startswith(".step-") for path in folder.iterdir()):
        return "something is left aside", found.step
    expected = {STEP: wanted, STEP - 2: before}.get(found.step)
    return ("" if at_save.digests(folder, found.step) == expected else f"step {found.step} differs"), found.step
