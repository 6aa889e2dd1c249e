"""Readers of a run of a million steps: `watch`, `report`, `runs`, `logs`, a pull, a supervisor's start, as processes.

Each is run several times; the median of its wall seconds and the largest peak of its memory count (bar: 2 s, 100 MB).
`--old` writes the events as Stoker did before they were cut: one file, with every sequence id of every step.

Usage: python benchmarks/long_run.py [--steps 1000000] [--old] [--out FILE]
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from stoker.config import load
from stoker.rows.order import Order, check
from stoker.rundir import events, layout, segments
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir

ROOT = Path(__file__).resolve().parent.parent
BAR_SECONDS, BAR_BYTES = 2.0, 100e6
REPEATS = 3
BATCH, SEQUENCES = 16, 1_000_000
SAVE_EVERY = 1000
RUN = """model: {shape: llama, layers: 1, width: 64, heads: 1}
tokenizer: {train: bpe, vocab: 300}
data: {train: text.txt}
train: {objective: pretrain, batch: 16}
"""
PULL = """
import sys
from pathlib import Path
from stoker.hosts.shell import LocalShell
from stoker.places import box_pull
from stoker.rundir.layout import RunDir
box_pull.pull(LocalShell(), sys.argv[1], RunDir(Path(sys.argv[2])))
"""
WAIT = """
import json, os, subprocess, sys, time
began = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
seconds, code = time.perf_counter() - began, os.waitstatus_to_exitcode(status)
print(json.dumps([seconds, used.ru_utime + used.ru_stime, used.ru_maxrss, code]))
"""
"""A small process of its own: a child's peak is never below the memory of the process that forked it."""
SUPERVISOR = """
import sys
from pathlib import Path
from stoker.supervise.supervisor import Supervisor
Supervisor(Path(sys.argv[1]))._recall()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--old", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "long_run.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), given.steps, REPEATS, old=given.old)
    result = {
        "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}",
        "machine": platform.processor() or platform.machine(),
        **found,
    }
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    sys.exit(0 if result["within_bars"] or given.old else 1)


def measured(folder: Path, steps: int, repeats: int, *, old: bool = False) -> dict[str, Any]:
    """What each reader of a run of so many steps takes."""
    run_dir = generate(folder, steps, old=old)
    stoker = [sys.executable, "-m", "stoker"]
    target = folder / "laptop" / "runs" / "long"
    commands = {
        "watch": [*stoker, "watch", "long", "--once"],
        "report": [*stoker, "report", "long"],
        "runs": [*stoker, "runs"],
        "logs": [*stoker, "logs", "long"],
        "pull": [sys.executable, "-c", PULL, str(run_dir.path), str(target)],
        "supervisor": [sys.executable, "-c", SUPERVISOR, str(run_dir.path)],
    }
    readers = {name: _measured(command, folder, repeats) for name, command in commands.items()}
    within = all(
        one["seconds"] <= BAR_SECONDS and one["peak_bytes"] <= BAR_BYTES and one["exit_code"] == 0
        for one in readers.values()
    )
    kept = [one.path.stat().st_size for one in segments.older(run_dir.events_file)]
    sizes = {
        "steps": steps,
        "segments": len(kept),
        "events_bytes": sum(kept) + run_dir.events_file.stat().st_size,
        "pulled_bytes": (target / "events.jsonl").stat().st_size,
    }
    bars = {"seconds": BAR_SECONDS, "bytes": BAR_BYTES}
    return {"old": old, **sizes, "bars": bars, "within_bars": within, "readers": readers}


def generate(folder: Path, steps: int, *, old: bool) -> RunDir:
    """A run directory with the events of so many steps, saves among them, as the trainer and others write them."""
    (folder / "text.txt").write_text("text\n", encoding="utf-8")
    (folder / "long.yaml").write_text(RUN, encoding="utf-8")
    run_dir = RunDir(folder / "runs" / "long")
    layout.write(run_dir, load.load(str(folder / "long.yaml"), []))
    run_dir.logs.mkdir(parents=True)
    run_dir.log_file(1).write_text("line\n" * 1000, encoding="utf-8")
    events.append(
        run_dir.events_file,
        "attempt",
        pid=1,
        world=1,
        tier="EXACT",
        changed=[],
        resumed_step=0,
        total_steps=steps,
        steps_per_epoch=SEQUENCES // BATCH,
        batch=BATCH,
        trainable_parameters=1,
    )
    order = Order("0" * 64, 42, SEQUENCES, BATCH)
    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    pending: list[str] = []
    for step in range(1, steps + 1):
        at += datetime.timedelta(seconds=1)
        pending.append(_step(order, step, at, old=old))
        if step % SAVE_EVERY == 0 or step == steps:
            save = {
                "step": step,
                "seconds": 1.0,
                "stall_seconds": 0.1,
                "bytes": 1000,
                "best": False,
                "digest": "0" * 64,
            }
            pending.append(_line(at, "checkpoint", save))
            _append(run_dir.events_file, pending, cuts=not old)
            pending.clear()
    return run_dir


def _append(path: Path, lines: list[str], *, cuts: bool) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(lines)
    if cuts:
        log = EventLog(path)
        log.cut()
        log.close()


def _step(order: Order, step: int, at: datetime.datetime, *, old: bool) -> str:
    ids = order.sequences(step - 1)
    return _line(
        at,
        "step",
        {
            "step": step,
            "epoch": step / order.steps_per_epoch,
            "learning_rate": 0.0002 * (1 - step / 1e7),
            **({"sequences": ids} if old else {"sequences": len(ids), "order": check(ids)}),
            "micro_batches": 4,
            "tokens": 32768,
            "trained_tokens": 32752,
            "padded_tokens": 0,
            "seconds": 1.000123,
            "wait_seconds": 0.000123,
            "memory_bytes": 0,
            "loss": 2.5 + 1.0 / step,
            "grad_norm": 0.7123456789,
        },
    )


def _line(at: datetime.datetime, kind: str, fields: dict[str, Any]) -> str:
    return json.dumps({"at": at.isoformat(timespec="milliseconds"), "event": kind, **fields}) + "\n"


def _measured(command: list[str], folder: Path, repeats: int) -> dict[str, Any]:
    """Median of wall and processor seconds, largest peak of memory, of a process."""
    environment = {**os.environ, "STOKER_RUNS": str(folder / "runs"), "STOKER_HOME": str(folder / "home")}
    seconds, busy, peaks, codes = [], [], [], []
    for _ in range(repeats):
        said = subprocess.run(
            [sys.executable, "-c", WAIT, *command], env=environment, cwd=folder, capture_output=True, check=True
        )
        took, used, peak, code = json.loads(said.stdout)
        seconds.append(took)
        busy.append(used)
        peaks.append(peak * 1024)
        codes.append(code)
    return {
        "seconds": round(statistics.median(seconds), 3),
        "processor_seconds": round(statistics.median(busy), 3),
        "peak_bytes": max(peaks),
        "exit_code": max(codes, key=abs),
    }


if __name__ == "__main__":
    main()
