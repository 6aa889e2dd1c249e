"""What a rank copies and how long training waits, as more ranks share a checkpoint (FSDP2, 1, 2 and 4 of them).

Every rank's link to its memory is a simulation: a copy waits until its bytes would have passed at the same rate. The
rest is real: processes with gloo, the trainer's saves, the files. Bar: bytes and waits fall as 1/N, within 25 %.
Control: shares are put together on the first rank, as where ranks see no common folder; then the waits do not fall.
Usage: python benchmarks/shared_saves.py [--out FILE]
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import reshard
import tiny_run
from tiny_run import replaced, said

from stoker.engine import host_copies, spread
from stoker.rundir import events

ROOT = Path(__file__).resolve().parent.parent
RANKS = (1, 2, 4)
BYTES_PER_SECOND = 64e6
WITHIN = 0.25


def measured(folder: Path, model: str, ranks: int) -> dict[str, Any]:
    """Train to the end; of each save, what the ranks copied and how long training waited."""
    run_dir = reshard.make(folder, model, "full", ("fsdp2", ranks))

    def throttled(plain: Any, tensor: Any) -> Any:
        begun = time.perf_counter()
        copy = plain(tensor)
        time.sleep(max(0.0, copy.nbytes / BYTES_PER_SECOND - (time.perf_counter() - begun)))
        with (folder / f"copied-{os.getpid()}").open("a") as file:
            file.write(f"{copy.nbytes}\n")
        return copy

    with replaced(host_copies, "plain", throttled):
        code = tiny_run.train(run_dir)
    assert code == 0, said(run_dir)
    saves = [event for event in events.read(run_dir.events_file) if event["event"] == "checkpoint"]
    copied = [sum(map(int, path.read_text().split())) for path in folder.glob("copied-*")]
    return {
        "ranks": ranks,
        "writers": saves[-1]["writers"],
        "saves": len(saves),
        "checkpoint_bytes": saves[-1]["bytes"],
        "bytes_per_rank": max(copied) // len(saves),
        "stall_seconds": statistics.median(save["stall_seconds"] for save in saves),
    }


def of_one(rows: list[dict[str, Any]], key: str) -> list[float]:
    """Each figure times its number of ranks, of the figure of one: 1.0 where it falls as 1/N."""
    return [round(row[key] * row["ranks"] / rows[0][key], 3) for row in rows[1:]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/evidence/shared_saves.json")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shared-saves-") as made:
        folder = Path(made)
        model = str(reshard.big_model(folder / "model", asked.width, asked.layers))
        rows = [measured(folder / f"{ranks}", model, ranks) for ranks in RANKS]
        with replaced(spread, "is_shared", lambda *_: False):
            gathered = [rows[0], *(measured(folder / f"gathered-{ranks}", model, ranks) for ranks in RANKS[1:])]
    ratios = {key: of_one(rows, key) for key in ("bytes_per_rank", "stall_seconds")}
    control = of_one(gathered, "stall_seconds")
    met = all(abs(ratio - 1) <= WITHIN for each in ratios.values() for ratio in each)
    report = {
        "what": "sharded saves by 1, 2 and 4 ranks over links of one rate (a simulation): bytes per rank and waits",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": f"just shared-saves --width {asked.width} --layers {asked.layers}",
        "bytes_per_second": BYTES_PER_SECOND,
        "bar": {"within": WITHIN, "times_ranks": ratios, "met": met},
        "control": {"times_ranks": control, "caught": all(ratio > 1 + WITHIN for ratio in control)},
        "shares": rows,
        "gathered": gathered[1:],
        "machine": {"cores": os.cpu_count(), "system": platform.platform(terse=True), "load": os.getloadavg()},
        "versions": {name: version(name) for name in ("torch", "transformers", "safetensors")},
    }
    asked.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: report[key] for key in ("bar", "control")}, indent=1))
    return 0 if met and report["control"]["caught"] else 1


if __name__ == "__main__":
    sys.exit(main())
