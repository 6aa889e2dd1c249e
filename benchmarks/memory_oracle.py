"""Holds the closed form of memory to the oracle: random steps, both figures, errors by group.

    python benchmarks/memory_oracle.py --out docs/evidence/memory-oracle.json

The oracle (`stoker.engine.trace`) runs each step with fake tensors and replays CUDA's allocator; the closed form
(`stoker.estimate.memory`) only counts. The textbook formula is scored on the same steps, as a negative control.
"""

import argparse
import datetime
import json
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from stoker.estimate import layers, memory
from stoker.estimate.step import BYTES, Adapter, Step, from_json, to_json
from stoker.facts import shapes
from stoker.facts.shapes import ModelShape

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "phi", "gpt2", "gpt_neox")
_OWN_KEYS = ("gpt2", "gpt_neox", "phi")
"""Families without shared keys."""
_TIED = ("gemma", "gemma2", "gemma3_text", "gpt2")
_WINDOWED = ("mistral", "gemma2", "gemma3_text")
"""Families that see at most 4,096 tokens back: shorter rows are drawn, which need no mask for that."""
_LARGEST_LOGITS = 16_384 * 152_064
PACKAGES = ("torch", "transformers", "peft", "accelerate", "bitsandbytes")
BARS = {"allocated": {"median": 0.01, "max": 0.04}, "reserved": {"median": 0.03}}
FIGURES = ("allocated", "reserved", "replayed")
"""`reserved` replays two blocks, `replayed` all of them; both are held to the oracle's reserved bytes."""


def draw(count: int, seed: int, *, deepest: int = 12) -> Iterator[Step]:
    """Random steps: methods, families, sizes, lengths, checkpointing, losses, optimizers, strategies."""
    chosen = random.Random(seed)
    for _ in range(count):
        yield _step(chosen, deepest)


def _step(chosen: random.Random, deepest: int) -> Step:
    method = chosen.choice(("full", "lora", "qlora"))
    shape = _shape(chosen, deepest)
    strategy = chosen.choices(("single", "ddp", "fsdp2"), (5, 1, 3))[0]
    devices = 1 if strategy == "single" else chosen.choice((2, 4, 8))
    length = chosen.choice((256, 512, 1024, 2048, 2048 if shape.family in _WINDOWED else 4096))
    most = max(1, min(16_384, _LARGEST_LOGITS // shape.vocab) // length)
    words: dict[str, Any] = {
        "shape": shape,
        "micro": chosen.choice([micro for micro in (1, 2, 4, 8, 16) if micro <= most]),
        "length": length,
        "attention": "eager" if shape.family == "gemma2" else "flash",
        "recompute": chosen.choice(("none", "none", "full", "full", "selective")),
        "loss": chosen.choice(("logits_fp32", "logits_fp32", "logits", "chunked", "fused", "liger")),
        "strategy": strategy,
        "devices": devices,
        "shard_devices": devices if strategy == "fsdp2" else 1,
        **_optimizer(chosen, strategy),
        **_precision(chosen, method),
    }
    if shape.family != "gemma2" and strategy != "fsdp2":
        words["masked"] = chosen.random() < 0.2
    return Step(**words)


def _shape(chosen: random.Random, deepest: int) -> ModelShape:
    family = chosen.choice(FAMILIES)
    head = chosen.choice((64, 128))
    hidden = chosen.choice((768, 1024, 1536, 2048, 2560, 3072, 4096, 5120))
    heads = hidden // head
    shared = 1 if family in _OWN_KEYS else chosen.choice([by for by in (1, 2, 4, 8) if heads % by == 0])
    inner = round(hidden * chosen.choice((8 / 3, 3.5, 4, 5.3)) / 64) * 64
    words = {
        **shapes._FAMILIES[family],
        "tie_embeddings": family in _TIED or chosen.random() < 0.3,
        "learned_positions": 4096 if family == "gpt2" else 0,
    }
    return ModelShape(
        family=family,
        layers=chosen.choice([depth for depth in (2, 2, 3, 3, 4, 4, 6, 8, 12) if depth <= deepest]),
        hidden=hidden,
        heads=heads,
        kv_heads=heads // shared,
        head_dim=head,
        intermediate=4 * hidden if family == "gpt2" else inner,
        vocab=chosen.choice((32_000, 50_304, 128_256, 151_936)),
        **words,
    )


def _optimizer(chosen: random.Random, strategy: str) -> dict[str, Any]:
    every = ("adamw", "adamw_fused", "adamw_8bit", "paged_adamw_8bit", "adafactor", "sgd")
    accumulation = chosen.choice((1, 1, 4))
    exact = accumulation > 1 and chosen.random() < 0.5
    return {
        "optimizer": chosen.choice(every[:2] if strategy == "fsdp2" else every),
        "accumulation": accumulation,
        "gradient_sets": memory.gradient_sets(accumulation, exact=exact),
    }


def _precision(chosen: random.Random, method: str) -> dict[str, Any]:
    rank, dropout = chosen.choice((8, 16, 64)), chosen.random() < 0.5
    if method == "full":
        return chosen.choice(
            (
                {"weights": "fp32", "autocast": True},
                {"weights": "fp32", "autocast": True},
                {"weights": "bf16", "autocast": False},
                {"weights": "fp32", "compute": "fp32", "autocast": False},
            )
        )
    if method == "lora":
        half = {"weights": "bf16", "autocast": False, "adapter": Adapter(rank=rank, dropout=dropout, dtype="bf16")}
        mixed = {"weights": "bf16", "autocast": True, "adapter": Adapter(rank=rank, dropout=dropout)}
        return chosen.choice((half, mixed, {**mixed, "weights": "fp32"}))
    return {
        "weights": chosen.choice(("nf4", "nf4_double")),
        "outer": chosen.choice(("fp32", "bf16")),
        "autocast": True,
        "adapter": Adapter(rank=rank, dropout=dropout),
    }


# ---- measuring


def textbook(step: Step) -> int:
    """Weights + gradients + Adam + 34 bytes a token, channel and layer + 12 bytes a token and word."""
    shape, trained = step.shape, layers.trainable_parameters(step.shape, step.adapter)
    weights = shape.parameters() * BYTES.get(step.weights, 0.5) / step.weight_parts
    updates = trained * (4 / step.gradient_parts + 8 / step.state_parts)
    blocks = 1 if step.recompute == "full" else shape.layers
    return int(weights + updates + step.tokens * (34 * shape.hidden * blocks + 12 * shape.vocab))


def measure(step: Step) -> dict[str, Any]:
    """The oracle's figures of one step."""
    from stoker.engine.trace import trace

    started = time.perf_counter()
    traced = trace(step)
    found = {"allocated": traced.allocated, "reserved": traced.reserved, "moment": traced.moment}
    return {"step": to_json(step), "oracle": found, "seconds": round(time.perf_counter() - started, 1)}


def score(row: dict[str, Any]) -> dict[str, Any]:
    """A measured step with the closed form's figures and the textbook's."""
    step = from_json(row["step"])
    estimate = memory.estimate(step)
    closed = {name: getattr(estimate, name) for name in (*FIGURES, "moment")}
    oracle = {**row["oracle"], "replayed": row["oracle"]["reserved"]}
    return {**row, "oracle": oracle, "closed": closed, "textbook": dict.fromkeys(FIGURES, textbook(step))}


def errors(rows: list[dict[str, Any]], figure: str, by: str = "closed") -> list[float]:
    """Relative errors against the oracle, signed."""
    return [row[by][figure] / row["oracle"][figure] - 1 for row in rows]


def summary(found: list[float]) -> dict[str, float]:
    """Errors as shares."""
    sizes = sorted(map(abs, found))
    return {
        "n": len(sizes),
        "median": round(statistics.median(sizes), 5),
        "p90": round(sizes[int(0.9 * (len(sizes) - 1))], 5),
        "max": round(sizes[-1], 5),
        "bias": round(statistics.median(found), 5),
    }


GROUPS: dict[str, Callable[[Step], str]] = {
    "method": lambda step: "full" if step.adapter is None else "lora" if step.weights in BYTES else "qlora",
    "strategy": lambda step: step.strategy if step.devices == 1 else f"{step.strategy} x{step.devices}",
    "family": lambda step: step.shape.family,
    "recompute": lambda step: step.recompute,
    "loss": lambda step: step.loss,
    "optimizer": lambda step: step.optimizer,
    "precision": lambda step: f"{step.weights}, {'autocast ' if step.autocast else ''}{step.compute}",
}


def report(rows: list[dict[str, Any]], failed: list[str], seed: int) -> dict[str, Any]:
    """The evidence."""
    grouped: dict[str, dict[str, Any]] = {}
    for name, key in GROUPS.items():
        members = defaultdict(list)
        for row in rows:
            members[key(from_json(row["step"]))].append(row)
        grouped[name] = {
            member: {figure: summary(errors(some, figure)) for figure in FIGURES}
            for member, some in sorted(members.items())
        }
    closed = {figure: summary(errors(rows, figure)) for figure in FIGURES}
    control = {figure: summary(errors(rows, figure, "textbook")) for figure in BARS}
    worst = sorted(rows, key=lambda row: -abs(row["closed"]["allocated"] / row["oracle"]["allocated"] - 1))
    return {
        "date": datetime.date.today().isoformat(),  # noqa: DTZ011
        "command": f"python benchmarks/memory_oracle.py --count {len(rows) + len(failed)} --seed {seed} --out FILE",
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "seed": seed,
        "rows": len(rows),
        "not_traced": failed,
        "bars": BARS,
        "closed": closed,
        "passes": {figure: _passes(closed[figure], bars) for figure, bars in BARS.items()},
        "negative_control": {
            "formula": textbook.__doc__,
            **control,
            "passes": {figure: _passes(control[figure], bars) for figure, bars in BARS.items()},
        },
        "same_moment": round(statistics.mean(row["closed"]["moment"] == row["oracle"]["moment"] for row in rows), 3),
        "groups": grouped,
        "worst": [_brief(row) for row in worst[:10]],
    }


def _passes(found: dict[str, float], bars: dict[str, float]) -> bool:
    return all(found[name] <= bar for name, bar in bars.items())


def _brief(row: dict[str, Any]) -> dict[str, Any]:
    step = from_json(row["step"])
    words = {name: key(step) for name, key in GROUPS.items()}
    sizes = {"layers": step.shape.layers, "hidden": step.shape.hidden, "micro": step.micro, "length": step.length}
    shares = {figure: round(row["closed"][figure] / row["oracle"][figure] - 1, 4) for figure in FIGURES}
    return {**words, **sizes, "oracle": row["oracle"], "closed": row["closed"], "error": shares}


def gather(count: int, seed: int, store: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Scored rows, measured where the store does not have them yet; and what could not be traced."""
    known = store.read_text(encoding="utf-8").splitlines() if store.exists() else []
    measured = {from_json(row["step"]): row for row in map(json.loads, known)}
    rows, failed = [], []
    with store.open("a", encoding="utf-8") as kept:
        for step in draw(count, seed):
            row = measured.get(step)
            if row is None:
                try:
                    row = measure(step)
                except (RuntimeError, ValueError, AssertionError, AttributeError) as error:
                    failed.append(f"{step.shape.family}, {step.weights}: {error}"[:200])
                    continue
                kept.write(json.dumps(row) + "\n")
                kept.flush()
            rows.append(score(row))
    return rows, failed


def main() -> None:
    """Measure what is not measured yet, score everything, write the evidence."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=300)
    options.add_argument("--seed", type=int, default=4)
    options.add_argument("--fresh", type=int, default=60, help="rows of a seed that nobody looked at while writing")
    options.add_argument("--fresh-seed", type=int, default=77)
    options.add_argument("--rows", type=Path, default=Path("memory-oracle-rows.jsonl"), help="measured steps, kept")
    options.add_argument("--out", type=Path, required=True)
    asked = options.parse_args()
    evidence = report(*gather(asked.count, asked.seed, asked.rows), asked.seed)
    if asked.fresh:
        rows, failed = gather(asked.fresh, asked.fresh_seed, asked.rows)
        closed = {figure: summary(errors(rows, figure)) for figure in FIGURES}
        passed = {figure: _passes(closed[figure], bars) for figure, bars in BARS.items()}
        worst = max(rows, key=lambda row: abs(row["closed"]["allocated"] / row["oracle"]["allocated"] - 1))
        found = {"closed": closed, "passes": passed, "not_traced": failed, "worst": _brief(worst)}
        evidence["fresh"] = {"seed": asked.fresh_seed, "rows": len(rows), **found}
    asked.out.write_text(json.dumps(evidence, indent=2) + "\n", encoding="utf-8")
    shown = ("rows", "closed", "passes", "negative_control", "fresh")
    print(json.dumps({key: evidence[key] for key in shown if key in evidence}, indent=2))


if __name__ == "__main__":
    main()
