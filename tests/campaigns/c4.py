"""C4: full disks, quotas, input/output errors, no inodes, read-only disks, at random points of saves and of whole runs.

Most points are single saves with one system call failing (strace); the others are whole trainings on a small disk that
fills up, runs out of inodes, turns read-only or refuses large files at a random moment. The last good checkpoint must
stay, the save is dropped with a message that names the bytes and is whole when it is tried again, training goes on or
ends with 75, a start while the disk still fails is a named error, and the run ends as one that was never touched. A
point counts where its fault was met. Control: the old checkpoint goes before the new one is committed. Linux, root,
strace.
"""

import contextlib
import json
import os
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import at_save
import tiny_run
import trainings
from campaign import Campaign
from trainings import Outcome

from stoker.engine.saving import SaveJob, Saver
from stoker.errors import EXIT_STOPPED, EXIT_USER
from stoker.rundir import checkpoints, events
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir

STEP = 6
ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EROFS")
WRITES = {
    "openat",
    "write",
    "pwrite64",
    "writev",
    "ftruncate",
    "fallocate",
    "fsync",
    "fdatasync",
    "rename",
    "renameat2",
}
WRITES |= {"renameat", "mkdir", "mkdirat", "copy_file_range"}
FAULTS = ("full", "no inodes", "read-only", "large files")
METHODS = ("lora", "full", "scratch")
"""Adapters, models that were loaded and models from nothing are written by different code."""
LASTING = ("full", "no inodes", "read-only")
"""Those that a new start meets as well."""
WHOLE_EVERY = 8
"""One of so many points is a whole training."""
CONTROLS = 40
TMPFS_BYTES = 192 << 20


def run(campaign: Campaign) -> None:
    base = tiny_run.make_base_model(campaign.folder / "base", dropout=0.1)
    whole = max(2, campaign.n // WHOLE_EVERY)
    quarter = (campaign.n - whole) // 4
    for way, method, ranks, share in (
        ("1 rank", "lora", 1, campaign.n - whole - 2 * quarter),
        ("2 rank", "lora", 2, quarter),
        ("1 rank, from scratch", "scratch", 1, quarter),
    ):
        run_dir = trainings.make(campaign.folder / way, trainings.text(base, method=method, ranks=ranks))
        _single_saves(campaign, run_dir, share, way)
    templates = {
        method: trainings.make(campaign.folder / method, trainings.text(base, method=method)) for method in METHODS
    }
    wanted = {}
    for method, template in templates.items():
        attempt = trainings.start(trainings.again(template, campaign.folder / f"whole-{method}"))
        assert attempt.wait() == 0
        wanted[method] = trainings.outcome(attempt.run_dir)
    number = 0
    while campaign.done < campaign.n and number < 4 * whole and not campaign.hopeless:
        method = METHODS[(number + number // len(FAULTS)) % len(METHODS)]
        _whole_run(campaign, number, method, templates[method], wanted[method])
        number += 1
    missing = [fault for fault in FAULTS if whole >= len(FAULTS) and not campaign.counts[f"fault: {fault}"]]
    if missing:
        campaign.fail(["coverage"], f"no training felt {missing}")


# ---- one save, one call fails


def _single_saves(campaign: Campaign, run_dir: RunDir, count: int, way: str) -> None:
    results = campaign.folder / "results.jsonl"
    results.write_text("")
    at_save.reach(run_dir, STEP, lambda saver, job: _all(campaign, way, run_dir, saver, job, count, results))
    for line in results.read_text().splitlines():
        point = json.loads(line)
        if not point["met"] and not point["wrong"]:
            campaign.counts["points where nothing was injected, not counted"] += 1
            continue
        if point["control"]:
            campaign.control("the old one goes first", caught=bool(point["wrong"]), what=point["wrong"])
            continue
        if point["wrong"]:
            campaign.fail([way, point["call"], point["nth"], point["error"]], point["wrong"])
        campaign.case("single saves", f"single saves: {way}", f"error: {point['error']}", f"save: {point['found']}")


def _all(campaign: Campaign, way: str, run_dir: RunDir, saver: Saver, job: SaveJob, count: int, results: Path) -> None:
    """In the training process, at its save."""
    trace, work = campaign.folder / "trace", campaign.folder / "work"
    with at_save.copy_of(run_dir.checkpoints, work) as folder:
        _one(saver, job, folder, trace, {}, traced=False)  # what is imported on the way is imported now
        whole = at_save.digests(folder, STEP)
    with at_save.copy_of(run_dir.checkpoints, work) as folder:
        code, _, wrong = _one(saver, job, folder, trace, whole)
        assert (code, wrong) == (0, "")
        points = [point for point in at_save.calls(trace, writing=True, below=str(work)) if point[0] in WRITES]
    late = [point for point in points if point[0] in ("pwrite64", "write", "fsync")]
    random, done = campaign.random(way), 0
    controls = min(CONTROLS, count) if way == "1 rank" else 0
    with results.open("a") as out:
        for number in range(3 * (count + controls)):
            if done == count + controls:
                break
            control = done >= count
            name, nth = random.choice(late if control else points)
            error = "ENOSPC" if control else random.choice(ERRORS)
            with at_save.copy_of(run_dir.checkpoints, work) as folder:
                inject = ("-e", f"inject={name}:error={error}:when={nth}")
                code, first, wrong = _one(saver, job, folder, trace, whole, *inject, control=control)
            met = at_save.injected(trace)
            done += met
            wrong = f"exit code {code} {first} {wrong}" if code else wrong
            point = {"call": name, "nth": nth, "error": error, "control": control, "number": number}
            out.write(json.dumps(point | {"met": met, "found": first, "wrong": wrong}) + "\n")
            out.flush()


def _one(
    saver: Saver,
    job: SaveJob,
    folder: Path,
    trace: Path,
    whole: dict[str, str],
    *inject: str,
    traced: bool = True,
    control: bool = False,
) -> tuple[int, str, str]:
    """One try: its exit code, what became of the save, and what is wrong. Nothing of ours is opened under the fault."""
    log, said = folder.with_name("events.jsonl"), trace.with_suffix(".said")
    log.unlink(missing_ok=True)
    said.write_text("")
    saver.folder, saver.events, saver.committed = folder, EventLog(log), STEP - 2
    with contextlib.closing(saver.events), said.open("w") as file:
        if not traced:
            return _try(saver, job, log, file, whole), "", ""
        code = at_save.traced(lambda: _try(saver, job, log, file, whole, control=control), trace, *inject)
    first, _, wrong = said.read_text().strip().partition("|")
    return code, first, wrong or ("" if first else "it said nothing")


def _try(saver: Saver, job: SaveJob, log: Path, said: TextIO, whole: dict[str, str], *, control: bool = False) -> int:
    """Save with a fault, look at what is left, and save again without one."""
    folder = saver.folder
    if control:
        for old in checkpoints.committed(folder):
            shutil.rmtree(old.path)
    saver._run(job)
    first = "dropped, then committed" if saver.failed else "committed all the same"
    wrong = "" if not saver._surprise else f"surprise: {saver._surprise}"
    found, rejected = checkpoints.newest_verified(folder)
    if found is None or found.step < STEP - 2 or rejected:
        wrong = wrong or f"found {found and found.step}, rejected {rejected}"
    if saver.failed:
        failed = [e for e in events.read(log) if e["event"] == "save_failed"]
        if not failed or failed[0]["needed_bytes"] < job.copied.bytes:
            wrong = wrong or f"not said: {failed}"
        elif f"{failed[0]['needed_bytes']:,}" != failed[0]["error"]["fields"]["needed"]:
            wrong = wrong or "the message does not name the bytes"
        saver._run(job)
    found, rejected = checkpoints.newest_verified(folder)
    if not wrong and (found is None or found.step != STEP or rejected):
        wrong = f"second try: found {found and found.step}, rejected {rejected}"
    elif not wrong and at_save.digests(folder, STEP) != whole:
        wrong = f"step {STEP} differs: {sorted(at_save.digests(folder, STEP).items() ^ whole.items())}"
    said.write(f"{first}|{wrong}")
    said.flush()
    return 0


# ---- whole trainings on a disk that fails for a while


def _whole_run(campaign: Campaign, number: int, method: str, template: RunDir, wanted: Outcome) -> None:
    random = campaign.random("whole", number)
    fault = FAULTS[number % len(FAULTS)]
    with _disk(campaign.folder / "disk") as disk:
        run_dir = trainings.again(template, disk / "copy")
        wrong, ended, again = _train_with_fault(campaign, run_dir, disk, fault, random)
        for _ in range(3):
            if wrong or ended == 0:
                break
            attempt = trainings.start(run_dir, before=_short_pauses)
            ended = attempt.wait()
            campaign.counts["taken up again with room"] += 1
        if not wrong and ended != 0:
            wrong = f"exit code {ended} {trainings.log_of(run_dir)}"
        wrong = wrong or trainings.difference(trainings.outcome(run_dir), wanted)
        felt = [e for e in events.read(run_dir.events_file) if e["event"] in ("save_failed", "error")]
    if wrong:
        campaign.fail(["whole", number, method, fault], wrong)
    elif not felt:
        campaign.counts["faults nobody felt, not counted"] += 1
        return
    campaign.case("whole trainings", f"fault: {fault}", f"method: {method}", *again)


def _train_with_fault(
    campaign: Campaign, run_dir: RunDir, disk: Path, fault: str, random: Any
) -> tuple[str, int, list[str]]:
    attempt = trainings.start(run_dir, before=_short_pauses)
    step = random.randint(1, trainings.STEPS)
    while attempt.running() and _last(run_dir, "step") < step:
        time.sleep(0.005)
    lasts, again = random.choice((0.6, 1.5, 1000.0)), []
    with FAULT[fault](run_dir, disk, attempt):
        until = time.monotonic() + lasts
        while attempt.running() and time.monotonic() < until:
            time.sleep(0.01)
        kept = _last(run_dir, "checkpoint")
        newest = max((one.step for one in checkpoints.committed(run_dir.checkpoints)), default=0)
        if newest < kept:
            attempt.kill()
            return f"step {kept} was committed, {newest} is there", 1, again
        if not attempt.running() and fault in LASTING:
            again = [f"started while the fault lasts: {fault}"]
            if wrong := _start_under_fault(run_dir, campaign.folder / "start.log"):
                attempt.wait()
                return f"started while the fault lasts: {wrong}", 1, again
    code = attempt.wait()
    if code not in (0, EXIT_STOPPED):
        return f"exit code {code} {trainings.log_of(run_dir)}", code, again
    return "", code, again


def _start_under_fault(run_dir: RunDir, log: Path) -> str:
    """A start on a disk that still fails: a stop, or an error that is named in the log or in the events."""
    log.write_text("")
    before_it = len(list(events.read(run_dir.events_file)))

    def before() -> None:
        _short_pauses()
        said = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(said, 1)
        os.dup2(said, 2)

    code, said = trainings.start(run_dir, before=before).wait(), log.read_text(errors="replace")
    if code in (0, EXIT_STOPPED):
        return ""
    errors = [e for e in list(events.read(run_dir.events_file))[before_it:] if e["event"] == "error"]
    named = errors or re.search(r"STK\d+", said)
    return "" if code == EXIT_USER and named else f"exit code {code}, {errors}: {said[-1500:]}"


def _last(run_dir: RunDir, kind: str) -> int:
    return max((e["step"] for e in events.read(run_dir.events_file) if e["event"] == kind), default=0)


def _short_pauses() -> None:
    from stoker.engine import saving

    saving._PAUSES_SECONDS = (0.2, 0.4, 0.8)
    saving._LAST_TRIES_SECONDS = (0.1, 0.2)


@contextlib.contextmanager
def _disk(mount: Path) -> Iterator[Path]:
    mount.mkdir(exist_ok=True)
    options = f"size={TMPFS_BYTES},nr_inodes=4000"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(mount)], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


@contextlib.contextmanager
def _full(run_dir: RunDir, disk: Path, attempt: trainings.Attempt) -> Iterator[None]:
    with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    yield
    (disk / "filler").unlink()


@contextlib.contextmanager
def _no_inodes(run_dir: RunDir, disk: Path, attempt: trainings.Attempt) -> Iterator[None]:
    (disk / "fillers").mkdir()
    with contextlib.suppress(OSError):
        for number in range(5000):
            (disk / "fillers" / str(number)).touch()
    yield
    shutil.rmtree(disk / "fillers")


@contextlib.contextmanager
def _read_only(run_dir: RunDir, disk: Path, attempt: trainings.Attempt) -> Iterator[None]:
    folder = str(run_dir.checkpoints)
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True, capture_output=True)
    yield
    subprocess.run(["umount", "-l", folder], check=True)


@contextlib.contextmanager
def _large_files(run_dir: RunDir, disk: Path, attempt: trainings.Attempt) -> Iterator[None]:
    for pid in attempt.pids:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
    yield
    for pid in attempt.pids:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


FAULT = {"full": _full, "no inodes": _no_inodes, "read-only": _read_only, "large files": _large_files}
