"""One function per `auto`: each returns what was decided and the reason, as a sentence key with fields."""

import math
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from stoker.config import objectives
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.estimate.fused_rows import fused_rows
from stoker.estimate.step import Attention
from stoker.facts import families
from stoker.facts.machine import Device, Machine
from stoker.facts.shapes import ModelShape
from stoker.facts.tested import version_key
from stoker.plan import moves, strategy
from stoker.plan.plan import Reason
from stoker.plan.save_interval import OVERHEAD_CAP

T = TypeVar("T")

OLDEST_SUPPORTED_CAPABILITY = 7.5
"""CUDA 13 builds of torch start at Turing; P100 (6.0) and V100 (7.0) need older builds."""
_BF16_CAPABILITY = 8.0
_CPU_TOKENS_PER_MICRO = 2048
"""Micro batches of about this many tokens keep activations in a CPU's caches; larger ones gain nothing (measured)."""

KERNELS = ("eager", "sdpa", "flash_attention_2", "efficient", "native")
"""transformers' names, torch's memory-efficient kernel (as fast as the first flash attention), and kernels written
for the card: cuDNN's, flash attention 3."""
_FLASH_CAPABILITY = 8.0

_OLDEST_LIGER = (0, 8, 5)
"""Before it, positions that rotate a part of a head (Phi 4 mini) were computed wrongly, and nothing said so."""
_LIGER_FAMILIES = ("llama", "mistral", "phi3", "qwen2", "qwen3", "smollm3")
"""Dense families for which liger-kernel 0.8.5 has all three kernels (`monkey_patch.py`)."""
HEADS = ("lm_head", "embed_out", "output_layer")
"""Names of output layers."""
_MEMORY_FOR_A_COPY = 0.4
"""Share of main memory that the copy of a checkpoint may take while it is being written."""


@dataclass(frozen=True)
class Choice(Generic[T]):
    """A value and why."""

    value: T
    reason: Reason


def _because(value: T, about: str, key: str, **fields: Any) -> Choice[T]:
    return Choice(value, Reason(about=about, key=key, fields=fields))


def checkpoints_at_once(run: Run) -> int:
    """How many checkpoints are on disk at the most: those that are kept, and the one being written."""
    return run.save.keep + bool(run.save.best) + bool(run.save.store) + 1


def nodes(run: Run) -> int:
    """The number of nodes a run asks for."""
    return len(run.where.hosts or ()) or run.where.nodes


def machine(run: Run, found: Machine) -> Choice[Machine]:
    """The part of the machine that trains: all GPUs, the selected ones, or the CPU."""
    wanted = run.where.gpus
    if wanted == 0:
        without = found.model_copy(update={"kind": "cpu", "devices": ()})
        return _because(_shared(run, without), "batch.devices", "why.asked", word="where.gpus")
    count, chosen = _chosen(wanted, found.devices)
    if count > len(chosen):
        raise StokerError("STK208", count=count, found=len(found.devices))
    if found.nodes > 1 and count < len(found.devices):
        raise StokerError("STK230", asked=wanted, found=len(found.devices))
    if found.kind == "cpu" and run.where.processes != "auto":
        return _because(_shared(run, found), "batch.devices", "why.asked", word="where.processes")
    if found.kind != "cuda":
        return _because(_shared(run, found), "batch.devices", "why.devices.one", kind=found.kind)
    part = found.model_copy(update={"devices": tuple(chosen)})
    return _because(part, "batch.devices", "why.devices.cuda", count=count, found=len(found.devices))


def _shared(run: Run, found: Machine) -> Machine:
    """A CPU's threads are divided among the processes that train on it."""
    return found.model_copy(update={"threads": max(1, found.threads // (processes(run, found) // found.nodes))})


def processes(run: Run, machine: Machine) -> int:
    """The number of training processes over all nodes: one per GPU, or as stated on a CPU."""
    asked = run.where.processes
    if machine.kind == "cpu" and asked != "auto":
        return int(asked) * machine.nodes
    count = max(1, len(machine.devices))
    if asked not in ("auto", count):
        raise StokerError("STK218", asked=asked, count=count)
    return count * machine.nodes


def _chosen(wanted: int | str, devices: tuple[Device, ...]) -> tuple[int, list[Device]]:
    """The number of devices asked for, and those found: an integer is a count, a text lists indices."""
    if wanted == "all":
        return len(devices), list(devices)
    if isinstance(wanted, int):
        return wanted, list(devices[:wanted])
    numbers = {int(number) for number in wanted.split(",")}
    return len(numbers), [device for device in devices if device.index in numbers]


def precision(run: Run, machine: Machine) -> Choice[str]:
    """Arithmetic of the forward and backward pass."""
    asked, capability = run.where.precision, machine.compute_capability
    if asked == "bf16" and machine.kind == "cuda" and capability < _BF16_CAPABILITY:
        raise StokerError("STK210", precision="bf16", card=machine.name)
    if asked == "fp16" and machine.kind == "cpu":
        raise StokerError("STK210", precision="fp16", card=machine.name)
    if run.train.precision == "bf16":
        return _in_bf16(machine)
    if asked != "auto":
        return _because(asked, "precision", "why.asked", word="where.precision")
    if machine.kind == "cpu":
        return _because("fp32", "precision", "why.precision.cpu")
    if machine.kind == "mps":
        return _because("fp32", "precision", "why.precision.mps")
    if capability >= _BF16_CAPABILITY:
        return _because("bf16", "precision", "why.precision.bf16", capability=capability)
    return _because("fp16", "precision", "why.precision.fp16", capability=capability)


def _in_bf16(machine: Machine) -> Choice[str]:
    """Weights in bf16 are computed with as they are."""
    if machine.kind == "cuda" and machine.compute_capability < _BF16_CAPABILITY:
        raise StokerError("STK210", precision="bf16", card=machine.name)
    return _because("bf16", "precision", "why.precision.weights")


def attention(run: Run, machine: Machine, precision: str, shape: ModelShape) -> Choice[str]:
    """The attention kernel, by what the model's class takes, what is installed and what the card supports."""
    able = machine.kind == "cuda" and _runs_flash(machine.compute_capability, precision)
    asked = run.where.attention
    missing = machine.examined and "flash_attn" not in machine.packages
    broken = machine.broken.get("flash_attn")
    if asked == "flash_attention_2" and broken:
        raise StokerError("STK213", card=machine.name, reason=broken)
    if asked == "flash_attention_2" and (missing or not able):
        raise StokerError("STK212", card=machine.name, precision=precision)
    if asked not in ("auto", *shape.attention):
        raise StokerError("STK150", family=shape.family, asked=asked, able=list(shape.attention))
    if asked != "auto":
        return _because(asked, "attention", "why.asked", word="where.attention")
    if able and "flash_attn" in machine.packages and "flash_attention_2" in shape.attention:
        return _because("flash_attention_2", "attention", "why.attention.flash")
    if "sdpa" not in shape.attention:
        return _because("eager", "attention", "why.attention.eager", family=shape.family)
    if repeats_keys(machine, "sdpa", precision):
        capability = machine.compute_capability
        return _because("sdpa", "attention", "why.attention.repeated", capability=capability, precision=precision)
    if able and broken:
        return _because("sdpa", "attention", "why.attention.broken", reason=broken)
    return _because("sdpa", "attention", "why.attention.sdpa")


def kernel(name: str, capability: float, compute: str, *, masked: bool) -> Attention:
    """The kernel that attention runs by the name it is asked for: one mapping for plans and published measurements.

    Args:
        name: One of `KERNELS`.
        capability: The card's compute capability; 0 where it is no NVIDIA card.
        compute: Arithmetic of the products.
        masked: Whether attention gets a mask tensor, which torch's flash kernel does not take.
    """
    assert name in KERNELS, name
    if name == "eager":
        return "eager"
    if name == "native":
        return "flash"
    if name == "efficient" or not _runs_flash(capability, compute) or (name == "sdpa" and masked):
        return "efficient"
    return "flash_2"


def _runs_flash(capability: float, compute: str) -> bool:
    return capability >= _FLASH_CAPABILITY and compute != "fp32"


def repeats_keys(machine: Machine, attention: str, precision: str) -> bool:
    """Whether keys must be repeated for each head: older cards, and fp32, have no fast kernel for grouped heads."""
    without_flash = not _runs_flash(machine.compute_capability, precision)
    return attention == "sdpa" and machine.kind == "cuda" and without_flash


def arrangement(run: Run, attention: str, shape: ModelShape) -> Choice[str]:
    """Whether rows are used as prepared or their documents are grouped by length within a step."""
    if run.where.arrange != "auto":
        return _because(run.where.arrange, "arrange", "why.asked", word="where.arrange")
    if (asked := objectives.facts(run.train.objective)).by_row:
        return _because("grouped", "arrange", "why.arrange.pairs" if asked.pairs else "why.arrange.answers")
    if shape.parts and (kinds := shape.parts.recurrent):
        return _because("grouped", "arrange", "why.arrange.recurrent", kinds=list(kinds))
    if seen := families.leaks(shape):
        return _because("grouped", "arrange", "why.arrange.leaks", family=shape.family, date=seen.date)
    if attention == "flash_attention_2":
        return _because("rows", "arrange", "why.arrange.rows")
    return _because("grouped", "arrange", "why.arrange.grouped")


def loss(run: Run, machine: Machine, shape: ModelShape) -> Choice[str]:
    """Whether the loss is computed without all logits at once: the largest tensor of most steps."""
    asked, hinders = run.where.loss, _hinders_fusing(run, shape)
    if run.native.trainer.get("use_liger_kernel"):
        if asked != "auto":
            raise StokerError("STK239", asked=asked, reason="`native.trainer.use_liger_kernel`")
        return _because("liger", "loss", "why.asked", word="native.trainer.use_liger_kernel")
    if asked == "fused" and hinders:
        raise StokerError("STK239", asked=asked, reason=hinders)
    if asked != "auto":
        return _because(asked, "loss", "why.asked", word="where.loss")
    if machine.kind == "cpu":
        return _because("plain", "loss", "why.loss.cpu")
    if hinders:
        return _because("plain", "loss", "why.loss.scores" if run.train.scores else "why.loss.plain", reason=hinders)
    return _because("fused", "loss", "why.loss.fused", rows=fused_rows(shape.vocab))


def _hinders_fusing(run: Run, shape: ModelShape) -> str:
    """What of a run needs all logits, or an output layer as it is called; empty if nothing does."""
    row, trainer, lora = families.of_shape(shape), run.native.trainer, run.native.lora
    if objectives.facts(run.train.objective).by_row:
        return f"`train.objective: {run.train.objective}`"
    if row is None or not row.straight or shape.head_bias:
        return f"`{shape.family}`"
    if run.where.strategy == "zero3":
        return "`where.strategy: zero3`"
    if moves.compiled(run):
        return "`where.compile: on`"
    if trainer.get("label_smoothing_factor"):
        return "`native.trainer.label_smoothing_factor`"
    named = [] if run.tune.method == "full" or isinstance(run.tune.targets, str) else list(run.tune.targets)
    own = [name for name in (*named, *(lora.get("modules_to_save") or ())) if name.endswith(HEADS)]
    return f"`{own[0]}`" if own else ""


def kernels(run: Run, machine: Machine, shape: ModelShape) -> Choice[str]:
    """Whether Liger's kernels compute norms, rotary positions and gated activations."""
    asked = run.where.kernels
    if asked == "auto" and machine.kind != "cuda":
        return _because("plain", "kernels", "why.kernels.none")
    if asked == "auto":
        return _because("plain", "kernels", "why.kernels.plain")
    if asked == "liger" and (hinders := _hinders_liger(run, machine, shape)):
        raise StokerError("STK248", reason=hinders)
    return _because(asked, "kernels", "why.asked", word="where.kernels")


def _hinders_liger(run: Run, machine: Machine, shape: ModelShape) -> str:
    """What keeps Liger's kernels from a run; empty if nothing does."""
    if machine.kind != "cuda":
        return machine.name
    if shape.family not in _LIGER_FAMILIES:
        return f"`{shape.family}`"
    installed = machine.packages.get("liger_kernel", "")
    if installed and version_key(installed) < _OLDEST_LIGER:
        return f"liger-kernel {installed}"
    if own := [name for name in ("use_liger_kernel", "liger_kernel_config") if run.native.trainer.get(name)]:
        return f"`native.trainer.{own[0]}`"
    return "`where.compile: on`" if moves.compiled(run) else ""


def exact(run: Run, chosen: str) -> Choice[bool]:
    """Whether gradients are combined in the canonical order: by the recipe, never by the hardware."""
    on = strategy.exact(run, chosen)
    if run.train.exact != "auto":
        return _because(on, "exact", "why.asked", word="train.exact")
    if chosen.startswith("zero"):
        return _because(on, "exact", "why.exact.zero")
    return _because(on, "exact", "why.exact.on" if on else "why.exact.off", method=run.tune.method)


def workers(run: Run, machine: Machine, devices: int) -> Choice[int]:
    """Processes that read data."""
    about = "native.trainer.dataloader_num_workers"
    if run.where.workers != "auto":
        return _because(int(run.where.workers), about, "why.asked", word="where.workers")
    if machine.kind != "cuda":
        return _because(0, about, "why.workers.none")
    count = max(1, min(4, machine.cpu_count // devices - 1))
    return _because(count, about, "why.workers.cuda", count=count, cpus=machine.cpu_count)


def save_interval(run: Run, place: str, between_failures_seconds: float) -> Choice[str]:
    """When to commit a checkpoint; `auto` stays `auto`: the cost of a save is measured at run time."""
    if run.save.every != "auto":
        return _because(run.save.every, "intervals.save", "why.asked", word="save.every")
    hours, share = f"{between_failures_seconds / 3600:.0f}", f"{OVERHEAD_CAP * 100:g}"
    key = "why.save.auto.local" if place == "local" else "why.save.auto"
    return _because("auto", "intervals.save", key, place=place, hours=hours, share=share)


def background(machine: Machine, checkpoint_bytes: int) -> Choice[bool]:
    """Whether a save is written in the background. Its copy takes main memory until it is written."""
    if machine.examined and checkpoint_bytes > machine.memory_bytes * _MEMORY_FOR_A_COPY:
        return _because(False, "intervals.background", "why.background.off", **_gigabytes(machine, checkpoint_bytes))
    return _because(True, "intervals.background", "why.background.on", **_gigabytes(machine, checkpoint_bytes))


def _gigabytes(machine: Machine, checkpoint_bytes: int) -> dict[str, str]:
    return {"copy": f"{checkpoint_bytes / 1e9:.1f}", "memory": f"{machine.memory_bytes / 1e9:.1f}"}


def micro_candidates(run: Run, machine: Machine, share: int, earlier: int | None) -> list[int]:
    """Micro batches to try, best first: divisors of a device's share, so that the batch is split exactly."""
    small = [size for size in range(1, math.isqrt(share) + 1) if share % size == 0]
    divisors = sorted({*small, *(share // size for size in small)}, reverse=True)
    if run.where.micro != "auto":
        if run.where.micro not in divisors:
            raise StokerError("STK207", micro=run.where.micro, share=share, choices=divisors)
        return [int(run.where.micro)]
    if machine.kind == "cpu":
        divisors = [size for size in divisors if size * run.data.length <= _CPU_TOKENS_PER_MICRO] or [1]
    if earlier is not None and share % earlier == 0:
        return [earlier, *(size for size in divisors if size < earlier)]
    return divisors
