"""A tiny run in a real queue: made here, sent to a base folder, trained by jobs whose time is up again and again."""

import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny_run
from slurm_cluster import Slurm

from stoker.config import load
from stoker.hosts.box_facts import BoxFacts
from stoker.hosts.known import Host
from stoker.hosts.shell import LocalShell
from stoker.places import package
from stoker.places.package import Package
from stoker.places.queue import Queue
from stoker.rundir import checkpoints, events
from stoker.rundir.layout import RunDir

NAME = "queued"


def words(steps: int, session: str, native: str = "comment: a tiny run", where: str = "nodes: 1") -> str:
    return f"""
name: {NAME}
model: ../base
data: {{train: rows.jsonl, length: 64}}
tune: {{method: lora, rank: 4}}
train: {{batch: 8, steps: {steps}, epochs: {steps}, learning_rate: 1e-3}}
save: {{every: 1000 steps, keep: 2}}
where: {{place: slurm, gpus: 0, micro: 4, session: {session}, interface: lo, {where}}}
native: {{slurm: {{partition: short, {native}}}}}
"""


def make(folder: Path, text: str) -> Package:
    """The run on the laptop, its data prepared; as a package."""
    tiny_run.make_base_model(folder / "base", dropout=0.1)
    tiny_run.make_run(folder / "laptop", text, tiny_run.random_rows(30, seed=5, longest=64, segments=3))
    run_file = load.load(str(folder / "laptop" / "run.yaml"))
    return package.make("run.yaml", run_file, [])


def queue(folder: Path, made: Package, notice_seconds: int | None = None) -> Queue:
    """A queue behind this machine as its login node, with what `put` brings: the run, and this very environment."""
    base, run = folder / "there", load.load(str(folder / "laptop" / "run.yaml")).run
    python = base / "env" / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    settings = {name: os.environ.get(name, "") for name in ("PYTHONPATH", "OMP_NUM_THREADS", "STOKER_METADATA")}
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in settings.items())
    token = f'if [ "$HF_TOKEN" ] && [ "$SLURM_JOB_ID" ]; then echo "$SLURM_JOB_ID" >> {folder}/tokens; fi\n'
    part = f'if [ "$SLURM_JOB_ID" ]; then echo "$SLURMD_NODENAME $5" >> {folder}/parts; fi\n'
    python.write_text(f'#!/bin/sh\n{exports}{token}{part}exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    line = LocalShell()
    line.send(made.files, str(base))
    host = Host(name="login", host="login", base=str(base), python=sys.executable)
    made_queue = Queue(line, host, run, notice_seconds)
    made_queue._probed = BoxFacts()  # this machine's network is not asked
    return made_queue


def run_dir(folder: Path) -> RunDir:
    """The run's directory there."""
    return RunDir(folder / "there" / "runs" / NAME)


def jobs(queue: Queue) -> list[str]:
    """Numbers of the run's jobs in the queue."""
    return [job["id"] for job in queue._jobs(NAME)]


def state(queue: Queue) -> str:
    return str((queue.status(NAME) or {})["state"])


def had_token(folder: Path) -> list[str]:
    """The jobs in whose environment the token was, one after the other."""
    return (folder / "tokens").read_text().split()


def parts(folder: Path) -> list[str]:
    """Which node did what in each job, one after the other: `train` or `join`."""
    return (folder / "parts").read_text().splitlines()


def worlds(folder: Path) -> list[int]:
    """With how many ranks each attempt trained."""
    return [event["world"] for event, _ in events.follow(run_dir(folder).events_file, 0) if event["event"] == "attempt"]


def steps(folder: Path) -> int:
    """How many steps were done so far."""
    done = events.steps(run_dir(folder).events_file) if run_dir(folder).events_file.exists() else {}
    return max(done, default=0)


def committed(folder: Path) -> list[int]:
    return [one.step for one in checkpoints.committed(run_dir(folder).checkpoints)]


def segments(folder: Path) -> list[list[str]]:
    """What the jobs noted: number, restarts, time, step before, step after, what."""
    path = run_dir(folder).path / "slurm" / "jobs"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def until(ready: Callable[[], Any], slurm: Slurm, folder: Path, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if ready():
            return
        time.sleep(0.2)
    logs = [path.read_text() for path in run_dir(folder).logs.glob("slurm-*.log")]
    raise AssertionError(f"not within {seconds} s: {slurm.say('squeue')}\n{segments(folder)}\n{logs}")


def uninterrupted(folder: Path) -> str:
    """The final weights of the same run on this machine without a queue."""
    there = RunDir(folder / "laptop" / "runs" / NAME)
    assert tiny_run.train(there) == 0
    return tiny_run.weights_sha(there.final)


def seconds_per_step(folder: Path) -> float:
    """What a step took in the run without a queue."""
    there = RunDir(folder / "laptop" / "runs" / NAME)
    return statistics.median(float(event["seconds"]) for event in events.steps(there.events_file).values())
