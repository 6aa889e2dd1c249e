"""C10: from a restart to the first new step: start-up and load; the data position is found in O(1) at 10^8 sequences.

`--n` is how many random positions of a prepared set of 10^8 sequences are sought, each in a freshly opened set.
Then a whole restart of a tiny real run in a cold process is timed, part by part. No control: it measures.
"""

import datetime
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy
import tiny_run
import trainings
from campaign import Campaign

from stoker.engine.dataset import Arrangement, PreparedSplit, Steps
from stoker.engine.parallel import ALONE
from stoker.rows.order import Order
from stoker.rundir import events
from stoker.rundir.prepared import Split

SEQUENCES = int(os.environ.get("STOKER_CAMPAIGN_SEQUENCES", 10**8))
LENGTH, BATCH, SHARDS = 8, 64, 10
LIMIT_SECONDS = 1.0


def run(campaign: Campaign) -> None:
    split = _make(campaign.folder / "train")
    took = []
    for number in range(campaign.n):
        started = time.perf_counter()
        order = Order("digest", 42, SEQUENCES, BATCH)
        arrangement = Arrangement("grouped", 8, LENGTH, flatten=False, pad=0)
        opened = PreparedSplit(campaign.folder / "train", split)
        total = 3 * order.steps_per_epoch
        step = campaign.random(number).randrange(total)
        item = Steps(opened, order, arrangement, total, ALONE)[step]
        took.append(time.perf_counter() - started)
        if list(item.sequences) != list(order.sequences(step)) or item.tokens != LENGTH * len(item.sequences):
            campaign.fail([number], f"step {step} holds other sequences")
        if took[-1] > LIMIT_SECONDS:
            campaign.fail([number], f"{took[-1]:.2f} s")
        campaign.case()
    took.sort()
    campaign.measured |= {
        "sequences": SEQUENCES,
        "seek_seconds_median": round(took[len(took) // 2], 4),
        "seek_seconds_worst": round(took[-1], 4),
    }
    campaign.measured["restart"] = _restart(campaign)


def _make(folder: Path) -> Split:
    """Offsets are real; tokens are holes in a file: what is sought is a position, not text."""
    per = SEQUENCES // SHARDS
    for shard in range(SHARDS):
        path = folder / f"shard-{shard:05d}"
        path.mkdir(parents=True)
        rows = numpy.arange(per + 1, dtype="<i8")
        rows.tofile(path / "rows.bin")
        (rows * LENGTH).astype("<i8").tofile(path / "segments.bin")
        numpy.full(per, LENGTH - 1, dtype="<i4").tofile(path / "trained.bin")
        with (path / "tokens.bin").open("wb") as file:
            file.truncate(4 * per * LENGTH)
    return Split(
        sequences=SEQUENCES,
        segments=SEQUENCES,
        tokens=SEQUENCES * LENGTH,
        trained_tokens=SEQUENCES * (LENGTH - 1),
        longest=LENGTH,
        longest_segment=LENGTH,
        shards=[f"shard-{shard:05d}" for shard in range(SHARDS)],
        files={},
    )


def _restart(campaign: Campaign) -> dict[str, float]:
    """A cold process that goes on from a checkpoint, against one that only imports what it needs."""
    base = tiny_run.make_base_model(campaign.folder / "base")
    run_dir = trainings.make(campaign.folder / "run", trainings.text(base, train="{batch: 4, steps: 12}"))
    assert tiny_run.train(run_dir, stop_after=6) == 75
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import stoker.engine.train, peft"], check=True, capture_output=True)
    imports = time.perf_counter() - started
    offset = run_dir.events_file.stat().st_size
    started, clock = time.time(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "stoker.engine.train", str(run_dir.path)], check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    whole = time.perf_counter() - clock
    first = next(e for e, _ in events.follow(run_dir.events_file, offset) if e["event"] == "step")
    to_first = datetime.datetime.fromisoformat(first["at"]).timestamp() - started
    return {
        "imports_seconds": round(imports, 2),
        "start_to_first_new_step_seconds": round(to_first, 2),
        "whole_process_seconds": round(whole, 2),
        "first_step": first["step"],
    }
