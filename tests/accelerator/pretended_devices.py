"""The devices that tests pretend to have, and trainings on them, in forked processes that believe in their cards.

`use` sets the variables that the fake `nvidia-smi`, and so the plan, and `pretend_cuda` in the trainer read.
"""

import logging
import os
import platform
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked_trainer
import pretend_cuda
import pytest
import tiny_run

from stoker.engine import merge as merging
from stoker.engine import program
from stoker.engine import train as training
from stoker.errors import EXIT_SURPRISE, EXIT_USER
from stoker.facts import cards, machine
from stoker.plan.plan import Plan
from stoker.rundir import files
from stoker.rundir.layout import RunDir
from stoker.supervise.settings import SupervisorSettings
from stoker.supervise.supervisor import Supervisor

PROGRAMS = Path(__file__).parent / "programs"
"""The fake `nvidia-smi`, and what makes a program of its own believe in the cards."""
_GRACE_SECONDS = 60.0
"""Ranks beside one that failed may commit what they were saving; a plan gives them 1800 s."""
QUICK = SupervisorSettings(look_seconds=0.05, first_wait_seconds=0.1, hang_floor_seconds=120)


@dataclass(frozen=True)
class PretendedDevice:
    """Cards of one kind in one machine."""

    card: str
    """Its name in the catalogue."""
    count: int
    precision: str
    """That a plan for it has."""
    strategy: str
    """Asked for where there are several."""

    @property
    def where(self) -> dict[str, Any]:
        """The words of a run file."""
        return {"strategy": self.strategy} if self.count > 1 else {}


DEVICES = {
    "T4": PretendedDevice("T4", 1, "fp16", "single"),
    "4090": PretendedDevice("RTX4090", 1, "bf16", "single"),
    "A100": PretendedDevice("A100-80-SXM4", 1, "bf16", "single"),
    "2xT4-ddp": PretendedDevice("T4", 2, "fp16", "ddp"),
    "2x4090-fsdp2": PretendedDevice("RTX4090", 2, "bf16", "fsdp2"),
    "4xA100-fsdp2": PretendedDevice("A100-80-SXM4", 4, "bf16", "fsdp2"),
    "M4": PretendedDevice("Apple M4", 1, "fp32", "single"),
}

TYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
"""In which a plan's precision computes products of matrices."""


def use(patch: pytest.MonkeyPatch, device: PretendedDevice, **more: str) -> None:
    """Let this process and its children find the device; `more` are variables without `PRETENDED_`."""
    card = cards.find(device.card)
    variables = {
        "KIND": card.kind,
        "CARD": card.device_names[0],
        "CAPABILITY": str(card.compute_capability or ""),
        "COUNT": str(device.count),
        "DRIVER": "570.124.06",
        "MEMORY_MIB": str(card.memory_bytes >> 20),
        **more,
    }
    for name, value in variables.items():
        patch.setenv(f"PRETENDED_{name}", value)
    patch.setenv("PATH", f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}")
    patch.setenv("PYTHONPATH", f"{PROGRAMS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if card.kind == "mps":
        patch.setattr(machine, "platform", _Mac)


class _Mac:
    """What `facts.machine` asks of the standard library, on a Mac."""

    system, machine = staticmethod(lambda: "Darwin"), staticmethod(lambda: "arm64")
    python_version = staticmethod(platform.python_version)


def train(run_dir: RunDir, kill_after: int | None = None) -> int:
    """Train in forked processes, one per card; optionally SIGKILL them when a step has ended."""
    return _in_ranks(run_dir, tiny_run.trainer(run_dir, kill_after))


def supervise(run_dir: RunDir) -> int:
    """Train under a supervisor, which plans anew after an out-of-memory error."""
    run_dir.logs.mkdir(exist_ok=True)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        return Supervisor(run_dir.path, QUICK, start=_start).run()
    finally:
        for number, answer in before.items():  # a supervisor has a process of its own
            signal.signal(number, answer)


def merge(run_dir: RunDir) -> int:
    """The merge program, in a process that believes in its card."""
    return in_child(lambda: merging.main(run_dir.path), {})


def in_child(work: Callable[[], int], variables: Mapping[str, str]) -> int:
    """Run `work` in a forked process that believes in its cards, with an environment; its exit code."""

    def believing() -> int:
        os.environ |= variables
        _believe()
        try:
            return work()
        except BaseException:
            traceback.print_exc()
            raise

    return tiny_run.in_child(believing)


def logs(run_dir: RunDir) -> str:
    """What supervised ranks said, for a test's message."""
    return forked_trainer.logs(run_dir.path)


def types(run_dir: RunDir) -> set[str]:
    """Types in which the ranks computed products of matrices."""
    lines = [line for path in run_dir.path.glob("types.*") for line in path.read_text().splitlines()]
    return {line.split()[0] for line in lines}


def _start(watching: Supervisor) -> forked_trainer.Forked:
    """A stand-in for torchrun, which ends with 1 if a rank fails."""
    pid = os.fork()
    if pid:
        return forked_trainer.Forked(pid)
    code = EXIT_SURPRISE
    try:
        os.setsid()
        run_dir, attempt = RunDir(watching.run_dir), watching.status.attempt
        if attempt > 1:
            os.environ.pop("PRETENDED_MEMORY_ENDS_AFTER", None)  # memory that has ended does not come back
        code = _in_ranks(run_dir, lambda rank: _rank(run_dir, attempt, rank), _GRACE_SECONDS)
        code = EXIT_USER if code < 0 else code  # as torchrun: a rank that was ended is a failure
    finally:
        os._exit(code)


def _rank(run_dir: RunDir, attempt: int, rank: int) -> int:
    """One rank as a supervisor has it started: what it says goes to a log, its errors to the events."""
    with run_dir.log_file(attempt, rank).open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115  # pytest has its own
    logging.disable(logging.WARNING)
    sys.argv = ["train", str(run_dir.path)]
    return program.run(training.main)


def _in_ranks(run_dir: RunDir, work: Callable[[int], int], grace_seconds: float = 0) -> int:
    """Forked processes, one per card of the plan; the first exit code that is not 0."""
    plan = files.read_record(run_dir.plan_file, Plan)
    start = tiny_run.in_children if plan.strategy == "single" else tiny_run.in_ranks

    def as_rank(rank: int) -> int:
        os.environ |= {**plan.env, "PRETENDED_NOTES": str(run_dir.path / "types")}
        _believe()
        return work(rank)

    return next((code for code in start(plan.batch.devices, as_rank, grace_seconds) if code), 0)


def _believe() -> None:
    pretend_cuda.install(pretend_cuda.Pretended.of(os.environ))
