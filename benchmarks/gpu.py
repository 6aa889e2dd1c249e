"""Speed, memory and losses of one training: Stoker against the bare Trainer, Unsloth and LLaMA-Factory.

Every side trains the same documents, one a row, in Stoker's order, with the micro batches and options of its plan
(precision, attention, optimizer, adapter); Stoker itself runs as planned. Each of the others alternates with it in
pairs of processes. Figures: real tokens per second after the first step, peak memory (what torch reserved of a GPU;
without one, of main memory), and the losses of every step. Unsloth and LLaMA-Factory want packages of their own, so
each may have a Python of its own; one that is not installed is said to be absent.

Written for a GPU, and not yet run on one: `just gpu --model Qwen/Qwen2.5-0.5B --rows rows.jsonl --length 1024`. Without
a model it takes a tiny one, which a CPU trains in a minute. Usage: python benchmarks/gpu.py [--pairs 5] [--out FILE]
"""

import argparse
import datetime
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gpu_sides
import overhead

ROOT = overhead.ROOT
FIGURES = ("tokens_per_second", "peak_bytes")
METHODS = {"lora": "{method: lora, rank: 16}", "qlora": "{method: qlora, rank: 16}", "full": "{method: full}"}
TRAINER_OPTIONS = (
    *("learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm", "optim", "use_cpu"),
    *("bf16", "fp16", "gradient_checkpointing", "gradient_checkpointing_kwargs"),
)
"""Those of the plan that every Trainer has."""


def main() -> int:
    asked = parsed()
    os.environ |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["STOKER_RUNS"] = str(folder / "runs")
        if asked.model is None:
            os.environ["HF_HUB_OFFLINE"] = "1"
            overhead.make_inputs(folder)
            asked.model, asked.rows = folder / "base", folder / "rows.jsonl"
        run_dir = planned(folder, asked)
        plan = json.loads(run_dir.plan_file.read_text())
        given = told(run_dir, plan, folder)
        for module in ("peft", "transformers", "stoker.engine.train"):
            importlib.import_module(module)  # once, before Stoker's processes fork
        report = {**stated(plan, asked), "sides": {}}
        for name, python in asked.pythons.items():
            report["sides"][name] = compared(name, python, run_dir, given, asked.pairs)
            asked.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    tell(report["sides"])
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a hub id or a folder; needs --rows")
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--method", choices=METHODS, default="lora")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--unsloth", default=sys.executable, help="the Python that has it")
    parser.add_argument("--llama-factory", default=sys.executable, help="the Python that has it")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/evidence/gpu.json")
    asked = parser.parse_args()
    if (asked.model is None) != (asked.rows is None):
        parser.error("--model and --rows go together")
    asked.pythons = {"bare": sys.executable, "unsloth": asked.unsloth, "llama_factory": asked.llama_factory}
    return asked


def planned(folder: Path, asked: argparse.Namespace) -> Any:
    """A run directory with prepared rows and a plan for one device."""
    model = Path(asked.model).resolve() if Path(asked.model).exists() else asked.model
    path = folder / "gpu.yaml"
    path.write_text(
        f"""
model: {model}
data: {{train: {asked.rows.resolve()}, length: {asked.length}, pack: false}}
tune: {METHODS[asked.method]}
train: {{batch: {asked.batch}, steps: {asked.steps}, epochs: 1000, learning_rate: 1e-4, eval_every: never}}
where: {{gpus: {min(1, gpus())}, arrange: rows}}
""",
        encoding="utf-8",
    )
    return overhead.planned(path)


def gpus() -> int:
    """How many there are, without a call that would keep Stoker's forked processes from using them."""
    from stoker.facts import machine

    return len(machine.examine().devices)


def told(run_dir: Any, plan: dict[str, Any], folder: Path) -> gpu_sides.Given:
    """What the other sides are told."""
    import bare as yardstick

    from stoker.rows.order import Order
    from stoker.rundir import prepared

    run, report = run_dir.run(), prepared.read_report(run_dir.data)
    rows = yardstick.read_rows(run_dir.data / "train")
    assert report is not None
    assert len(rows) == report.train.sequences, "only the first shard is read here: take fewer rows"
    order = Order(report.digest, run.train.seed, len(rows), run.train.batch)
    steps = [order.sequences(step) for step in range(run.train.steps)]
    native = plan["native"]
    return {
        "model": str(run.model),
        "rows": [[int(token) for token in rows[index][0]] for step in steps for index in step],
        "micro": plan["batch"]["micro"],
        "accumulation": plan["batch"]["accumulation"],
        "seed": run.train.seed,
        "method": run.tune.method,
        "length": run.data.length,
        "trainer": {name: native["trainer"][name] for name in TRAINER_OPTIONS},
        "load": native["model"],
        "lora": native["lora"],
        "folder": str(folder / "sides"),
    }


def compared(name: str, python: str, run_dir: Any, given: gpu_sides.Given, count: int) -> dict[str, Any]:
    """Pairs of Stoker and another side; or why there are none."""
    if reason := absent(name, python):
        return {"absent": reason}
    tokens = [sum(map(len, step)) for step in steps_of(given)]
    losses: dict[str, list[float]] = {}
    found = overhead.pairs(
        count,
        lambda _: ours(run_dir, losses),
        lambda _: theirs(name, python, given, tokens, losses),
    )
    apart = [abs(one - other) / other for one, other in zip(losses["stoker"], losses[name], strict=True)]
    return {
        **overhead.summary(found, "none: stated", FIGURES),
        "losses": losses,
        "losses_apart": max(apart),
        "versions": versions(python),
    }


def steps_of(given: gpu_sides.Given) -> list[list[list[int]]]:
    """The rows of each step."""
    batch = given["micro"] * given["accumulation"]
    return [given["rows"][first : first + batch] for first in range(0, len(given["rows"]), batch)]


@functools.cache
def absent(name: str, python: str) -> str:
    """Why a side cannot be run; empty where it can."""
    module = gpu_sides.MODULES[name]
    query = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    done = subprocess.run([python, "-c", query], check=False)
    return f"{module} is not installed in the Python it was looked for in" if done.returncode else ""


@functools.cache
def versions(python: str) -> dict[str, str]:
    """Of what a Python has."""
    wanted = ("torch", "transformers", "peft", "accelerate", "bitsandbytes", "unsloth", "llamafactory")
    query = f"""
import importlib.metadata, json
found = {{one.metadata["Name"].lower(): one.version for one in importlib.metadata.distributions()}}
print(json.dumps({{name: found[name] for name in {wanted!r} if name in found}}))
"""
    return json.loads(subprocess.run([python, "-c", query], check=True, stdout=-1).stdout)


def ours(run_dir: Any, losses: dict[str, list[float]]) -> overhead.Figure:
    import tiny_run

    pace, _ = overhead.ours(run_dir)
    losses["stoker"] = [float.fromhex(one) for one in tiny_run.losses(run_dir).values()]
    return pace, overhead.noted(run_dir.path)["peak_bytes"]


def theirs(
    name: str, python: str, given: gpu_sides.Given, tokens: list[int], losses: dict[str, list[float]]
) -> overhead.Figure:
    """One process of another side."""
    folder = Path(given["folder"]) / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "given.json").write_text(json.dumps(given))
    with (folder / "log").open("w") as log:
        words = [python, str(ROOT / "benchmarks/gpu_sides.py"), name, str(folder)]
        done = subprocess.run(words, stdout=log, stderr=log, check=False)
    assert done.returncode == 0, (folder / "log").read_text()[-2000:]
    found = overhead.noted(folder)
    losses[name] = found["losses"]
    return overhead.pace(folder, tokens)[0], found["peak_bytes"]


def stated(plan: dict[str, Any], asked: argparse.Namespace) -> dict[str, Any]:
    """What was compared, and where."""
    choices = ("device", "card", "precision", "attention", "gradient_checkpointing", "loss", "batch")
    return {
        "what": "one training by Stoker, the bare Trainer, Unsloth and LLaMA-Factory: tokens/s, peak memory, losses",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "says": "speed and memory of this GPU" if plan["device"] == "cuda" else "that it runs: no GPU was used",
        "plan": {name: plan[name] for name in choices if name in plan},
        "model": "Qwen2 6.5M, random" if Path(asked.model).name == "base" else str(asked.model),
        "work": {name: getattr(asked, name) for name in ("method", "length", "batch", "steps")},
        "versions": versions(sys.executable),
    }


def tell(sides: dict[str, Any]) -> None:
    for name, side in sides.items():
        if "absent" in side:
            print(f"{name}: absent, {side['absent']}")
            continue
        for figure in FIGURES:
            low, high = side[figure]["interval_95"]
            print(f"stoker / {name}, {figure}: {side[figure]['ratio_median']:.3f} [{low:.3f}, {high:.3f}]")
        print(f"stoker and {name}, losses apart: {side['losses_apart']:.1e}")


if __name__ == "__main__":
    sys.exit(main())
