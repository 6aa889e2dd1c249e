"""Rows of one GPU that state everything that decides the memory of their step: judged by their words, not by errors.

Written, and its rows counted, before any interval was made from them. `python benchmarks/stated.py` counts again.
"""

import re
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import measurements
from measurements import Measured

METHODS = ("pretrain", "full", "lora", "qlora")
ALWAYS = ("model", "seq_len", "micro_batch", "grad_checkpointing", "optimizer", "compute_dtype", "weights_dtype", "gpu")
ADAPTER = ("lora_r", "lora_targets")
_OPEN = re.compile(r"^\s*$|\?|see |assumed|not stated|\bor\b|probably")
"""Words of a cell that leaves its value open."""
_EITHER = re.compile(r"eager ?/ ?sdpa|default(?!.*sdpa)")
"""Attention with or without a matrix of scores; which of the kernels without one runs matters little."""


def states_everything(row: Measured) -> bool:
    """Whether a row of one GPU with a graded memory figure leaves nothing open about its step."""
    return considered(row) and not open_columns(row)


def considered(row: Measured) -> bool:
    """Full, LoRA or QLoRA on one GPU, with a memory figure that is compared."""
    graded = not row.memory_reason and row.grade_memory in ("A", "B")
    return graded and row.strategy == "single" and row.method in METHODS


def open_columns(row: Measured) -> list[str]:
    """Columns that leave open what decides the memory of a step."""
    cells = {name: row.row[name].lower() for name in measurements.COLUMNS}
    names = ALWAYS + (ADAPTER if row.method in ("lora", "qlora") else ())
    found = [name for name in names if _OPEN.search(cells[name])]
    # A data set's lengths are in no column: rows are packed, or padded to the length that is stated.
    if not (cells["packed"].startswith("y") or "max" in cells["packed"]) or "var" in cells["flag_mem"]:
        found.append("packed")
    if _OPEN.search(cells["attention"]) or _EITHER.search(cells["attention"]):
        found.append("attention")
    return found


def names_its_meter(row: Measured) -> bool:
    """Whether it says which tool read the figure; where not, nvidia-smi is assumed."""
    return not _OPEN.search(row.row["mem_kind"].lower())


def main() -> None:
    rows = [row for row in measurements.read() if considered(row)]
    chosen = [row for row in rows if states_everything(row)]
    print(f"{len(chosen)} of {len(rows)} rows; {sum(map(names_its_meter, chosen))} of them name their meter")
    for source, count in Counter(row.source for row in chosen).most_common():
        print(f"{count:5} {source}")
    for name, count in Counter(name for row in rows for name in open_columns(row)).most_common():
        print(f"{count:5} leave `{name}` open")


if __name__ == "__main__":
    main()
