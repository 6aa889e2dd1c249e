"""What `train.exact` costs several processes, against torch's own DistributedDataParallel: alternating pairs of steps.

One training of ours, the same ranks, rows and micro batches throughout. Its steps take turns: one adds gradients up by
the canonical tree, one goes our other path (`train.exact: false`), where torch's DDP adds them up in buckets while the
last backward pass still runs. So a ratio is that of the two sums and nothing else, of two steps that follow each other;
`overhead.py` compares whole runs with a plain Trainer. Figures are tokens per wall second of the first rank, and per
processor second of all ranks.

The volume is what the kernel counted: the benchmark has a network of its own (Linux, root), whose loopback carries
nothing but the ranks' words. Beside it stands the formula, by sums and slices.

Usage: python benchmarks/exactness.py [--pairs 40] [--only lora] [--out FILE]
"""

import argparse
import ctypes
import datetime
import fcntl
import importlib
import json
import os
import platform
import socket
import statistics
import struct
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "invariant"), str(ROOT / "benchmarks")]

import overhead  # noqa: E402

LENGTH = 256
BATCH = 4
UNEVEN_BATCH = 12
"""Three micro batches for each of four ranks, six for each of two: no power of two, so that a rank has two sums."""
RANKS = (2, 4)
VOLUME_PAIRS = 3
METHODS = {"lora": "{method: lora, rank: 16}", "full": "{method: full}"}
SUMS = ("exact", "plain")
_NEW_NETWORK = 0x40000000
_SET_FLAGS, _UP_AND_RUNNING = 0x8914, 0x41


def own_network() -> bool:
    """Give this process, and all it forks, a network of its own with nothing but loopback; False where it may not."""
    if sys.platform != "linux" or ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP_AND_RUNNING))
    return True


def sent_bytes() -> int:
    """Bytes that went over this network's loopback so far, headers included."""
    lines = Path("/proc/self/net/dev").read_text(encoding="utf-8").splitlines()
    (loopback,) = (line.split(":")[1].split() for line in lines if line.strip().startswith("lo:"))
    return int(loopback[8])


def exact_bytes(elements: list[int], leaves: int, ranks: int, size: int = 4) -> float:
    """Bytes that a rank sends in a step with the canonical sum: a slice of each sum to every other rank, then its own.

    Args:
        elements: Elements of each bucket.
        leaves: Micro batches of the step.
        ranks: How many ranks.
        size: Bytes of an element.
    """
    from stoker.engine.exact import aligned_nodes
    from stoker.engine.parallel import Ranks

    ranges = Ranks(0, ranks).ranges(leaves)
    turns = max(len(aligned_nodes(one.start, one.stop)) for one in ranges)
    return sum((turns + 1) * (ranks - 1) * -(-bucket // ranks) * size for bucket in elements)


def plain_bytes(elements: int, ranks: int, size: int = 4) -> float:
    """The same of a ring: each rank sends all but its own slice twice."""
    return 2 * (ranks - 1) / ranks * elements * size


def order(pairs: int) -> list[str]:
    """Which sum each step takes: a pair to warm up, then pairs of which every other begins with the exact one."""
    return [sums for pair in range(pairs + 1) for sums in (SUMS if pair % 2 else SUMS[::-1])]


def prepared(folder: Path, method: str, ranks: int, batch: int, pairs: int) -> Any:
    """A run directory with data and plan."""
    name = f"{method}-{ranks}-{batch}"
    (folder / f"{name}.yaml").write_text(
        f"""
name: {name}
model: base
data: {{train: rows.jsonl, length: {LENGTH}, pack: true, on_bad_row: skip}}
tune: {METHODS[method]}
train: {{batch: {batch}, steps: {len(order(pairs))}, learning_rate: 1e-4, exact: true}}
where: {{micro: 1, arrange: rows, strategy: ddp, processes: {ranks}, gpus: 0}}
save: {{every: 1000 steps}}
native: {{trainer: {{report_to: []}}}}
""",
        encoding="utf-8",
    )
    known = sorted((folder / "runs").glob("*/data"))
    return overhead.planned(folder / f"{name}.yaml", known[0] if known else None)


def trained(run_dir: Any, pairs: int) -> list[dict[str, float]]:
    """Train once; what each step took and sent, the warm-up left out."""
    import tiny_run

    from stoker.rundir import events

    ranks = json.loads(run_dir.plan_file.read_text())["batch"]["devices"]

    def work(rank: int) -> int:
        from stoker.engine import train

        overhead.quiet(run_dir, "ours.log")
        marks = _marked(order(pairs))
        code = train.main(run_dir.path)
        (run_dir.path / f"marks-{rank}.json").write_text(json.dumps(marks))
        return code

    codes = tiny_run.in_ranks(ranks, work)
    assert set(codes) == {0}, (run_dir.path / "ours.log").read_text()[-2000:]
    tokens = [event["tokens"] for event in events.read(run_dir.events_file) if event["event"] == "step"]
    marks = [json.loads((run_dir.path / f"marks-{rank}.json").read_text()) for rank in range(ranks)]
    steps = []
    for number in range(2, len(tokens)):
        spent = [[b - a for a, b in zip(one[number - 1], one[number], strict=True)] for one in marks]
        wall, _, sent, summing, talking = spent[0]
        step = {"seconds": wall, "processor_seconds": sum(one[1] for one in spent), "bytes": sent / ranks}
        steps.append({"tokens": tokens[number], **step, "sum_seconds": summing, "collective_seconds": talking})
    return steps


def _marked(kinds: list[str]) -> list[tuple[float, ...]]:
    """In a child: the sums take turns; clocks, bytes and the seconds of the canonical sum at the end of each step."""
    import torch.distributed as dist

    from stoker.engine import callbacks, exact, trainer

    marks: list[tuple[float, ...]] = []
    spent = {"sum": 0.0, "collectives": 0.0}
    plain_end, plain_step = callbacks.Recorder.on_step_end, trainer.ExactSteps.training_step

    def on_step_end(self: Any, *args: Any, **words: Any) -> None:
        plain_end(self, *args, **words)
        marks.append((time.perf_counter(), time.process_time(), sent_bytes(), *spent.values()))

    def training_step(self: Any, model: Any, inputs: Any, *args: Any) -> Any:
        self._plan = self._plan.model_copy(update={"exact": kinds[inputs.step] == "exact"})
        self.__dict__.pop("_averaged", None)  # follows from the plan, and was looked up for the other sum
        return plain_step(self, model, inputs, *args)

    def around(module: Any, name: str, part: str) -> None:
        plain = getattr(module, name)

        def timed(*args: Any, **words: Any) -> Any:
            started = time.perf_counter()
            try:
                return plain(*args, **words)
            finally:
                spent[part] += time.perf_counter() - started

        setattr(module, name, timed)

    callbacks.Recorder.on_step_end = on_step_end  # type: ignore[method-assign]
    trainer.ExactSteps.training_step = training_step  # type: ignore[method-assign]
    around(exact, "reduce_nodes", "sum")
    around(dist, "all_to_all_single", "collectives")
    around(dist, "all_gather_into_tensor", "collectives")
    return marks


def cost(folder: Path, method: str, pairs: int) -> dict[str, Any]:
    """Ratios on two ranks, and what ranks sent there and elsewhere."""
    run_dir = prepared(folder, method, RANKS[0], BATCH, pairs)
    steps = trained(run_dir, pairs)
    kinds = order(pairs)[2:]
    by_sum = {sums: [step for step, kind in zip(steps, kinds, strict=True) if kind == sums] for sums in SUMS}
    paces = {
        sums: [(step["tokens"] / step["seconds"], step["tokens"] / step["processor_seconds"]) for step in some]
        for sums, some in by_sum.items()
    }
    found = list(zip(paces["exact"], paces["plain"], strict=True))
    parts = ("seconds", "sum_seconds", "collective_seconds")
    medians = {
        f"{sums}_{part}": statistics.median(step[part] for step in by_sum[sums]) for sums in SUMS for part in parts
    }
    elements = int(json.loads(run_dir.plan_file.read_text())["model"]["trainable_parameters"])
    volumes = [volume(elements, RANKS[0], BATCH, steps, kinds)]
    for ranks, batch in ((RANKS[0], UNEVEN_BATCH), (RANKS[1], BATCH), (RANKS[1], UNEVEN_BATCH)):
        few = trained(prepared(folder, method, ranks, batch, VOLUME_PAIRS), VOLUME_PAIRS)
        volumes.append(volume(elements, ranks, batch, few, order(VOLUME_PAIRS)[2:]))
    return {**overhead.summary(found, "stated", overhead.PACES), **medians, "volume": volumes}


def volume(elements: int, ranks: int, leaves: int, steps: list[dict[str, float]], kinds: list[str]) -> dict[str, float]:
    """Bytes a rank sends in a step: counted and by the formula, for both sums."""
    counted = {
        sums: statistics.median(step["bytes"] for step, kind in zip(steps, kinds, strict=True) if kind == sums)
        for sums in SUMS
    }
    return {
        "ranks": ranks,
        "leaves": leaves,
        "elements": elements,
        "exact_counted": counted["exact"],
        "exact_formula": exact_bytes([elements], leaves, ranks),
        "plain_counted": counted["plain"],
        "plain_formula": plain_bytes(elements, ranks),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--only", choices=METHODS, action="append")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/evidence/exactness.json")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if not own_network():
        sys.exit("exactness: the bytes are counted in a network of its own: run it as root on Linux")
    report: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "command": f"just exactness --pairs {options.pairs}",
        "machine": f"{os.cpu_count()} cores, {platform.platform()}",
        "versions": {name: version(name) for name in ("stoker", "torch", "transformers", "peft", "accelerate")},
        "work": f"Qwen2 6.5M, batch {BATCH} by 1, length {LENGTH}, 2 ranks by gloo over loopback, a thread each",
        "results": json.loads(options.out.read_text())["results"] if options.out.exists() else {},
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["STOKER_RUNS"] = str(folder / "runs")
        overhead.make_inputs(folder)
        for module in ("peft", "transformers", "stoker.engine.train"):
            importlib.import_module(module)  # once, before the children fork
        for method in options.only or METHODS:
            report["results"][method] = cost(folder, method, options.pairs)
            report["results"][method].pop("values")
            options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    overhead.tell(report["results"])
    for method, result in report["results"].items():
        for row in result["volume"]:
            print(method, row)


if __name__ == "__main__":
    main()
