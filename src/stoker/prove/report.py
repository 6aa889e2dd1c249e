"""The report of a proof: one JSON without names, paths or host names, and the row of it that can be shared."""

import datetime
import os
from typing import Any

from pydantic import ValidationError

from stoker.doctor import activity, torch_build
from stoker.errors import StokerError
from stoker.facts import machine as machines
from stoker.facts.machine import Machine
from stoker.facts.proven import CPU, ProvenRow
from stoker.prove.check import Check

FORMAT = 1
_TOOLS = ("liger_kernel", "triton", "torchao", "trl", "vllm")
"""Packages whose versions matter for a figure, besides those a plan asks for."""


def make(machine: Machine, checks: list[Check], logs: dict[str, str], seconds: float, *, quick: bool) -> dict[str, Any]:
    """Everything that was found, as JSON has it.

    Args:
        machine: This machine.
        checks: In the order they were done.
        logs: Digests of the logs.
        seconds: What all of it took.
        quick: Whether it was the short form.
    """
    build = torch_build.installed()
    return {
        "format": FORMAT,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "stoker": machines.own_build(),
        "quick": quick,
        "seconds": round(seconds, 1),
        "machine": {
            "card": card_name(machine),
            "kind": machine.kind,
            "count": max(1, len(machine.devices)),
            "memory_bytes": machine.memory_per_device,
            "driver": machine.driver,
            "power_limit_watts": activity.power_limit_watts() if machine.kind == "cuda" else None,
            "processor": machine.processor,
            "cpus": os.cpu_count() or 1,
            "system": machine.system,
            "python": machine.python,
            "cuda": build.cuda if build else None,
        },
        "packages": {**machine.packages, **machines.installed(_TOOLS)},
        "checks": [check.to_json() for check in checks],
        "logs": logs,
    }


def card_name(machine: Machine) -> str:
    """The catalogue's name of the card, the driver's where it has none, or `cpu`."""
    return machine.name if machine.devices else CPU


def row(report: dict[str, Any]) -> dict[str, Any]:
    """The row of a whole report, as `facts/data/proven/` holds it."""
    if report.get("quick"):
        raise StokerError("STK519")
    try:
        machine = report["machine"]
        made = ProvenRow.model_validate(
            {
                **{name: machine[name] for name in ("card", "count", "memory_bytes", "driver", "power_limit_watts")},
                "date": report["date"],
                "stoker": report["stoker"],
                "packages": report["packages"],
                "checks": {check["name"]: _shared(check) for check in report["checks"]},
            }
        )
    except (LookupError, TypeError, ValidationError) as error:
        raise StokerError("STK518", reason=f"{type(error).__name__}") from error
    return made.model_dump()


def _shared(check: dict[str, Any]) -> dict[str, Any]:
    return {name: check[name] for name in ("outcome", "figures", "reason")}
