"""The training program, looked at: `python -m stoker.engine.observed_training RUN_DIR` trains as `train` does.

Afterwards RUN_DIR/observed.json has the peak memory of the process, as torch and the system count it, and every call
that made the processor wait for the GPU, by the line that made it (torch's sync debug mode).
"""

import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from stoker.engine import program, train
from stoker.rundir import files

_SYNCHRONISING = "called a synchronizing CUDA operation"


def main(path: Path) -> int:
    """Train, then write what was seen."""
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        code = train.main(path)
    files.write_json(path / "observed.json", {**_memory(cuda=cuda), **synchronisations(said)})
    return code


def synchronisations(said: list[warnings.WarningMessage]) -> dict[str, Any]:
    """How often the processor waited, and where: `stoker/engine/trainer.py:120`, without the folders above."""
    waits = [one for one in said if _SYNCHRONISING in str(one.message)]
    places = Counter(f"{_inside(one.filename)}:{one.lineno}" for one in waits)
    return {"synchronisations": len(waits), "places": dict(places.most_common())}


def _memory(*, cuda: bool) -> dict[str, int | None]:
    """Peaks in bytes; None where they cannot be measured."""
    return {
        "allocated_bytes": torch.cuda.max_memory_allocated() if cuda else None,
        "reserved_bytes": torch.cuda.max_memory_reserved() if cuda else None,
        "process_bytes": _peak_of_process(),
    }


def _peak_of_process() -> int | None:
    file = Path("/proc/self/status")
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), None)


def _inside(filename: str) -> str:
    """A file's place inside its package."""
    parts = Path(filename).parts
    for folder in ("site-packages", "dist-packages", "src"):
        if folder in parts:
            return "/".join(parts[len(parts) - parts[::-1].index(folder) :])
    return parts[-1]


if __name__ == "__main__":
    sys.exit(program.run(main))
