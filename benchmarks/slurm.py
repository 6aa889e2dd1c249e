"""A run in a real Slurm queue whose jobs end by their time limit, against the same run uninterrupted, by final weights.

    limit       told by Slurm before the time limit, requeued until done            (bar: >= 2 requeues, same SHA)
    deadline    no notice from Slurm: the supervisor itself stops before the end     (same SHA)
    cancelled   `scancel`: commits within Slurm's KillWait, is not requeued          (no step lost)
    stopped     `stoker stop`: commits and ends, is not requeued; started again, goes on   (same SHA)
    late        neither: Slurm's TERM at the limit, and 30 s until KILL                (same SHA)
    control     nor a script that listens: killed, not requeued                       (does not finish)

`nodes_limit`, `nodes_cancelled`, `nodes_stopped` and `nodes_control` are the same with jobs of two nodes and a process
on each, still against an uninterrupted run of one process. And with two nodes, of which Slurm loses one:
    nodes_down       Slurm ends the job and requeues it; the node comes back          (same SHA)
    nodes_elastic    the job goes on with the one that remains                        (no restart, same SHA)

Needs root, Debian's `slurm-wlm` and `munge`; everything listens on 127.0.0.1. Slurm looks at time limits every 30 s,
so this takes minutes. Usage: python benchmarks/slurm.py [--only limit] [--out FILE]
"""

import argparse
import datetime
import functools
import json
import math
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "places")]

import processor  # noqa: E402
import queued_run  # noqa: E402
import slurm_cluster  # noqa: E402
import tiny_run  # noqa: E402
from slurm_cluster import Slurm  # noqa: E402

from stoker.places.package import Package  # noqa: E402
from stoker.places.queue import Queue  # noqa: E402
from stoker.rundir import files  # noqa: E402

ENDED = {"COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL"}
PATIENCE_SECONDS = 900


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "slurm.json")
    given = parser.parse_args()
    os.environ["STOKER_METADATA"] = "off"
    before = json.loads(given.out.read_text("utf-8")) if given.only and given.out.exists() else {}
    found: dict[str, Any] = before.get("cases", {})
    with (
        tempfile.TemporaryDirectory(prefix="stoker-slurm-") as folder,
        slurm_cluster.cluster(Path(folder) / "cluster") as slurm,
    ):
        os.environ |= slurm.environment
        versions = {"slurm": slurm.say("sinfo", "--version"), "python": platform.python_version()}
        versions |= {name: metadata.version(name) for name in ("torch", "transformers", "peft")}
        for name in [given.only] if given.only else CASES:
            at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            found[name] = {
                "at": at,
                "versions": versions,
                "machine": processor.facts(),
                **CASES[name](slurm, Path(folder) / name),
            }
            print(name, json.dumps(found[name]), flush=True)
            report = {**before, "cases": found}
            given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def limit(
    slurm: Slurm, folder: Path, where: str = "nodes: 1", notice_seconds: int = 240, train_seconds: float = 110
) -> dict[str, Any]:
    """A session of 5 minutes with 4 of notice: told 30 to 60 s after its start, by Slurm's own clock."""
    made = prepared(folder, session="5m", train_seconds=train_seconds, where=where)
    return {**compared(slurm, folder, queued_run.queue(folder, made, notice_seconds), made), "bar": "restarts >= 2"}


def deadline(slurm: Slurm, folder: Path) -> dict[str, Any]:
    """A session of 3 minutes and no signal: the supervisor keeps two of them free."""
    made = prepared(folder, session="3m", train_seconds=70)
    return compared(slurm, folder, without(queued_run.queue(folder, made), r"^#SBATCH --signal.*$"), made)


def cancelled(slurm: Slurm, folder: Path, where: str = "nodes: 1") -> dict[str, Any]:
    """Somebody cancels a running job."""
    made = prepared(folder, session="30m", train_seconds=110, where=where)
    queue = queued_run.queue(folder, made)
    queue.start(made)
    job = queue._jobs(queued_run.NAME)[0]["id"]
    queued_run.until(lambda: queued_run.steps(folder) >= 20, slurm, folder)
    slurm.say("scancel", job)
    wait(slurm, job)
    return outcome(slurm, folder, job)


def stopped(slurm: Slurm, folder: Path, where: str = "nodes: 1") -> dict[str, Any]:
    """The user stops it and starts it again later."""
    made = prepared(folder, session="30m", train_seconds=40, where=where)
    queue = queued_run.queue(folder, made)
    queue.start(made)
    job = queue._jobs(queued_run.NAME)[0]["id"]
    queued_run.until(lambda: queued_run.steps(folder) >= 20, slurm, folder)
    code = queue.stop(queued_run.NAME)
    wait(slurm, job)
    first = outcome(slurm, folder, job)
    return {"stop": {"code": code, **first}, **compared(slurm, folder, queue, made)}


def late(slurm: Slurm, folder: Path) -> dict[str, Any]:
    """The script is told by Slurm's last signal only."""
    made = prepared(folder, session="1m", train_seconds=90)
    bare = without(queued_run.queue(folder, made), r"^#SBATCH --signal.*$", r"STOKER_DEADLINE=.*DEADLINE ")
    return compared(slurm, folder, bare, made)


def control(slurm: Slurm, folder: Path, where: str = "nodes: 1") -> dict[str, Any]:
    """Killed at its limit a minute after its start. What Slurm's TERM let the trainer commit stands; nobody goes on."""
    made = prepared(folder, session="1m", train_seconds=240, where=where)
    bare = without(
        queued_run.queue(folder, made), r"^#SBATCH --signal.*$", r"STOKER_DEADLINE=.*DEADLINE ", r"^trap .*$"
    )
    bare.start(made)
    job = bare._jobs(queued_run.NAME)[0]["id"]
    wait(slurm, job)
    return outcome(slurm, folder, job)


def down(slurm: Slurm, folder: Path, where: str) -> dict[str, Any]:
    """Slurm takes a node for failed in the middle of a run; it is back when Slurm hears of it again."""
    made = prepared(folder, session="30m", train_seconds=40, where=where)
    lost = slurm_cluster.NODES[1]

    def fail() -> None:
        queued_run.until(lambda: queued_run.steps(folder) >= 20, slurm, folder)
        slurm.say("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=pulled")

    return compared(slurm, folder, queued_run.queue(folder, made), made, fail)


CASES: dict[str, Callable[[Slurm, Path], dict[str, Any]]] = {
    "limit": limit,
    "deadline": deadline,
    "cancelled": cancelled,
    "stopped": stopped,
    "late": late,
    "control": control,
    "nodes_limit": functools.partial(limit, where="nodes: 2", notice_seconds=180, train_seconds=250),
    "nodes_cancelled": functools.partial(cancelled, where="nodes: 2"),
    "nodes_stopped": functools.partial(stopped, where="nodes: 2"),
    "nodes_control": functools.partial(control, where="nodes: 2"),
    "nodes_down": functools.partial(down, where="nodes: 2"),
    "nodes_elastic": functools.partial(down, where="nodes: 2, elastic: true"),
}


def prepared(folder: Path, session: str, train_seconds: float, where: str = "nodes: 1") -> Package:
    """A run of about so many seconds of steps, by the pace of steps here."""
    steps = max(60, math.ceil(train_seconds / step_seconds()))
    return queued_run.make(folder, queued_run.words(steps, session, where=where))


@functools.cache
def step_seconds() -> float:
    """What a step of the tiny run takes here, by a run of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        queued_run.make(folder, queued_run.words(200, "1h"))
        queued_run.uninterrupted(folder)
        return queued_run.seconds_per_step(folder)


def without(queue: Queue, *patterns: str) -> Queue:
    """The same queue, with lines of the job's script left out."""
    plain = queue.script

    def script(package: Package, exported: Any) -> str:
        text = plain(package, exported)
        for pattern in patterns:
            text, count = re.subn(pattern, "", text, flags=re.MULTILINE)
            assert count, pattern
        return text

    queue.script = script  # type: ignore[method-assign]
    return queue


def compared(
    slurm: Slurm, folder: Path, queue: Queue, made: Package, meanwhile: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Train in the queue, then without, and compare."""
    queue.start(made)
    job = queue._jobs(queued_run.NAME)[0]["id"]
    began = time.monotonic()
    meanwhile()
    wait(slurm, job)
    seconds = round(time.monotonic() - began)
    found = outcome(slurm, folder, job)
    final = queued_run.run_dir(folder).final
    sha = tiny_run.weights_sha(final) if final.is_dir() else ""
    alone = queued_run.uninterrupted(folder)
    return {**found, "seconds": seconds, "sha": sha, "sha_uninterrupted": alone, "same": sha == alone}


def wait(slurm: Slurm, job: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while slurm.job(job)["JobState"] not in ENDED:
        assert time.monotonic() < end, slurm.job(job)
        time.sleep(1)


def outcome(slurm: Slurm, folder: Path, job: str) -> dict[str, Any]:
    """How a run stands after its jobs."""
    told, done, kept = slurm.job(job), queued_run.steps(folder), max(queued_run.committed(folder), default=0)
    return {
        "state": told["JobState"],
        "restarts": int(told["Restarts"]),
        "nodes": int(told["NumNodes"].partition("-")[0]),
        "ranks": queued_run.worlds(folder),
        "steps_asked": files.read_json(queued_run.run_dir(folder).plan_file)["steps"]["total"],
        "steps_done": done,
        "steps_committed": kept,
        "steps_lost": done - kept,
        "finished": queued_run.run_dir(folder).final.is_dir(),
        "jobs": [" ".join(words[:2] + words[3:]) for words in queued_run.segments(folder)],
    }


if __name__ == "__main__":
    main()
