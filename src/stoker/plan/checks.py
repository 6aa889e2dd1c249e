"""Requests that cannot work: beyond the model's limits, or without a package on this machine. Pure."""

from typing import Any

from stoker import messages
from stoker.config.run import Lora, Qlora, Run, Shape
from stoker.errors import StokerError
from stoker.facts import families
from stoker.facts.machine import Machine
from stoker.facts.model_parts import ModelParts
from stoker.facts.shapes import ModelShape, ResolvedShape, published_quantised
from stoker.plan import optimizers
from stoker.plan.plan import Reason

_TRACKERS = {
    **{
        name: name for name in ("clearml", "codecarbon", "comet_ml", "dvclive", "mlflow", "swanlab", "trackio", "wandb")
    },
    "neptune": "neptune",
    "azure_ml": "azureml-mlflow",
}
"""Names that `report_to` knows, with the package of each; TensorBoard comes with Stoker."""

_EXTRA = {"torchao": "bf16", "deepspeed": "deepspeed"} | dict.fromkeys(("peft", "bitsandbytes", "tensorboard"), "train")
"""The extra of Stoker that installs a package; Liger's kernels have none."""

_BARE_INITS = (True, False, "gaussian")
"""Initialisations of an adapter that read no `weight` of a layer, which an expert tensor is not."""


def check(run: Run, machine: Machine, shape: ModelShape, *, elsewhere: bool = False) -> None:
    """Refuse what would fail later, before anything is paid for."""
    optimizers.check(run)
    if run.where.gradient_checkpointing == "offload" and machine.kind != "cuda":
        raise StokerError("STK247", card=machine.name)
    _check_length(run, shape)
    if shape.parts and run.tune.method != "full":
        _check_adapter(run.tune, run.native.lora, shape.parts)
    # Without torch the machine only plans; other missing packages do not matter. Elsewhere they are installed.
    if machine.examined and "torch" in machine.packages and not elsewhere:
        _check_packages(run, machine)


def check_tokens(shape: ModelShape, highest: int | None) -> None:
    """Refuse rows with a token for which the model has no weights; a tokenizer may know more that no row has."""
    if highest is not None and highest >= shape.vocab:
        raise StokerError("STK244", token=highest, vocab=shape.vocab)


def check_stored(run: Run, found: ResolvedShape) -> None:
    """Refuse a base whose files hold few bits: it cannot be merged into, and transformers would keep it as it is."""
    if found.quantised:
        raise in_few_bits(str(run.model), found.quantised)


def in_few_bits(model: str, kind: str) -> StokerError:
    """The refusal of such a base, with its copy in 16 bits where one is known."""
    name = published_quantised(model)[1]
    copy = messages.text("quantised.copy", copy=name) if name else messages.text("quantised.any_copy")
    return StokerError("STK238", model=model, kind=kind, copy=copy)


def check_packed(run: Run, strategy: str, shape: ModelShape) -> None:
    """Refuse to shard experts in 4 bits: bitsandbytes keeps their scales next to them, not in them."""
    if strategy == "fsdp2" and packs_experts(run, shape):
        raise StokerError("STK151", family=shape.family)


def packs_experts(run: Run, shape: ModelShape) -> bool:
    """Whether tensors of all experts of a layer are held in 4 bits."""
    fused = shape.parts.fused_experts if shape.parts and run.tune.method == "qlora" else []
    return any(one.quantised for one in fused)


def family_reasons(run: Run, machine: Machine, shape: ModelShape) -> list[Reason]:
    """What the table of families cannot say of this run: a family that was not tested, or with other versions."""
    row = families.of_shape(shape)
    cell = row.cells.get("pretrain" if isinstance(run.model, Shape) else run.tune.method) if row else None
    if cell is None:
        return [Reason(about="model", key="why.family.untested", fields={"family": shape.family})]
    here = machine.packages.get("transformers", "") if machine.examined else ""
    if families.other_transformers(cell, here):
        fields = {"family": shape.family, "tested": cell.transformers, "date": cell.date, "here": here}
        return [Reason(about="model", key="why.family.version", fields=fields)]
    return []


def extra_packages(run: Run) -> tuple[str, ...]:
    """Packages of this run that Stoker's own requirements do not bring to another machine."""
    reported = run.native.trainer.get("report_to", [])
    names = [reported] if isinstance(reported, str) else reported
    liger = run.native.trainer.get("use_liger_kernel") or run.where.kernels == "liger"
    kernels = ["liger-kernel"] if liger else []
    kernels += ["torchao"] if optimizers.rounds(run) else []
    return (*kernels, *(_TRACKERS[name] for name in names if name in _TRACKERS))


def needs_deepspeed(run: Run) -> bool:
    """Whether DeepSpeed cuts the steps of this run."""
    return run.where.strategy.startswith("zero") or bool(run.native.deepspeed)


def _check_length(run: Run, shape: ModelShape) -> None:
    """Learned position embeddings limit the length; rotary ones do not."""
    if 0 < shape.learned_positions < run.data.length:
        raise StokerError("STK214", length=run.data.length, positions=shape.learned_positions)


def _check_adapter(tune: Lora | Qlora, native: dict[str, Any], parts: ModelParts) -> None:
    """Refuse what PEFT refuses for this model, with its reason."""
    able = sorted({group.layer for group in parts.groups if group.adapter})
    if isinstance(tune.targets, str):
        if parts.no_adapter:
            raise StokerError("STK233", family=parts.family, reason=parts.no_adapter, able=able)
        named = set(able)
    else:
        named = {name.rpartition(".")[2] for name in tune.targets}
    named |= {name.rpartition(".")[2] for name in native.get("target_parameters") or ()}
    bare = sorted({one.layer for one in parts.groups if one.adapter and one.adapter.by == "parameter"} & named)
    if not bare:
        return
    if tune.dropout:
        raise StokerError("STK234", layers=bare, family=parts.family, dropout=tune.dropout)
    for option in ("use_dora", "lora_bias", "fan_in_fan_out", "kasa_config"):
        if native.get(option):
            raise StokerError("STK152", layers=bare, family=parts.family, option=f"{option}: true")
    if native.get("init_lora_weights", True) not in _BARE_INITS:
        option = f"init_lora_weights: {native['init_lora_weights']}"
        raise StokerError("STK152", layers=bare, family=parts.family, option=option)


def _check_packages(run: Run, machine: Machine) -> None:
    for word, asked, package in _needed(run):
        if word == "where.kernels" and machine.kind != "cuda":
            continue  # no package makes them work there; the choice of kernels says so
        if not machine.has(package):
            extra = _EXTRA.get(package, "")
            more = messages.text("package.extra", extra=extra) if extra else ""
            raise StokerError("STK215", word=word, asked=asked, package=package, more=more)


def _needed(run: Run) -> list[tuple[str, str, str]]:
    """(word of the run file, its value, the package it needs)."""
    needed: list[tuple[str, str, str]] = []
    if run.tune.method != "full":
        needed.append(("tune.method", run.tune.method, "peft"))
    if run.tune.method == "qlora":
        needed.append(("tune.method", run.tune.method, "bitsandbytes"))
    if optimizers.of_bitsandbytes(run):
        needed.append(("train.optimizer", run.train.optimizer, "bitsandbytes"))
    if optimizers.rounds(run):
        needed.append(("train.precision", run.train.precision, "torchao"))
    if needs_deepspeed(run):
        needed.append(("where.strategy", run.where.strategy, "deepspeed"))
    if run.native.trainer.get("use_liger_kernel"):
        needed.append(("native.trainer.use_liger_kernel", "true", "liger_kernel"))
    if run.where.kernels == "liger":
        needed.append(("where.kernels", "liger", "liger_kernel"))
    if "report_to" not in run.native.trainer:
        needed.append(("native.trainer.report_to", "tensorboard", "tensorboard"))
    return needed
