"""Published measurements as steps of the planner: each row becomes a `Step`, a card and measured figures, or a reason.

Reads the table's own columns. No row is dropped: what cannot be described says why, for memory, speed and fit apart.
"""

import csv
import functools
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import measurement_words as words

from stoker.estimate.step import Adapter, Foreign, Step, replace_foreign
from stoker.facts.cards import Card
from stoker.facts.shapes import ModelShape, shipped
from stoker.plan.choices import kernel

DATA = Path(__file__).parent / "data"
TABLE = DATA / "training_measurements.csv"
COLUMNS = (
    "id", "source_repo", "source_commit_or_date", "model", "method", "lora_r", "lora_targets", "seq_len", "packed",
    "micro_batch", "grad_accum", "grad_checkpointing", "attention", "optimizer", "compute_dtype", "weights_dtype",
    "parallelism", "gpu", "n_gpus", "peak_mem_gb_per_gpu", "mem_kind", "tokens_per_s_total", "tokens_per_s_per_gpu",
    "notes", "flag_mem", "flag_tput", "shape_key", "grade_mem", "grade_tput",
)  # fmt: skip
DEFAULT_RANK = 16


@dataclass(frozen=True)
class Measured:
    """One row: what ran, what was measured, and why a figure cannot be compared."""

    id: str
    source: str
    method: str
    """`pretrain`, `full`, `lora`, `qlora` or `int8`; empty where none."""
    strategy: str
    """`single`, `replicated`, `sharded` or `split` (tensor or pipeline parallel)."""
    step: Step | None
    card: Card | None
    link: str
    """How the cards of a box are linked: `card` as their own figure says, `pcie`, or `slow`."""
    grade_memory: str
    grade_speed: str
    figure: str
    """Which of the planner's figures was measured: `allocated`, `reserved` or `device`."""
    memory: float | None
    """Measured peak of one device, bytes."""
    speed: float | None
    """Measured tokens per second of all devices, padding not counted where the source did not."""
    kept: float
    """Share of a step's tokens that `speed` counts."""
    outcome: str
    """`fits`, `oom`, `limit` where the row states the longest that fits, or empty where it is no such statement."""
    capacity: int | None
    """Bytes of the card."""
    memory_reason: str
    """Why memory cannot be compared; empty where it can."""
    speed_reason: str
    fit_reason: str
    row: dict[str, str]


def read(table: Path = TABLE) -> list[Measured]:
    """All rows of a table, in order."""
    with table.open(encoding="utf-8", newline="") as file:
        return [measured({**dict.fromkeys(COLUMNS, ""), **_clean(row)}) for row in csv.DictReader(file)]


def _clean(row: dict[Any, Any]) -> dict[str, str]:
    return {str(key): (value or "").strip() for key, value in row.items() if isinstance(value, str | None) and key}


def measured(row: words.Row) -> Measured:
    """One row by its columns."""
    step, reason, kept = _step(row)
    named = words.named_cards(row["gpu"])
    memory_gb, outcome = words.number(row["peak_mem_gb_per_gpu"]), _outcome(row)
    card = named[0] if len(named) == 1 else None
    own = Measured(
        id=row["id"],
        source=row["source_repo"],
        method=_group(row),
        strategy=_strategy_class(step) if step else "",
        step=step,
        card=card,
        link=words.link(row["gpu"]),
        grade_memory=row["grade_mem"].upper(),
        grade_speed=row["grade_tput"].upper(),
        figure=figure(row),
        memory=memory_gb * 1e9 if memory_gb else None,
        speed=_speed(row),
        kept=kept,
        outcome=outcome,
        capacity=words.capacity(row["gpu"], (memory_gb or 0) * 1e9),
        memory_reason=reason,
        speed_reason=reason,
        fit_reason=reason,
        row=row,
    )
    return replace(
        own,
        memory_reason=reason or _memory_reason(own),
        speed_reason=reason or _speed_reason(own, named),
        fit_reason=reason or _fit_reason(own),
    )


def figure(row: words.Row) -> str:
    """Which figure a memory reading is; one whose tool is not stated is taken for nvidia-smi's."""
    kind = row["mem_kind"].lower()
    if "alloc" in kind or "active" in kind:
        return "allocated"
    return "reserved" if "reserv" in kind else "device"


# Why a figure cannot be compared.


def _memory_reason(own: Measured) -> str:
    row = own.row
    if own.memory is None:
        return "no memory figure"
    if own.grade_memory in ("X", "F", ""):
        return f"grade {own.grade_memory or '(none)'}: the table says not to compare the figure"
    if "capacity" in row["mem_kind"].lower():
        return "the figure is the card's size"
    return _memory_words(own) or _length_reason(row)


def _memory_words(own: Measured) -> str:
    """What the memory model does not describe."""
    assert own.step
    if own.step.foreign.expert_parallel > 1:
        return "expert parallelism is not described"
    if "offload" in own.row["notes"].lower() and "activation" in own.row["notes"].lower():
        return "activation offload is not described"
    if "offloaded gc" in own.row["notes"].lower():
        return "activation offload is not described"
    return _foreign(own.row)


def _foreign(row: words.Row) -> str:
    if words.FOREIGN.search(row["gpu"]):
        return "no CUDA card"
    return "not PyTorch" if "jax" in row["attention"].lower() or "paxml" in row["model"].lower() else ""


def _length_reason(row: words.Row) -> str:
    if not words.number(row["seq_len"]):
        return "length not stated"
    return "" if words.number(row["micro_batch"]) else "micro batch not stated"


def _speed_reason(own: Measured, named: tuple[Card, ...]) -> str:
    row = own.row
    if own.speed is None:
        return "no tokens/s figure"
    if own.grade_speed not in ("A", "B", "C"):
        return f"grade {own.grade_speed or '(none)'}: the table says not to compare the figure"
    if not row["gpu"].strip(" ?"):
        return "card not stated"
    if len(named) != 1:
        return f"card not in the catalogue, or several: {row['gpu']}"
    if re.search(r"power.limited", row["gpu"].lower()):
        return "power-limited card, limit not stated"
    if "unpadded" in row["flag_tput"].lower() and words.era(row) < words.Date(2026, 1, 1):
        return "the allocator's cache was emptied at every step (measurements before 2026)"
    return _foreign(row) or _speed_words(own) or _length_reason(row)


def _speed_words(own: Measured) -> str:
    if not own.row["compute_dtype"].strip(" ?"):
        return "arithmetic not stated"
    if own.step and own.step.offload == "none" and "activation" in own.row["notes"] and "offload" in own.row["notes"]:
        return "activation offload is not described"
    return ""


def _outcome(row: words.Row) -> str:
    """A grade F row says that it ran, or that it did not."""
    if row["grade_mem"].upper() != "F":
        return ""
    flag = row["flag_mem"].lower()
    if re.search(r"result oom|\boom point", f"{row['notes'].lower()} {flag}"):
        return "oom"
    return "limit" if "boundary" in flag else "fits"


def _fit_reason(own: Measured) -> str:
    if not own.outcome:
        return "no statement of fit"
    if own.capacity is None:
        return "card not stated"
    if not own.row["grad_checkpointing"].strip(" ?") or re.match(r"\?(?! \(prob)", own.row["grad_checkpointing"]):
        return "recomputation not stated"
    return _memory_words(own) or _length_reason(own.row)


def _speed(row: words.Row) -> float | None:
    total = words.number(row["tokens_per_s_total"])
    if total:
        return total
    single, count = words.number(row["tokens_per_s_per_gpu"]), words.number(row["n_gpus"])
    return single * count if single and count else None


def _group(row: words.Row) -> str:
    kind = words.method(row).kind
    if kind in ("lora", "qlora"):
        weights = words.held(row, kind, "bf16", False).weights
        # A quantised base is QLoRA, as plan.ranges calls it; LLM.int8, which Stoker does not train over, is its own.
        return "int8" if weights == "int8" else kind if weights in ("fp32", "bf16", "fp16", "") else "qlora"
    return "pretrain" if kind == "full" and row["method"].lower().startswith("pretrain") else kind


def _strategy_class(step: Step) -> str:
    if step.foreign.tensor_parallel > 1 or step.foreign.pipeline_parallel > 1:
        return "split"
    if step.devices == 1:
        return "single"
    return "replicated" if step.strategy == "ddp" else "sharded"


# The step.


def _step(row: words.Row) -> tuple[Step | None, str, float]:
    """A row's step, or why there is none; and the share of its tokens that is not padding."""
    shape, why = _shape(row)
    tune, layout = words.method(row), parallel(row)
    unknown = words.unknown_words(row)
    if shape is None or tune.reason or unknown or isinstance(layout, str):
        return None, why or tune.reason or unknown or str(layout), 1.0
    when, arithmetic = words.era(row), words.compute(row)
    sharded = layout["strategy"] in ("fsdp2", "zero3")
    own = words.held(row, tune.kind, arithmetic, sharded)
    if own.reason:
        return None, own.reason, 1.0
    micro, cap = words.whole(row["micro_batch"], 1), words.whole(row["seq_len"], 1024)
    length = words.lengths(row, cap, micro)
    asked = words.attention(row, when)
    masked = words.masked(row, asked, micro)
    form, shifted = words.loss(row, shape, when)
    step = Step(
        shape=shape,
        micro=micro,
        length=length.longest,
        mean_length=length.mean_padded,
        accumulation=words.accumulation(row, micro, _replicas(layout["foreign"], layout["devices"])),
        adapter=_adapter(row, shape, own, tune.kind, sharded),
        weights=own.weights,
        outer=own.outer,
        compute=arithmetic,
        autocast=own.autocast,
        attention=kernel(asked, _capability(row), arithmetic, masked=masked),
        masked=masked,
        recompute=words.recompute(row, when),
        loss=form,
        optimizer=words.optimizer(row, when),
        gradient_sets=0 if words.in_backward(row) else 1,
        compiled=words.compiled(row),
        bucket=words.DEEPSPEED_BUCKET if words.by_deepspeed(row) else None,
        **layout,
    )
    step = replace_foreign(
        step,
        varied=words.varied(row),
        master=own.master,
        shifted_logits=shifted,
        held_outputs=words.held_outputs(row),
        autocast_cache=own.autocast,
        frozen_inputs="bnb" in row["weights_dtype"].lower() and when < words.BNB_DROPS_INPUTS,
        product_bits=words.product_bits(row),
    )
    return step, "", length.kept


def _capability(row: words.Row) -> float:
    """Of the oldest card that a row names; Ampere's where none is known, as most rows are of such cards."""
    return min((card.compute_capability for card in words.named_cards(row["gpu"])), default=8.0)


def _adapter(row: words.Row, shape: ModelShape, own: words.Held, kind: str, sharded: bool) -> Adapter | None:  # noqa: FBT001
    if kind == "full":
        return None
    dtype = words.adapter_dtype(row, own, words.compute(row), words.era(row), sharded=sharded)
    return Adapter(
        rank=words.whole(row["lora_r"], DEFAULT_RANK),
        targets=words.targets(row, shape),
        dropout=words.by_trainer(row),  # scripts around the Trainer set 0.05 or 0.1; loops of their own mostly none
        dtype=dtype,
        whole=words.trained_whole(row),
        whole_dtype=own.outer,  # peft casts adapters, not the copies of whole layers
    )


def parallel(row: words.Row) -> dict[str, Any] | str:
    """How devices share the step, as fields of a `Step`, or why that cannot be said."""
    text, count = row["parallelism"].lower(), words.whole(row["n_gpus"], 1)
    if text.strip(" ?") == "" and (count > 1 or not row["n_gpus"].strip(" ?")):
        return "parallelism not stated"
    if not row["n_gpus"].strip(" ?") and text != "none":
        return "number of cards not stated"
    if "device_map" in text or "naive" in text:
        return "layers on several cards in turn: which card holds what is not in the row"
    if re.search(r"zero\?|see script|per launcher|see doc", text) or text == "megatron":
        return f"parallel sizes not stated: {text}"
    sizes = {key: _size(text, key) for key in ("tp", "pp", "cp", "vp", "ep", "sp")}
    shared = sizes["cp"] * max(sizes["sp"], _size(text, "sequence[- ]parallel(?:ism)?"))
    replicas = count / (sizes["tp"] * sizes["pp"] * shared)
    if replicas < 1 or replicas != int(replicas):
        return f"parallel sizes do not divide the cards: {text}"
    return {
        "strategy": _strategy(row, text, count),
        "devices": count,
        "shard_devices": _shards(text, int(replicas) * shared, count),
        "devices_per_node": words.per_node(row, count),
        "offload": _offload(row, text),
        "foreign": Foreign(
            tensor_parallel=sizes["tp"],
            pipeline_parallel=sizes["pp"],
            pipeline_chunks=sizes["vp"],
            context_parallel=shared,
            expert_parallel=sizes["ep"],
        ),
    }


def _replicas(foreign: Foreign, devices: int) -> int:
    return devices // (foreign.tensor_parallel * foreign.pipeline_parallel * foreign.context_parallel)


def _size(text: str, key: str) -> int:
    found = re.search(rf"\b{key}[ =:-]?(\d+)", text)
    return max(1, int(found[1])) if found else 1


def _shards(text: str, replicas: int, count: int) -> int:
    """Devices that the model or the optimizer's state is shared out over."""
    stated = _size(re.sub(r"fsdp[12]\b", "fsdp", text), "(?:fsdp|dp_shard|shard)")  # FSDP2 is a version
    if 1 < stated <= replicas:
        return stated
    return min(8, count) if "hsdp" in text or "hybrid" in text else replicas


def _strategy(row: words.Row, text: str, count: int) -> str:
    optimizer = row["optimizer"].lower()
    zero = re.search(r"zero[ _-]?(?:stage[ _-]?)?(\d)", text) or re.search(r"zero stage (\d)", optimizer)
    if not zero and count == 1:
        zero = re.search(r"deepspeed zero[ _-]?(\d)", row["notes"].lower())  # the engine runs on one card too
    if zero:
        return {"0": "ddp", "1": "zero1", "2": "zero2"}.get(zero[1], "zero3")
    if "no_shard" in text or "no-shard" in text:
        return "ddp"
    if "grad-op" in text or "grad_op" in text or "shard_grad" in text:
        return "zero2"  # FSDP's SHARD_GRAD_OP: gradients and optimizer state shared out, weights whole between steps
    if ("fsdp" in text and "fsdp0" not in text) or "hsdp" in text:
        return "fsdp2"
    if "megatron" in text:
        return "zero1" if "distributed" in f"{optimizer} {row['weights_dtype'].lower()} {text}" and count > 1 else "ddp"
    return "ddp" if count > 1 else "single"


def _offload(row: words.Row, text: str) -> str:
    optimizer = row["optimizer"].lower()
    if "paged" in optimizer and "8bit" not in optimizer:
        return "optimizer"  # bitsandbytes' paged state is in unified memory, which torch's figures do not count
    if "offload" not in f"{text} {optimizer}":
        return "none"
    only_state = "optimizer offload" in text or "zero2" in text or "cpu-offloaded adam" in optimizer
    return "optimizer" if only_state else "all"


# Shapes.


@functools.cache
def _own_shapes() -> dict[str, Any]:
    return dict(json.loads((DATA / "model_shapes.json").read_text(encoding="utf-8")))


def _shape(row: words.Row) -> tuple[ModelShape | None, str]:
    """The model's shape by `shape_key`, else by its name; and why there is none."""
    stored = _own_shapes()
    for key in filter(None, (row["shape_key"], row["model"], row["model"].rstrip("?"))):
        name = stored["aliases"].get(key, key)
        if name in shipped():
            return shipped()[name], ""
        if name in stored["models"]:
            return _from_table(stored["models"][name], name, row)
    return None, "shape of the model not known"


def _from_table(sizes: dict[str, Any], name: str, row: words.Row) -> tuple[ModelShape | None, str]:
    if "MLA" in sizes.get("note", ""):
        return None, "latent attention (MLA) is not described"
    if "bert" in name.lower():
        return None, "an encoder, not a decoder"
    heads = sizes["heads"] or sizes["hidden"] // 128  # where not stated: heads of 128 channels, as most have
    biased, gated = bool(sizes.get("linear_bias")), bool(sizes["gated_mlp"])
    learned = "learned pos-emb sized to seq_len" in row["notes"]
    shape = ModelShape(
        family="llama" if gated else "mpt",  # a plain GPT: LayerNorm, GELU, no rotation; or Llama's block
        layers=sizes["layers"],
        hidden=sizes["hidden"],
        heads=heads,
        kv_heads=sizes["kv_heads"] or heads,
        head_dim=sizes["head_dim"] or sizes["hidden"] // heads,
        intermediate=sizes.get("moe_intermediate") or sizes["intermediate"],
        vocab=sizes.get("vocab_padded") or sizes["vocab"],
        tie_embeddings=bool(sizes["tie_embeddings"]),
        gated_mlp=gated,
        qkv_bias=biased or bool(sizes.get("qkv_bias")),
        output_bias=biased,
        mlp_bias=biased,
        experts=sizes.get("n_expert") or 0,
        experts_per_token=sizes.get("n_expert_per_token") or 0,
        norm_weights=2 if biased else 1,
        learned_positions=words.whole(row["seq_len"], 0) if learned else 0,
    )
    return shape, ""
