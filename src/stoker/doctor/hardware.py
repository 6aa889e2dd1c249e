"""Python, processors, memory, driver and cards, and whether the installed PyTorch build fits them."""

import os
import shutil

from stoker import env
from stoker.doctor import activity
from stoker.doctor.finding import Finding, fail, ok, warn
from stoker.doctor.torch_build import TorchBuild
from stoker.facts import tested
from stoker.facts.machine import Device, Machine
from stoker.facts.tested import Table, release, version_key
from stoker.plan.choices import OLDEST_SUPPORTED_CAPABILITY

_BF16_CAPABILITY = 8.0
_BUSY_BYTES = 1 << 30
"""A desktop and the driver itself hold less than this; more belongs to another program."""


def findings(machine: Machine, build: TorchBuild | None) -> list[Finding]:
    """All of them, in the order people read."""
    found = [python(machine.python), cpu(machine, os.cpu_count() or 1), memory(machine), *gpus(machine)]
    if machine.kind == "cuda":
        found += busy(activity.gpus())
    if build:
        found.append(torch_build(machine, build))
    return [*found, bf16(machine)]


def python(version: str) -> Finding:
    """Whether PyTorch is built for this Python."""
    oldest, newest = tested.table().pythons
    fits = version_key(oldest) <= version_key(version)[:2] <= version_key(newest)
    if fits:
        return ok("python", "doctor.python", version=version)
    return warn(
        "python", "doctor.python.untested", "doctor.advice.python", version=version, oldest=oldest, newest=newest
    )


def cpu(machine: Machine, of_host: int) -> Finding:
    """Processors this process may use, of those the host has."""
    threads = env.read(env.OMP_NUM_THREADS)
    if threads.isdigit() and int(threads) > machine.cpu_count:
        return warn("cpu", "doctor.cpu.threads", "doctor.advice.threads", count=machine.cpu_count, threads=threads)
    if machine.cpu_count < of_host:
        return ok("cpu", "doctor.cpu.limited", name=machine.processor, count=machine.cpu_count, host=of_host)
    return ok("cpu", "doctor.cpu", name=machine.processor, count=machine.cpu_count)


def memory(machine: Machine) -> Finding:
    """Main memory; weights pass through it on their way to a card."""
    there = _gib(machine.memory_bytes)
    if machine.kind == "cuda" and machine.memory_bytes < machine.memory_per_device:
        return warn(
            "memory", "doctor.memory.small", "doctor.advice.memory", there=there, card=_gib(machine.memory_per_device)
        )
    return ok("memory", "doctor.memory", there=there)


def gpus(machine: Machine) -> list[Finding]:
    """The driver and each card, or why there is none."""
    if machine.kind == "mps":
        return [ok("gpu", "doctor.gpu.apple", name=machine.name)]
    if machine.kind == "cpu":
        return [_no_gpu()]
    driver = ok("driver", "doctor.driver", version=machine.driver)
    return [driver, *(_gpu(device) for device in machine.devices)]


def _no_gpu() -> Finding:
    if not shutil.which("nvidia-smi"):
        return warn("gpu", "doctor.gpu.none", "doctor.advice.no_gpu")
    if env.CUDA_VISIBLE_DEVICES.name in env.child_environment({}):
        return warn("gpu", "doctor.gpu.hidden", "doctor.advice.hidden", value=env.read(env.CUDA_VISIBLE_DEVICES))
    return fail("gpu", "doctor.gpu.silent", "doctor.advice.silent")


def _gpu(device: Device) -> Finding:
    fields = {
        "name": device.name,
        "memory": _gib(device.memory_bytes),
        "capability": device.compute_capability,
        "oldest": OLDEST_SUPPORTED_CAPABILITY,
    }
    name = f"gpu.{device.index}"
    if device.compute_capability is not None and device.compute_capability < OLDEST_SUPPORTED_CAPABILITY:
        return warn(name, "doctor.gpu.old", "doctor.advice.old_card", **fields)
    return ok(name, "doctor.gpu", **fields)


def busy(loads: list[activity.GpuLoad]) -> list[Finding]:
    """Cards on which another program holds memory."""
    return [
        warn(
            f"gpu.{one.index}.memory",
            "doctor.gpu.busy",
            "doctor.advice.busy",
            index=one.index,
            used=_gib(one.memory_used_bytes),
        )
        for one in loads
        if one.memory_used_bytes > _BUSY_BYTES
    ]


def torch_build(machine: Machine, build: TorchBuild) -> Finding:
    """Whether the installed build has CUDA, code for the card, and a driver new enough."""
    name, table = "torch_build", tested.table()
    if machine.kind != "cuda":
        return ok(name, "doctor.build.other", version=build.version)
    if build.rocm or build.cuda is None:
        return fail(
            name, "doctor.build.no_cuda", "doctor.advice.line", version=build.version, line=_remedy(machine, table)
        )
    known = table.build(build.cuda, release(build.version))
    unfit = [d for d in machine.devices if known and not known.runs_on(d.compute_capability or 0)]
    if unfit and known:
        return fail(
            name,
            "doctor.build.wrong_card",
            "doctor.advice.line",
            version=build.version,
            cuda=build.cuda,
            lowest=known.lowest,
            highest=known.highest,
            card=unfit[0].name,
            capability=unfit[0].compute_capability,
            line=_remedy(machine, table),
        )
    oldest = table.oldest_driver(build.cuda)
    if version_key(machine.driver) < (oldest,):
        fields = {"cuda": build.cuda, "driver": machine.driver, "oldest": oldest, "line": _remedy(machine, table)}
        return fail(name, "doctor.build.driver", "doctor.advice.driver", version=build.version, **fields)
    return ok(name, "doctor.build", version=build.version, cuda=build.cuda)


def _remedy(machine: Machine, table: Table) -> str:
    """The pip line for a build that fits; where no build fits this driver, with the driver it needs."""
    cuda = table.index_for(machine.compute_capability, machine.driver)
    torch = table.combinations[-1].packages["torch"]
    tag = (cuda or table.indexes[-1]).replace(".", "")
    line = f"pip install --force-reinstall torch=={torch} --index-url https://download.pytorch.org/whl/cu{tag}"
    return line if cuda else f"{line}  # driver >= {table.oldest_driver(table.indexes[-1])}"


def bf16(machine: Machine) -> Finding:
    """Whether training can use bf16."""
    if machine.kind != "cuda":
        return ok("bf16", "doctor.bf16.not_used")
    if machine.compute_capability >= _BF16_CAPABILITY:
        return ok("bf16", "doctor.bf16", capability=machine.compute_capability)
    return warn("bf16", "doctor.bf16.none", "doctor.advice.fp16", capability=machine.compute_capability)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f}"
