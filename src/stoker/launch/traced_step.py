"""Traces a step: the real training step with fake tensors on a CPU, through a model of CUDA's allocator."""

import tempfile
from pathlib import Path
from typing import Any

from stoker.errors import StokerError
from stoker.estimate import step as steps
from stoker.launch import programs
from stoker.plan.make import Found
from stoker.rundir import files


def check(found: Found) -> None:
    """Refuse what cannot be traced, before anything is started."""
    programs.check_engine()
    machine, shape = found.inputs.machine, found.inputs.shape.shape
    if machine.kind != "cuda":
        raise StokerError("STK223", card=machine.name)
    if shape.parts:
        raise StokerError("STK235", family=shape.family)


def trace(found: Found) -> dict[str, Any]:
    """The memory of one device, as in `engine.trace.Traced`."""
    with tempfile.TemporaryDirectory(prefix="stoker-") as name:
        folder = Path(name)
        files.write_json(folder / "step.json", steps.to_json(found.way.step))
        programs.run_on_folder("trace", folder)
        traced: dict[str, Any] = files.read_json(folder / "trace.json")
    return traced
