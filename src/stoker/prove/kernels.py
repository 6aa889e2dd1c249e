"""Attention kernels, each by one call forward and backward, measured against arithmetic in 64 bits."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from stoker.launch import programs
from stoker.prove.check import Check, anonymous, failed, passed
from stoker.prove.trials import Trials
from stoker.rundir import files

_MOST_EPSILONS = 16.0
"""How far a kernel may be off, in units of its type's last place: sums of 256 products, in any order."""


def attention(on: Trials) -> Check:
    """Every implementation that runs here computes what it should; one that does not run is named."""
    return judged(_tried(on.folder))


def judged(found: dict[str, dict[str, Any]]) -> Check:
    """The verdict on what the program wrote."""
    figures = {name: _figures(one) for name, one in found.items()}
    wrong = [name for name, one in found.items() if one["ran"] and not _is_close(one)]
    if wrong:
        return failed("attention", "prove.reason.kernels", figures, names=", ".join(wrong))
    return passed("attention", **figures)


def _tried(folder: Path) -> dict[str, dict[str, Any]]:
    aside = Path(tempfile.mkdtemp(prefix="kernels-", dir=folder))
    try:
        programs.run_on_folder("attention_kernels", aside)
        return files.read_object(aside / "attention_kernels.json")
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _is_close(one: dict[str, Any]) -> bool:
    return bool(one["error"] <= _MOST_EPSILONS * one["epsilon"])


def _figures(one: dict[str, Any]) -> dict[str, Any]:
    if not one["ran"]:
        return {"ran": False, "dtype": one["dtype"], "reason": anonymous(one["reason"])}
    return {"ran": True, "dtype": one["dtype"], "error": one["error"]}
