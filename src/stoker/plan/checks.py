"""Requests that cannot work: beyond the model's limits, or without a package on this machine. Pure."""

from stoker.config.run import Lora, Qlora, Run
from stoker.errors import StokerError
from stoker.facts.machine import Machine
from stoker.facts.model_parts import ModelParts
from stoker.facts.shapes import ModelShape

_TRACKERS = {
    **{
        name: name for name in ("clearml", "codecarbon", "comet_ml", "dvclive", "mlflow", "swanlab", "trackio", "wandb")
    },
    "neptune": "neptune",
    "azure_ml": "azureml-mlflow",
}
"""Names that `report_to` knows, with the package of each; TensorBoard comes with Stoker."""


def check(run: Run, machine: Machine, shape: ModelShape, *, elsewhere: bool = False) -> None:
    """Refuse what would fail later, before anything is paid for."""
    _check_length(run, shape)
    if shape.parts and run.tune.method != "full":
        _check_adapter(run.tune, shape.parts)
    # Without torch the machine only plans; other missing packages do not matter. Elsewhere they are installed.
    if machine.examined and "torch" in machine.packages and not elsewhere:
        _check_packages(run, set(machine.packages))


def extra_packages(run: Run) -> tuple[str, ...]:
    """Packages of this run that Stoker's own requirements do not bring to another machine."""
    reported = run.native.trainer.get("report_to", [])
    names = [reported] if isinstance(reported, str) else reported
    kernels = ["liger-kernel"] if run.native.trainer.get("use_liger_kernel") else []
    return (*kernels, *(_TRACKERS[name] for name in names if name in _TRACKERS))


def needs_deepspeed(run: Run) -> bool:
    """Whether DeepSpeed cuts the steps of this run."""
    return run.where.strategy.startswith("zero") or bool(run.native.deepspeed)


def _check_length(run: Run, shape: ModelShape) -> None:
    """Learned position embeddings limit the length; rotary ones do not."""
    if 0 < shape.learned_positions < run.data.length:
        raise StokerError("STK214", length=run.data.length, positions=shape.learned_positions)


def _check_adapter(tune: Lora | Qlora, parts: ModelParts) -> None:
    """Refuse what PEFT refuses for this model, with its reason."""
    able = sorted({group.layer for group in parts.groups if group.adapter})
    if isinstance(tune.targets, str):
        if parts.no_adapter:
            raise StokerError("STK233", family=parts.family, reason=parts.no_adapter, able=", ".join(able))
        named = set(able)
    else:
        named = {name.rpartition(".")[2] for name in tune.targets}
    bare = sorted({one.layer for one in parts.groups if one.adapter and one.adapter.by == "parameter"} & named)
    if bare and tune.dropout:
        raise StokerError("STK234", layers=", ".join(bare), family=parts.family, dropout=tune.dropout)


def _check_packages(run: Run, packages: set[str]) -> None:
    for word, asked, package in _needed(run):
        if package not in packages:
            raise StokerError("STK215", word=word, asked=asked, package=package)


def _needed(run: Run) -> list[tuple[str, str, str]]:
    """(word of the run file, its value, the package it needs)."""
    needed: list[tuple[str, str, str]] = []
    if run.tune.method != "full":
        needed.append(("tune.method", run.tune.method, "peft"))
    if run.tune.method == "qlora":
        needed.append(("tune.method", run.tune.method, "bitsandbytes"))
    if run.train.optimizer.endswith("_8bit"):
        needed.append(("train.optimizer", run.train.optimizer, "bitsandbytes"))
    if needs_deepspeed(run):
        needed.append(("where.strategy", run.where.strategy, "deepspeed"))
    if run.native.trainer.get("use_liger_kernel"):
        needed.append(("native.trainer.use_liger_kernel", "true", "liger_kernel"))
    if "report_to" not in run.native.trainer:
        needed.append(("native.trainer.report_to", "tensorboard", "tensorboard"))
    return needed
