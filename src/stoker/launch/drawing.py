"""Draws the chart of a comparison, by a program that needs matplotlib and nothing else of the heavy world."""

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

from stoker.errors import StokerError
from stoker.launch import programs
from stoker.rundir import files

_FORMATS = (".png", ".svg", ".pdf")


def check(target: str) -> Path:
    """Check where the chart goes before anything is computed."""
    path = Path(target)
    if path.suffix.lower() not in _FORMATS:
        raise StokerError("STK109", "--plot", given=f"`{target}`", example="`plan.png`")
    if importlib.util.find_spec("matplotlib") is None:
        raise StokerError("STK221", path=target)
    return path


def draw(report: dict[str, Any], target: Path) -> None:
    """Draw time against money."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stoker-") as folder:
        files.write_json(Path(folder) / "compare.json", {**report, "target": str(target.resolve())})
        programs.run_on_folder("plot_plan", Path(folder))
