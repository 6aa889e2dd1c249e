"""Resuming an earlier attempt, perhaps on another machine: what decides the bits of a step, and the tier.

The trainer compares whole fingerprints and decides (`engine.resume`). A plan predicts it as far as possible without
torch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stoker import messages
from stoker.config.run import Run
from stoker.facts import own_code
from stoker.facts.machine import Machine
from stoker.plan import optimizers
from stoker.plan.plan import Plan, Reason, Resume
from stoker.rows import order

LIBRARIES = ("transformers", "accelerate", "peft", "bitsandbytes", "flash_attn")
"""Packages whose versions are part of the fingerprint; DeepSpeed's, Liger's, torchao's only where they are used."""
_UNSEEN = (
    *("instructions", "driver", "cuda", "nccl", "base", "teacher", "reference", "sampler"),
    *("rewards", "reward_packages"),
)
"""Parts of the fingerprint that only the trainer knows."""
_CUDA = ("driver", "cuda", "nccl")
"""Those of them that only a machine with CUDA has."""
_PACKAGES = ("torch", *LIBRARIES, "deepspeed", "liger_kernel", "torchao")
"""Also unknown for another machine: missing packages are installed there with Stoker."""

_ELSEWHERE = {
    *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
    *("gradient_checkpointing", "gradient_checkpointing_kwargs", "bf16", "fp16", "use_cpu"),
    *("dataloader_num_workers", "dataloader_pin_memory", "torch_compile", "attn_implementation"),
    *("logging_steps", "report_to", "disable_tqdm"),
}
"""Options of the engines that follow from other parts of the fingerprint, or decide no bits."""


@dataclass(frozen=True)
class Earlier:
    """The newest checkpoint, from which a run resumes."""

    step: int
    fingerprint: dict[str, str]
    data_digest: str
    order_version: int
    other_words: bool = False
    """The run file said something else about the training."""
    forked: bool = False
    """Taken from another run: there is no past to compare with."""

    @property
    def micro(self) -> int:
        """Its micro batch."""
        return int(self.fingerprint.get("micro", 0))

    def keeps(self, parts: dict[str, str]) -> bool:
        """Whether these parts of the fingerprint are unchanged."""
        return all(self.fingerprint.get(key) == value for key, value in parts.items())


def cut(*, strategy: str, exact: bool, devices: int, micro: int, checkpointing: bool) -> dict[str, str]:
    """The fingerprint's parts that follow from how a step is cut to the hardware."""
    return {
        # A single process and DDP add gradients alike in the canonical order.
        "strategy": "ddp" if exact and strategy == "single" else strategy,
        "devices": "any" if exact else str(devices),
        "micro": str(micro),
        "checkpointing": str(checkpointing),
    }


def decided(plan: Plan) -> dict[str, str]:
    """All parts of the fingerprint that a plan decides."""
    return {
        "precision": plan.precision,
        "attention": plan.attention,
        "arrange": plan.arrange,
        "loss": plan.loss,
        **cut(
            strategy=plan.strategy,
            exact=plan.exact,
            devices=plan.batch.devices,
            micro=plan.batch.micro,
            checkpointing=plan.gradient_checkpointing,
        ),
        "sharding": json.dumps([plan.native.fsdp, plan.native.deepspeed], sort_keys=True),
        "exact": str(plan.exact),
        "deterministic": str(plan.deterministic),
        "threads": str(plan.threads),
        "compile": str(compiles(plan.native.trainer)),
        "batch": str(plan.batch.effective),
        **_options(plan),
    }


def libraries(plan: Plan) -> tuple[str, ...]:
    """Packages that compute with this plan, besides torch."""
    options = plan.native.trainer
    used = {"deepspeed": plan.native.deepspeed, "liger_kernel": options.get("use_liger_kernel")}
    used["torchao"] = options.get("optim") == optimizers.ROUNDED
    return (*LIBRARIES, *(name for name, on in used.items() if on))


def reduces_by_nccl(plan: Plan) -> bool:
    """Whether NCCL adds gradients, in an order of its own; in the canonical order it only carries them."""
    return plan.device == "cuda" and plan.batch.devices > 1 and not plan.exact


def _options(plan: Plan) -> dict[str, str]:
    """The engines' options, `trainer.learning_rate`, without those that decide no bits or have a part of their own."""
    blocks = plan.native.model_dump(include={"trainer", "model", "lora", "quantization"})
    return {
        f"{block}.{name}": json.dumps(value, sort_keys=True)
        for block, options in blocks.items()
        for name, value in options.items()
        if name not in _ELSEWHERE
    }


def changed(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """`micro: 4 -> 2` for each part of a fingerprint that differs."""
    # A checkpoint of an older Stoker has fewer parts; that its code is unknown says it all.
    keys = {**now, **before} if "code" in before else {**before, "code": ""}
    return [f"{key}: {before.get(key)} -> {now.get(key)}" for key in keys if before.get(key) != now.get(key)]


def provable(device: str, *, deterministic: bool, compiled: bool) -> bool:
    """Whether equal fingerprints mean equal bits on this device.

    `torch.compile` makes kernels for the shapes that this process has seen so far: a resumed one has seen others.
    """
    return not compiled and (device == "cpu" or (device == "cuda" and deterministic))


def compiles(trainer: Mapping[str, Any]) -> bool:
    """Whether options of the Trainer switch `torch.compile` on; naming a backend or a mode does."""
    names = ("torch_compile", "torch_compile_backend", "torch_compile_mode")
    return any(trainer.get(name) for name in names)


def compiled(run: Run) -> bool:
    """Whether a run's model is compiled: where it says so, or names a backend or a mode of the compiler."""
    return run.where.compile == "on" or compiles(run.native.trainer)


def unprovable(plan: Plan) -> str:
    """Why a resume is not EXACT although nothing changed: the option or the device."""
    return "where.compile" if compiles(plan.native.trainer) else plan.device


def tier(plan: Plan, differences: list[str]) -> str:
    """How exactly a run resumes on the same data."""
    compiled = compiles(plan.native.trainer)
    same = not differences and provable(plan.device, deterministic=plan.deterministic, compiled=compiled)
    return "EXACT" if same else "SAMPLE-EXACT"


def resume(earlier: Earlier | None, plan: Plan, machine: Machine, *, elsewhere: bool = False) -> Resume | None:
    """How a planned attempt resumes, as far as a plan can know; None without a checkpoint.

    Args:
        earlier: The checkpoint.
        plan: The plan of the new attempt.
        machine: The machine it is planned for.
        elsewhere: It is another machine, though it may have been probed.
    """
    if earlier is None or earlier.step >= plan.steps.total:
        return None
    packages = _PACKAGES if elsewhere or not machine.examined else ()
    unseen = (*_UNSEEN, *packages, *(() if machine.examined else ("threads",)))
    before, now = (
        {key: value for key, value in parts.items() if key not in unseen}
        for parts in (earlier.fingerprint, {**_seen(machine, plan), **decided(plan)})
    )
    differences = changed(before, now)
    other = (
        earlier.order_version != order.VERSION
        or plan.data.digest not in ("", earlier.data_digest)
        or earlier.other_words
    )
    return Resume(
        step=earlier.step,
        tier="FORK" if earlier.forked else "OTHER" if other else tier(plan, differences),
        changed=[] if earlier.forked else differences,
        unseen=[key for key in earlier.fingerprint if key in unseen],
    )


def _seen(machine: Machine, plan: Plan) -> dict[str, str]:
    """The device and package versions, as probing the machine finds them."""
    device = machine.devices[0].name if machine.kind == "cuda" else plan.card
    versions = {name: machine.packages[name] for name in ("torch", *libraries(plan)) if name in machine.packages}
    return {"device": device, **versions, "code": own_code.digest()}


def reasons(found: Resume | None, plan: Plan) -> list[Reason]:
    """Why the tier is lower although nothing differs, and what is not known yet."""
    if found is None:
        return []
    keys = []
    if found.tier == "SAMPLE-EXACT" and not found.changed:
        if compiles(plan.native.trainer):
            keys.append("why.resume.compiled")
        else:
            keys.append("why.resume.mps" if plan.device == "mps" else "why.resume.kernels")
    if found.tier == "EXACT":
        keys.append("why.resume.unseen")
    there = [part for part in found.unseen if plan.device == "cuda" or part not in _CUDA]
    unseen = [messages.named("fingerprint", part) for part in there]
    return [Reason(about="resume", key=key, fields={"unseen": unseen}) for key in keys]
