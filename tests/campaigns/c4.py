"""C4: full disks, quotas, input/output errors, no inodes, read-only disks, at random points of saves and of whole runs.

Most points are single saves with one system call failing (strace); the others are whole trainings on a small disk that
fills up, runs out of inodes, turns read-only or refuses large files at a random moment. The last good checkpoint must
stay, the save is dropped with a message that names the bytes, training goes on or ends with 75, and the run ends as one
that was never touched. Control: the old checkpoint goes before the new one is committed. Linux, root, strace.
"""

import contextlib
import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import at_save
import tiny_run
import trainings
from campaign import Campaign
from trainings import Outcome

from stoker.engine.saving import Job, Saver
from stoker.errors import EXIT_STOPPED
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
WHOLE_EVERY = 8
"""One of so many points is a whole training."""
CONTROLS = 40
TMPFS_BYTES = 192 << 20


def run(campaign: Campaign) -> None:
    base = tiny_run.make_base_model(campaign.folder / "base", dropout=0.1)
    whole = max(2, campaign.n // WHOLE_EVERY)
    template = trainings.make(campaign.folder / "run", trainings.text(base))
    for ranks, share in ((1, campaign.n - whole - (campaign.n - whole) // 4), (2, (campaign.n - whole) // 4)):
        run_dir = trainings.make(campaign.folder / f"ranks{ranks}", trainings.text(base, ranks=ranks))
        _single_saves(campaign, run_dir, share, f"{ranks} rank")
    attempt = trainings.start(trainings.again(template, campaign.folder / "whole"))
    assert attempt.wait() == 0
    wanted = trainings.outcome(attempt.run_dir)
    for number in range(campaign.n - campaign.done):
        _whole_run(campaign, number, template, wanted)


# ---- one save, one call fails


def _single_saves(campaign: Campaign, run_dir: RunDir, count: int, way: str) -> None:
    results = campaign.folder / "results.jsonl"
    results.write_text("")
    at_save.reach(run_dir, STEP, lambda saver, job: _all(campaign, way, run_dir, saver, job, count, results))
    for line in results.read_text().splitlines():
        point = json.loads(line)
        if point["control"]:
            campaign.control("the old one goes first", caught=bool(point["wrong"]), what=point["wrong"])
            continue
        if point["wrong"]:
            campaign.fail([way, point["call"], point["nth"], point["error"]], point["wrong"])
        campaign.case("single saves", f"single saves: {way}", f"error: {point['error']}", f"save: {point['found']}")


def _all(campaign: Campaign, way: str, run_dir: RunDir, saver: Saver, job: Job, count: int, results: Path) -> None:
    """In the training process, at its save."""
    trace, work = campaign.folder / "trace", campaign.folder / "work"
    with at_save.copy_of(run_dir.checkpoints, work) as folder:
        _try(saver, job, folder, trace.with_suffix(".said"))  # what is imported on the way is imported now
    saver.events = EventLog(Path(os.devnull))
    with at_save.copy_of(run_dir.checkpoints, work) as folder:
        at_save.traced(lambda: _try(saver, job, folder, trace.with_suffix(".said")), trace)
        points = [point for point in at_save.calls(trace, writing=True) if point[0] in WRITES]
    random = campaign.random(way)
    tries = [(*random.choice(points), random.choice(ERRORS), False) for _ in range(count)]
    if way.startswith("1"):
        late = [point for point in points if point[0] in ("pwrite64", "write", "fsync")]
        tries += [(*random.choice(late), "ENOSPC", True) for _ in range(min(CONTROLS, count))]
    with results.open("a") as out:
        for name, nth, error, control in tries:
            said = trace.with_suffix(".said")
            said.write_text("")
            with at_save.copy_of(run_dir.checkpoints, work) as folder:
                inject = ("-e", f"inject={name}:error={error}:when={nth}")
                code = at_save.traced(lambda: _try(saver, job, folder, said, control=control), trace, *inject)
                wrong = said.read_text().strip() if code == 0 else f"exit code {code} {said.read_text()}"
            found = "committed all the same" if "whole" in wrong.split("|")[0] else "dropped, then committed"
            wrong = wrong.partition("|")[2]
            out.write(
                json.dumps(
                    {"call": name, "nth": nth, "error": error, "control": control, "wrong": wrong, "found": found}
                )
                + "\n"
            )
            out.flush()


def _try(saver: Saver, job: Job, folder: Path, said: Path, *, control: bool = False) -> int:
    """Save with a fault, look at what is left, and save again without one."""
    log = folder.with_name("events.jsonl")
    log.unlink(missing_ok=True)
    saver.folder, saver.events, saver.committed = folder, EventLog(log), STEP - 2
    if control:
        for old in checkpoints.committed(folder):
            shutil.rmtree(old.path)
    saver._run(job)
    first = "whole" if not saver.failed else "dropped"
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
    said.write_text(f"{first}|{wrong}")
    return 0


# ---- whole trainings on a disk that fails for a while


def _whole_run(campaign: Campaign, number: int, template: RunDir, wanted: Outcome) -> None:
    random = campaign.random("whole", number)
    fault = FAULTS[number % len(FAULTS)]
    with _disk(campaign.folder / "disk") as disk:
        run_dir = trainings.again(template, disk / "copy")
        wrong, ended = _train_with_fault(run_dir, disk, fault, random)
        for _ in range(3):
            if wrong or ended == 0:
                break
            attempt = trainings.start(run_dir, before=_short_pauses)
            ended = attempt.wait()
            campaign.counts["taken up again with room"] += 1
        if not wrong and ended != 0:
            wrong = f"exit code {ended} {trainings.log_of(run_dir)}"
        wrong = wrong or trainings.difference(trainings.outcome(run_dir), wanted)
    if wrong:
        campaign.fail(["whole", number, fault], wrong)
    campaign.case("whole trainings", f"fault: {fault}")


def _train_with_fault(run_dir: RunDir, disk: Path, fault: str, random: Any) -> tuple[str, int]:
    attempt = trainings.start(run_dir, before=_short_pauses)
    step = random.randint(1, 30)
    while attempt.running() and _last(run_dir, "step") < step:
        time.sleep(0.005)
    lasts = random.choice((0.3, 1.5, 1000.0))
    with FAULT[fault](run_dir, disk, attempt):
        until = time.monotonic() + lasts
        while attempt.running() and time.monotonic() < until:
            time.sleep(0.01)
        kept = _last(run_dir, "checkpoint")
        newest = max((one.step for one in checkpoints.committed(run_dir.checkpoints)), default=0)
        if newest < kept:
            return f"step {kept} was committed, {newest} is there", 1
    code = attempt.wait()
    if code not in (0, EXIT_STOPPED):
        return f"exit code {code} {trainings.log_of(run_dir)}", code
    return "", code


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
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=False, capture_output=True)
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
