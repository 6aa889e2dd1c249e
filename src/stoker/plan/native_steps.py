"""What native options make of a step, and which of them the figures do not know. Pure."""

import re
from typing import Any

from stoker import messages
from stoker.config.run import Run
from stoker.estimate import layers
from stoker.estimate.step import Offload
from stoker.facts import native_figures
from stoker.facts.shapes import ModelShape
from stoker.plan import choices, optimizers

TABLES = {"embed_tokens": ("embed_tokens", "wte", "embed_in", "word_embeddings"), "lm_head": choices.HEADS}
"""Names that embedding and output layer have in the families, by the estimate's."""
_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
_BUCKET = 500_000_000
"""DeepSpeed's `reduce_bucket_size` where its configuration does not state it."""


def offload(run: Run, strategy: str) -> Offload:
    """What is held in main memory: by FSDP's policy, or by DeepSpeed's two."""
    if strategy == "fsdp2":
        return "all" if run.native.fsdp.get("offload_policy") == "cpu" else "none"
    if not strategy.startswith("zero"):
        return "none"
    zero = _zero(run)
    if _device(zero, "offload_param") != "none":
        return "all"
    return "optimizer" if _device(zero, "offload_optimizer") != "none" else "none"


def bucket(run: Run, strategy: str) -> int | None:
    """Numbers in DeepSpeed's gradient buffers; None for the width squared, which is the Trainer's `auto`."""
    stated = _zero(run).get("reduce_bucket_size", _BUCKET) if strategy.startswith("zero") else None
    return None if stated in (None, "auto") else int(float(stated))


def gathers_in(run: Run, strategy: str, precision: str) -> bool:
    """Whether FSDP gathers every weight in the type of the products and adds gradients in fp32, instead of autocast."""
    policy = run.native.fsdp
    same = policy.get("param_dtype") == _DTYPES.get(precision) and policy.get("reduce_dtype") == "float32"
    return strategy == "fsdp2" and run.tune.method == "full" and same


def casts(run: Run, strategy: str, precision: str) -> bool:
    """Whether autocast lowers the inputs of products."""
    return precision != "fp32" and not gathers_in(run, strategy, precision) and not optimizers.rounds(run)


def single_quantisation(run: Run) -> bool:
    """Whether the scales of 4-bit weights stay in fp32."""
    return run.native.quantization.get("bnb_4bit_use_double_quant") is False


def not_planned(run: Run, strategy: str, precision: str, shape: ModelShape) -> list[str]:
    """Options that change memory or speed and are in no figure."""
    blocks = ["trainer", "model"]
    blocks += ["lora"] if run.tune.method != "full" else []
    blocks += ["quantization"] if run.tune.method == "qlora" else []
    blocks += ["fsdp"] if strategy == "fsdp2" else ["deepspeed"] if strategy.startswith("zero") else []
    names = native_figures.not_counted(run, tuple(blocks))
    if gathers_in(run, strategy, precision):
        names = [one for one in names if one not in ("native.fsdp.param_dtype", "native.fsdp.reduce_dtype")]
    if run.native.quantization.get("bnb_4bit_compute_dtype") == _DTYPES.get(precision, "float32"):
        names = [one for one in names if one != "native.quantization.bnb_4bit_compute_dtype"]
    return [f"`{one}`" for one in names] + _partly(run, strategy, shape)


def targets(run: Run, shape: ModelShape) -> tuple[list[str], list[str]]:
    """Names of layers that an adapter's targets are of all blocks, and the targets that are something else."""
    if run.tune.method == "full" or isinstance(run.tune.targets, str):
        return [], []
    names = layers.adaptable(shape)
    last = {one: one.rpartition(".")[2] for one in run.tune.targets}
    known = [one for one, name in last.items() if name in names and not re.search(r"\d", one.removesuffix(name))]
    return [last[one] for one in known], [one for one in last if one not in known]


def _partly(run: Run, strategy: str, shape: ModelShape) -> list[str]:
    """Options of which a part is counted."""
    found = [messages.text("not_planned.liger")] if run.native.trainer.get("use_liger_kernel") else []
    known = tuple(name for names in TABLES.values() for name in names)
    found += [f"`tune.targets: {one}`" for one in targets(run, shape)[1]]
    if run.tune.method != "full":
        saved = run.native.lora.get("modules_to_save") or ()
        found += [f"`native.lora.modules_to_save: {one}`" for one in saved if not one.endswith(known)]
    if strategy.startswith("zero"):
        blocks = [name for name in ("offload_param", "offload_optimizer") if _device(_zero(run), name) == "nvme"]
        found += [f"`native.deepspeed.zero_optimization.{name}.device: nvme`" for name in blocks]
    return found


def _zero(run: Run) -> dict[str, Any]:
    settings = run.native.deepspeed
    return settings.get("zero_optimization", {}) if isinstance(settings, dict) else {}


def _device(zero: dict[str, Any], name: str) -> str:
    return str((zero.get(name) or {}).get("device", "none"))
