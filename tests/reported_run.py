"""A run directory written by hand with all that a page shows: curves, evals, a restart, samples, saves, a plan."""

import datetime
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker.config import load
from stoker.launch import plan_inputs
from stoker.plan.make import make_plan
from stoker.plan.plan import Plan
from stoker.rundir import checkpoints, files, layout, segments
from stoker.rundir.layout import RunDir

BEGAN = datetime.datetime(2026, 11, 15, 8, 0, tzinfo=datetime.timezone.utc)
STEPS, EVERY = 120, 40
HOSTILE = "<script>alert('prompt')</script> & \"quotes\""


def planned(card: str = "RTX4090", price: str = "2.5 CNY/h") -> Plan:
    run_file = load.load("scratch_tiny", [f"where.price={price}"])
    return make_plan(plan_inputs.inputs(run_file, None, plan_inputs.machine(card, run_file.run)))


def make(runs: Path, name: str = "medical", *, steps: int = STEPS, end: str | None = "done") -> RunDir:
    """A run of so many steps that ended in one of the ways of a run, or has not (None)."""
    run_dir = RunDir(runs / name)
    layout.write(run_dir, load.load("scratch_tiny", [f"name={name}"]), machine={"processor": "a CPU", "cpu_count": 8})
    made = planned()
    counts = made.steps.model_copy(update={"total": steps, "per_epoch": EVERY})
    files.write_json(run_dir.plan_file, made.model_copy(update={"name": name, "steps": counts}).model_dump())
    write_events(run_dir, [*trained(made, steps), *ended(end, steps)])
    return run_dir


def trained(made: Plan, steps: int) -> Iterator[dict[str, Any]]:
    """A restart in the middle: the steps since the last save are done again."""
    attempt = {"event": "attempt", "tier": "EXACT", "changed": [], "total_steps": steps}
    half, saved = steps // 2, steps // 2 // EVERY * EVERY
    yield {**attempt, "resumed_step": 0}
    yield from steps_of(made, 1, half)
    yield {"event": "restart", "attempt": 1, "reason": "hang", "step": half, "wait_seconds": 5.0}
    yield {**attempt, "resumed_step": saved}
    yield from steps_of(made, saved + 1, steps)
    yield {"event": "sample", "prompt": HOSTILE, "wanted": "yes", "before": "no", "after": "yes"}


def steps_of(made: Plan, first: int, last: int) -> Iterator[dict[str, Any]]:
    for number in range(first, last + 1):
        tokens, seconds = 8000, 8000 / made.speed.tokens_per_second
        yield {
            "event": "step",
            "step": number,
            "epoch": number / EVERY,
            "tokens": tokens,
            "seconds": seconds,
            "loss": loss(number),
            "learning_rate": 3e-4,
            "wait_seconds": 0.0,
            "memory_bytes": made.memory.peak_reserved_bytes,
        }
        if number % EVERY == 0:
            yield {"event": "eval", "step": number, "eval_loss": loss(number) + 0.1, "perplexity": 9.0, "seconds": 1.0}
            yield {"event": "checkpoint", "step": number, "bytes": 1000, "stall_seconds": 0.1, "seconds": 1.0}


def loss(step: int) -> float:
    return 2 + 3 * math.exp(-step / 30) + 0.1 * math.sin(step)


def ended(how: str | None, steps: int) -> list[dict[str, Any]]:
    if how == "failed":
        error = {"code": "STK405", "where": "", "fields": {"step": steps, "loss": "nan"}}
        return [{"event": "error", "program": "train", "error": error}]
    return [{"event": "end", "status": how, "step": steps}] if how else []


def write_events(run_dir: RunDir, found: list[dict[str, Any]], *, cuts: bool = False) -> None:
    """One a second; cut into segments as a trainer does, where that is asked for."""
    lines = [
        json.dumps({"at": (BEGAN + datetime.timedelta(seconds=number)).isoformat(timespec="milliseconds"), **event})
        for number, event in enumerate(found)
    ]
    for begin in range(0, len(lines), 10_000):
        with run_dir.events_file.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines[begin : begin + 10_000])
        if cuts and run_dir.events_file.stat().st_size > segments.SEGMENT_BYTES:
            segments.cut(run_dir.events_file)


def save(run_dir: RunDir, step: int) -> str:
    """A committed checkpoint; its digest."""
    made = checkpoints.folder_name(step)
    folder = run_dir.checkpoints / made
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    entry = {"bytes": 7, "sha256": files.sha256(folder / "model.safetensors")}
    said = checkpoints.Commit(
        step=step,
        created=BEGAN.isoformat(),
        data_digest="d" * 64,
        order_version=1,
        world=1,
        fingerprint={},
        files={"model.safetensors": checkpoints.FileEntry(**entry)},
    ).model_dump()
    record = checkpoints.sealed(said)
    files.write_json(folder / checkpoints.COMMIT_NAME, record)
    return str(record["digest"])
