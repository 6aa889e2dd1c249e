"""All checks in their order, each a function of `Trials`. One that ends with an error has failed; the rest goes on."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stoker.doctor import examine
from stoker.facts.machine import Machine
from stoker.prove import kernels, measurements, report, resuming, served_adapter, several
from stoker.prove.check import Check, broken, failed, passed
from stoker.prove.trials import Trials

Step = Callable[[Trials], Check]


def doctor(on: Trials) -> Check:
    """What `stoker doctor` finds; sentences stay here, they name folders."""
    found = examine.examine(on.folder)
    figures = {finding.name: finding.status for finding in found}
    wrong = [finding.name for finding in found if finding.status == "fail"]
    return (
        failed("doctor", "prove.reason.doctor", figures, names=", ".join(wrong))
        if wrong
        else passed("doctor", **figures)
    )


WHOLE: dict[str, Step] = {
    "doctor": doctor,
    "attention": kernels.attention,
    "resume_exact": resuming.resume_exact,
    "resume_default": resuming.resume_default,
    "saves": resuming.saves,
    "memory": measurements.memory,
    "speed": measurements.speed,
    "synchronisation": measurements.synchronisation,
    "ddp": several.ddp,
    "fsdp2": several.fsdp2,
    "vllm": served_adapter.vllm,
}
"""Every check by its name."""
QUICK = {name: WHOLE[name] for name in ("doctor", "attention", "resume_exact", "saves")}
"""The short form."""


def prove(
    folder: Path, machine: Machine, on_check: Callable[[str, int, int], None], *, quick: bool
) -> tuple[list[Check], dict[str, Any]]:
    """Do every check; returns them and the report.

    Args:
        folder: Where trainings are made; its owner removes it.
        machine: This machine.
        on_check: Called with a check's name, its number and how many there are, before it begins.
        quick: The short form.
    """
    began, on = time.monotonic(), Trials(folder, machine)
    steps = QUICK if quick else WHOLE
    checks = []
    for number, (name, step) in enumerate(steps.items(), 1):
        on_check(name, number, len(steps))
        with _ended_like_ctrl_c():
            checks.append(tried(name, step, on))
    seconds = time.monotonic() - began
    return checks, report.make(machine, checks, on.log_digests(), seconds, quick=quick)


@contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """A trial is detached and would go on: whatever ends us ends it first, also a signal or a closed terminal."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tried(name: str, step: Step, on: Trials) -> Check:
    """A check with the time it took; an error is its failure."""
    began = time.monotonic()
    try:
        check = step(on)
    except Exception as error:  # noqa: BLE001  # whatever goes wrong on a stranger's machine is part of the report
        check = broken(name, error)
    check.figures["seconds"] = round(time.monotonic() - began, 1)
    return check
