"""Is what is judged what plans? Each published row that a run file can express, planned by the product and compared.

`python benchmarks/product_rows.py [CSV]`. A row becomes a run file by its words; the product plans it on its card.
The benchmark's figure is that of the row's own step as Stoker would run it: without what only other tools do.
"""

import argparse
import dataclasses
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import measurement_words as words
import measurements
from measurements import Measured

from stoker.config import load
from stoker.errors import StokerError
from stoker.estimate import memory, speed
from stoker.estimate.step import Foreign, Step
from stoker.facts.machine import Machine
from stoker.facts.shapes import ResolvedShape
from stoker.plan import make
from stoker.plan.data import DataFacts

OPTIMIZERS = {
    "adamw": "adamw_torch",
    "adamw_fused": "adamw",
    "adamw_8bit": "adamw_bnb_8bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
}
STRATEGIES = {"single": "single", "ddp": "ddp", "fsdp2": "fsdp2", "zero2": "zero2", "zero3": "zero3"}


@dataclass(frozen=True)
class Planned:
    """One row: the product's figures and the benchmark's, or why no run file says the same."""

    id: str
    reason: str = ""
    product: tuple[float, float] = (0.0, 0.0)
    """Peak bytes of a device, tokens per second."""
    benchmark: tuple[float, float] = (0.0, 0.0)

    @property
    def equal(self) -> bool:
        return not self.reason and self.product == self.benchmark


def planned(row: Measured) -> Planned:
    reason = unsaid(row)
    if reason:
        return Planned(row.id, reason)
    try:
        found = make.find(_inputs(row))
    except StokerError as error:
        return Planned(row.id, f"refused by the product: {error.code}")
    assert row.step
    assert row.card
    step = dataclasses.replace(row.step, foreign=Foreign(), expandable=True)
    judged = memory.estimate(step).device, speed.estimate(step, speed.hardware(row.card)).tokens_per_second
    return Planned(row.id, "", (found.way.memory.device, found.way.pace.tokens_per_second), judged)


def unsaid(row: Measured) -> str:
    """What of a row no run file can say; by the row's words, not by what the product makes of them."""
    step = row.step
    if step is None:
        return "no step: not compared at all"
    if row.card is None or row.card.kind != "cuda" or row.link != "card":
        return "card not known, or linked in another way than the catalogue says"
    checks = {
        "tensor, pipeline, context or expert parallel": max(
            getattr(step.foreign, f"{kind}_parallel") for kind in ("tensor", "pipeline", "context", "expert")
        )
        > 1,
        "fp8 or fp4 products": step.foreign.product_bits < 16,
        "the model sharded over a part of the devices": step.shard_devices not in (1, step.devices),
        "nodes that are not whole": step.devices % step.devices_per_node != 0,
        "weights that Stoker does not hold so": not _held_so(step),
        "no autocast": step.autocast != (step.compute != "fp32") and not _gathers_lowered(step),
        "lengths that differ": step.mean_length is not None or step.foreign.varied,
        "padding with a mask": step.masked and "packed mask" not in row.row["attention"].lower(),
        "selective recomputation": step.recompute == "selective",
        "a loss that Stoker does not have": step.loss not in ("logits_fp32", "liger"),
        "an optimizer that Stoker does not have": step.optimizer not in OPTIMIZERS or step.gradient_sets == 0,
        "ZeRO 1": step.strategy not in STRATEGIES,
        "an attention kernel that no name asks for": words.attention(row.row, words.era(row.row))
        not in ("sdpa", "flash_attention_2", "eager"),
        "hand-fused kernels": step.compiled and "compile" not in row.row["notes"].lower(),
        "offload without sharding": step.offload != "none" and step.strategy not in ("fsdp2", "zero2", "zero3"),
    }
    return next((reason for reason, holds in checks.items() if holds), "")


def _gathers_lowered(step: Step) -> bool:
    """Whether FSDP's mixed precision takes the place of autocast."""
    return step.strategy == "fsdp2" and step.adapter is None and not step.autocast and step.compute != "fp32"


def _held_so(step: Step) -> bool:
    if step.adapter is None:
        return step.weights == "fp32"
    quantised = step.weights in ("nf4", "nf4_double") and step.outer == "fp32"
    own = step.weights == step.outer == step.compute
    return (quantised or own) and step.adapter.dtype == step.adapter.whole_dtype == "fp32"


def _inputs(row: Measured) -> make.Inputs:
    assert row.step
    assert row.card
    step = row.step
    run = load.parse(json.dumps(run_file(row)), f"{row.id}.yaml")
    nodes = step.devices // step.devices_per_node
    machine = Machine.of_card(row.card, step.devices_per_node, nodes=nodes)
    asked = words.attention(row.row, words.era(row.row))
    shape = dataclasses.replace(step.shape, attention=(asked,))
    batch = run.train.batch
    data = DataFacts(batch, batch * step.length, step.length, step.length, "", has_eval=False, disk_bytes=0)
    return make.Inputs(run=run, machine=machine, shape=ResolvedShape(shape, "shipped"), data=data)


def run_file(row: Measured) -> dict[str, object]:
    """The run file that a row's words ask for."""
    step = row.step
    assert step
    native: dict[str, dict[str, object]] = {}
    if step.loss == "liger":
        native["trainer"] = {"use_liger_kernel": True}
    if step.weights == "nf4":
        native["quantization"] = {"bnb_4bit_use_double_quant": False}
    if step.strategy == "fsdp2" and step.offload == "all":
        native["fsdp"] = {"offload_policy": "cpu"}
    if _gathers_lowered(step):
        types = {"param_dtype": {"bf16": "bfloat16", "fp16": "float16"}[step.compute], "reduce_dtype": "float32"}
        native["fsdp"] = {**native.get("fsdp", {}), **types}
    if step.strategy.startswith("zero"):
        away = {"all": ("offload_param", "offload_optimizer"), "optimizer": ("offload_optimizer",), "none": ()}
        native["deepspeed"] = {"zero_optimization": {name: {"device": "cpu"} for name in away[step.offload]}}
    tune: dict[str, object] = {"method": "full"}
    if step.adapter:
        tune = {"method": "qlora" if step.weights.startswith("nf4") else "lora", "rank": step.adapter.rank}
        tune |= {"dropout": 0.1 if step.adapter.dropout else 0.0}
        tune |= {"targets": list(step.adapter.targets)} if step.adapter.targets else {}
        native |= {"lora": {"modules_to_save": list(step.adapter.whole)}} if step.adapter.whole else {}
    asked = words.attention(row.row, words.era(row.row))
    return {
        "model": "some/model",
        "data": {"train": "a.jsonl", "tokens": 1, "length": step.length, "pack": True},
        "tune": tune,
        "train": {
            "batch": step.micro * step.accumulation * step.devices,
            "optimizer": OPTIMIZERS[step.optimizer],
            "exact": False,
        },
        "where": {
            "micro": step.micro,
            "gradient_checkpointing": step.recompute == "full",
            "precision": step.compute,
            "attention": asked,
            "compile": "on" if step.compiled else "off",
            "arrange": "rows" if step.masked or asked == "flash_attention_2" else "grouped",
            "strategy": STRATEGIES[step.strategy] if step.strategy != "single" else "auto",
            **({} if step.loss == "liger" else {"loss": "plain"}),
        },
        "native": native,
    }


def account(rows: list[Measured]) -> dict[str, object]:
    """Counts, and the rows that differ."""
    told = [planned(row) for row in rows]
    said = [one for one in told if not one.reason]
    return {
        "rows": len(told),
        "expressible": len(said),
        "equal": sum(one.equal for one in said),
        "not expressible": dict(Counter(one.reason for one in told if one.reason).most_common()),
        "different": [dataclasses.asdict(one) for one in said if not one.equal],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", nargs="?", type=Path, default=measurements.TABLE)
    asked = parser.parse_args()
    print(json.dumps(account(measurements.read(asked.table)), indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
