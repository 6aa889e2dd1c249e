"""What several ranks and nodes cost, and what the planner expects of them.

    control     what each rank says, opens and calls per step beside the gradients, with 1, 2, 4 and 8 real ranks
    items       what a step's data costs a rank on its processor, by the size of the batch
    index       opening a set of 10^9 sequences, and going to any step of it
    checkpoint  how long a save takes by size and ranks, measured here
    published   the planner against published runs on several nodes
    planner     the planner's figures for 8 to 64 GPUs, and what a save must move there; nothing of it was run by us
Writes docs/evidence/scale.json and the tables of docs/concepts/scale.*; parts that are not asked for stay as they were.
Ranks are processes of this machine over gloo and loopback.
"""

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests"), str(ROOT / "tests/engine")]

import scale_report  # noqa: E402

EVIDENCE = ROOT / "docs" / "evidence" / "scale.json"
WORLDS = (1, 2, 4, 8)
SYSTEM_CALLS = "%file,%network,read,readv,write,writev,pread64,pwrite64,fsync,fdatasync"
"""Files and network; not waiting, memory and locks, which follow the clock."""
SAVE_WORLDS = (1, 2, 4)
WIDTHS = (448, 896, 2048)
"""Of two-block models with checkpoints of about 50, 200 and 1,000 MB."""
BATCHES = (64, 512, 4096)
SHARD_SEQUENCES, INDEX_SEQUENCES = 1_000_000, 1_000_000_000
NODES = (1, 2, 4, 8)
PER_NODE = 8
CARDS = ("H100-SXM", "A100-80-SXM4")
MODELS = {"7B": "Qwen/Qwen2.5-7B", "70B": "meta-llama/Meta-Llama-3-70B"}
METHODS = ("lora", "full")
SAVED_ON = ("H100-SXM", "RTX4090")


def control() -> dict[str, Any]:
    """Counts of two strategies over 1 to 8 ranks; system calls by strace, in runs of their own."""
    import counted_run
    import tiny_run

    told: dict[str, Any] = {"steps": counted_run.LAST - counted_run.FIRST}
    with tempfile.TemporaryDirectory() as folder:
        base = tiny_run.make_base_model(Path(folder) / "base")
        for strategy in ("ddp", "fsdp2"):
            for ranks in WORLDS:
                place = Path(folder) / f"{strategy}-{ranks}"
                counts = counted_run.counted(counted_run.made(place, base, strategy, ranks))
                calls = _system_calls(counted_run.made(Path(f"{place}-traced"), base, strategy, ranks))
                told[f"{strategy} {ranks}"] = _one_rank(counts) | {"system_calls": calls}
                print(strategy, ranks, json.dumps(told[f"{strategy} {ranks}"]), flush=True)
    return told


def _one_rank(counts: list[dict[str, Any]]) -> dict[str, Any]:
    """The most that any rank did: what the first one does for all must not hide behind a mean."""
    import counted_run

    most: dict[str, Any] = {}
    for kind in ("control", "data", "main"):
        kinds = [counted_run.of(one, kind) for one in counts]
        most[kind] = {key: max(one.get(key, 0) for one in kinds) for key in sorted(set().union(*kinds))}
    beats = [counted_run.of(one, "other").get("os.rename", 0) * _steps() for one in counts]
    return most | {
        "store_bytes": max(one["store_bytes"] for one in counts),
        "pulses": max(beats),
        "seconds": round(max(one["seconds"] for one in counts), 2),
    }


def _steps() -> int:
    import counted_run

    return counted_run.LAST - counted_run.FIRST


def _system_calls(run_dir: Any) -> dict[str, float] | None:
    """Calls for files and network of the busiest rank, all threads, per step; None without strace."""
    import counted_run

    tracer = shutil.which("strace")
    if tracer is None:
        return None
    tracing: dict[int, subprocess.Popen[bytes]] = {}

    def beside(rank: int, step: int) -> None:
        report = run_dir.path / f"calls-{rank}"
        if step == counted_run.FIRST:
            words = ["-f", "-c", "-U", "calls,name", "-e", f"trace={SYSTEM_CALLS}", "-o", str(report)]
            words += ["-p", str(os.getpid())]
            tracing[rank] = subprocess.Popen([tracer, *words], stderr=subprocess.DEVNULL)
            while "TracerPid:\t0" in Path("/proc/self/status").read_text():
                time.sleep(0.02)
        if step == counted_run.LAST:
            tracing[rank].send_signal(signal.SIGINT)
            tracing[rank].wait()

    ranks = len(counted_run.counted(run_dir, beside))
    found = []
    for rank in range(ranks):
        lines = (run_dir.path / f"calls-{rank}").read_text().splitlines()
        counts = (re.fullmatch(r"\s*(\d+)\s+(\w+)", line) for line in lines)
        found.append({one[2]: int(one[1]) / _steps() for one in counts if one and one[2] != "total"})
    return max(found, key=lambda one: sum(one.values()))


def items() -> dict[str, Any]:
    """Seconds in which one of 64 ranks makes its part of a step, arranged both ways, and works out the tree of sums."""
    import tiny_run

    from stoker.engine import exact
    from stoker.engine.dataset import Arrangement, PreparedSplit, make_item
    from stoker.engine.parallel import Ranks
    from stoker.rundir.prepared import Split

    told: dict[str, Any] = {"ranks": 64}
    with tempfile.TemporaryDirectory() as folder:
        rows = tiny_run.random_rows(max(BATCHES), seed=5, longest=64)
        report = tiny_run.write_split(Path(folder) / "train", rows)
        split = PreparedSplit(Path(folder) / "train", Split.model_validate(report))
        for batch in BATCHES:
            for kind in ("rows", "grouped"):
                arrangement = Arrangement(kind=kind, micro=1, length=64, flatten=False, pad=0)
                told[f"{kind} {batch}"] = _median(
                    lambda b=batch, a=arrangement: make_item(split, list(range(b)), a, 0, Ranks(0, 64))
                )
            ranges = Ranks(0, 64).ranges(batch)
            told[f"tree {batch}"] = _median(lambda r=ranges: [exact.aligned_nodes(one.start, one.stop) for one in r])
    return told


OPENED = """
import json, sys, time
from pathlib import Path
from stoker.engine.dataset import Arrangement, PreparedSplit, make_item
from stoker.engine.parallel import Ranks
from stoker.rows.order import Order
from stoker.rundir.prepared import Split
def resident():
    "Its own memory; pages of mapped files are the kernel's cache, which it takes back"
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon")))
folder, batch = Path(sys.argv[1]), 512
facts = Split.model_validate_json((folder / "split.json").read_text())
before, began = resident(), time.monotonic()
split = PreparedSplit(folder, facts)
opened = time.monotonic() - began
order = Order("digest", 42, len(split), batch)
arrangement = Arrangement(kind="rows", micro=8, length=64, flatten=False, pad=0)
seeks = []
for step in range(0, order.steps_per_epoch, order.steps_per_epoch // 50):
    began = time.monotonic()
    item = make_item(split, order.sequences(step), arrangement, step, Ranks(0, 64))
    seeks.append(time.monotonic() - began)
print(json.dumps({"sequences": len(split), "shards": len(facts.shards), "open_seconds": round(opened, 2),
    "first_step_seconds": round(seeks[0], 3), "slowest_step_seconds": round(max(seeks), 3),
    "megabytes": round((resident() - before) / 1e6, 1)}))
"""


def index() -> dict[str, Any]:
    """One real shard of a million sequences under a thousand names; in a process of its own, for its memory."""
    import numpy as np
    import tiny_run

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        rows = [[np.arange(8)]] * SHARD_SEQUENCES
        facts = tiny_run.write_split(folder / "one", rows)
        names = [f"shard-{number:05d}" for number in range(INDEX_SEQUENCES // SHARD_SEQUENCES)]
        for name in names:
            (folder / name).symlink_to(folder / "one" / facts["shards"][0])
        counts = {key: facts[key] * len(names) for key in ("sequences", "segments", "tokens", "trained_tokens")}
        (folder / "split.json").write_text(json.dumps(facts | counts | {"shards": names, "files": {}}))
        said = subprocess.run([sys.executable, "-c", OPENED, made], capture_output=True, text=True, check=True)
    return dict(json.loads(said.stdout))


def _median(work: Callable[[], object]) -> float:
    """Seconds, of nine times."""
    seconds = []
    for _ in range(9):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return round(statistics.median(seconds), 5)


def checkpoint() -> list[dict[str, Any]]:
    """Saves of models trained in full: alone, and shared out by fsdp2."""
    import tiny_run

    from stoker.rundir import events

    told = []
    for width in WIDTHS:
        for ranks in SAVE_WORLDS:
            with tempfile.TemporaryDirectory() as folder:
                base = tiny_run.make_base_model(Path(folder) / "base", width=width)
                where = f"processes: {ranks}, strategy: fsdp2" if ranks > 1 else "processes: 1"
                text = f"""
model: {base}
data: {{train: rows.jsonl, length: 64}}
tune: {{method: full}}
train: {{batch: 4, steps: 6, learning_rate: 1e-4}}
save: {{every: 2 steps, keep: 2}}
where: {{micro: 1, gpus: 0, {where}}}
native: {{trainer: {{report_to: []}}}}
"""
                run_dir = tiny_run.make_run(Path(folder) / "run", text, tiny_run.random_rows(24, seed=5, longest=64))
                assert tiny_run.train(run_dir) == 0, (run_dir.path / "child.log").read_text()[-2000:]
                saves = [one for one in events.read(run_dir.events_file) if one["event"] == "checkpoint"]
            stalls = [one["stall_seconds"] for one in saves]
            written = [one["seconds"] - one["stall_seconds"] for one in saves]
            told.append(
                {
                    "megabytes": round(saves[-1]["bytes"] / 1e6),
                    "ranks": ranks,
                    "saves": len(saves),
                    "stall_seconds": round(statistics.median(stalls), 3),
                    "write_seconds": round(statistics.median(written), 3),
                }
            )
            print(json.dumps(told[-1]), flush=True)
    return told


def published() -> dict[str, Any]:
    """Errors over published rows, by how many nodes they ran on; tensor and pipeline parallel ones apart."""
    import measurements
    import planner

    rows = planner.checked(measurements.read(measurements.TABLE))
    bounds = json.loads(planner.INTERVALS.read_text(encoding="utf-8"))["intervals"]
    pairs = [pair for pair in planner.all_compared(rows) if pair.figure == "speed" and pair.grade in planner.GRADED]
    ours = [pair for pair in pairs if pair.of.strategy != "split"]
    of_nodes = {pair.of.id: -(-pair.of.step.devices // pair.of.step.devices_per_node) for pair in pairs}
    cuts = {"1": (1, 1), "2": (2, 2), "4": (4, 4), "8": (8, 8), "16 to 64": (16, 64)}
    told: dict[str, Any] = {}
    for name, (least, most) in cuts.items():
        chosen = [pair for pair in ours if least <= of_nodes[pair.of.id] <= most]
        told[name] = planner.summary(chosen, bounds)
    told["several, in all"] = planner.summary([pair for pair in ours if of_nodes[pair.of.id] > 1], bounds)
    for method in ("pretrain", "lora"):
        chosen = [pair for pair in ours if of_nodes[pair.of.id] > 1 and pair.of.method == method]
        told[f"several, {method}"] = planner.summary(chosen, bounds)
    split = [pair for pair in pairs if pair.of.strategy == "split" and of_nodes[pair.of.id] > 1]
    told["several, tensor or pipeline parallel"] = planner.summary(split, bounds)
    return told


def figures() -> dict[str, Any]:
    """The planner's own figures, and the arithmetic of a save."""
    told: dict[str, Any] = {"rows": [], "saves": []}
    for label, model in MODELS.items():
        for method in METHODS:
            for card in CARDS:
                told["rows"] += [_figure(label, model, method, card, nodes) for nodes in NODES]
            if method == "full":
                told["saves"] += [_save(label, model, card, nodes) for card in SAVED_ON for nodes in (1, 2, 8)]
    return told


def _found(model: str, method: str, card: str, nodes: int) -> Any:
    from stoker.config import load
    from stoker.facts import cards, shapes
    from stoker.facts.machine import Machine
    from stoker.plan import data, make, money

    text = f"""
model: {model}
data: {{train: rows.jsonl, length: 4096, tokens: 1000000000}}
tune: {{method: {method}}}
train: {{batch: 512, epochs: 1}}
"""
    run = load.parse(text, "run.yaml")
    shape = shapes.resolve(run.model, Path("nowhere"), run.tokenizer, run.data.length)
    machine = Machine.of_card(cards.find(card), PER_NODE, nodes=nodes)
    offer = money.offer(run, card, PER_NODE)
    return make.find(make.Inputs(run=run, machine=machine, shape=shape, data=data.declared(run), offer=offer))


def _figure(label: str, model: str, method: str, card: str, nodes: int) -> dict[str, Any]:
    from stoker.plan import money

    found = _found(model, method, card, nodes)
    cost = money.cost(found.seconds, found.constraints.devices, found.inputs.offer, nodes)
    way = found.way
    return {
        "model": label,
        "method": method,
        "card": card,
        "devices": found.constraints.devices,
        "fits": "likely" if found.sure and found.fits == "tight" else found.fits,
        "strategy": way.strategy,
        "micro": way.micro,
        "memory_gib": [round(each / 2**30, 1) for each in (way.memory.device, *way.memory_range)],
        "tokens_per_second": [round(each) for each in found.tokens_per_second],
        "hours": [round(each / 3600, 2) for each in found.seconds],
        "communication_share": round(way.pace.parts["communication"] / way.pace.step_seconds, 3),
        "usd": [round(each) for each in (cost.amount, *cost.amount_range)] if cost else None,
    }


def _save(label: str, model: str, card: str, nodes: int) -> dict[str, Any]:
    """Every tensor is put together on all devices, then copied to the first one's main memory, then written."""
    from stoker.estimate import communication, memory, speed
    from stoker.facts.rates import rates
    from stoker.plan import search

    found = _found(model, "full", card, nodes)
    step, size = found.way.step, memory.checkpoint_bytes(found.way.step)
    links = speed.links_of(search.hardware(found.inputs.machine), rates())
    return {
        "model": label,
        "card": card,
        "devices": step.devices,
        "gigabytes": round(size / 1e9),
        "gather_seconds": round(communication._gather(step, size, step.devices, links), 1),
        "host_seconds": round(size / links.host, 1),
        "write_seconds": {f"{rate:g}": round(size / rate / 1e9) for rate in (0.5, 2, 6)},
    }


PARTS = {
    "control": control,
    "items": items,
    "index": index,
    "checkpoint": checkpoint,
    "published": published,
    "planner": figures,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[], help="all of them, if none is named")
    asked = parser.parse_args()
    told = json.loads(EVIDENCE.read_text(encoding="utf-8")) if EVIDENCE.is_file() else {}
    for name in asked.parts or PARTS:
        told[name] = PARTS[name]()
    told["date"] = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    told["machine"] = {"cpus": os.cpu_count(), "system": platform.system(), "shared": True}
    told["versions"] = {name: version(name) for name in ("stoker", "torch", "transformers", "accelerate")}
    EVIDENCE.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    scale_report.write(ROOT / "docs" / "concepts", told)


if __name__ == "__main__":
    main()
