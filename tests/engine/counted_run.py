"""What a rank does for the sake of the others, counted over real steps of tiny runs with real ranks.

Collectives are counted where Python calls them through `torch.distributed`, by group, with the bytes this rank hands
over; the store by the file it is; files by the interpreter's audit events, those of the main thread apart from those of
others and from the first rank's heartbeat, which follow the clock. What FSDP gathers is its own and not seen here, nor
are DistributedDataParallel's own sums: exact runs do not use those.
"""

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny_run
import torch
import torch.distributed as dist

from stoker.rundir import files
from stoker.rundir.layout import RunDir

COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter_tensor",
    "scatter",
    "send",
)
FILE_EVENTS = ("open", "os.", "shutil.", "socket.", "subprocess.")
FIRST, LAST = 4, 12
"""Steps between which is counted: what happens once is over, and nothing is saved yet."""


def text(base: Path, strategy: str, ranks: int, micros: int) -> str:
    """A run in which every rank computes so many micro batches a step, however many ranks there are."""
    method = "lora, rank: 4" if strategy == "ddp" else "full"
    chosen = f", strategy: {strategy}" if ranks > 1 else ""
    where = f"{{micro: 1, gpus: 0, arrange: rows, processes: {ranks}{chosen}}}"
    return f"""
model: {base}
data: {{train: rows.jsonl, length: 64}}
tune: {{method: {method}}}
train: {{batch: {micros * ranks}, steps: {LAST + 2}, learning_rate: 1e-3, exact: true}}
save: {{every: 1000 steps}}
where: {where}
native: {{trainer: {{report_to: []}}}}
"""


def made(folder: Path, base: Path, strategy: str, ranks: int, micros: int = 2) -> RunDir:
    rows = tiny_run.random_rows(64, seed=5, longest=64)
    return tiny_run.make_run(folder, text(base, strategy, ranks, micros), rows)


def counted(run_dir: RunDir, beside: Callable[[int, int], None] = lambda rank, step: None) -> list[dict[str, Any]]:
    """Train, and what each rank did between two steps. `beside(rank, step)` is called after each."""
    world = files.read_json(run_dir.plan_file)["batch"]["devices"]

    def work(rank: int) -> int:
        import logging

        with (run_dir.path / f"child{rank}.log").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115  # pytest has its own
        logging.disable(logging.WARNING)
        counts = Counts()
        counts.watch(run_dir.path / f"counts-{rank}.json", lambda step: beside(rank, step))
        from stoker.engine import train

        return train.main(run_dir.path)

    start = tiny_run.in_children if world == 1 else tiny_run.in_ranks
    codes = start(world, work)
    assert not any(codes), [(run_dir.path / f"child{rank}.log").read_text()[-2000:] for rank in range(world)]
    return [json.loads((run_dir.path / f"counts-{rank}.json").read_text()) for rank in range(world)]


class Counts:
    """Counts in this process, from the moment it is told to watch."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def watch(self, report: Path, beside: Callable[[int], None]) -> None:
        """Count everything; write what was between the two steps."""
        for name, counting in self.collectives().items():
            setattr(dist, name, counting)
        sys.addaudithook(self._audit)
        from stoker.engine import callbacks

        plain = callbacks.Schedule.on_step_end
        marks: dict[str, Any] = {}

        def on_step_end(schedule: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            done = plain(schedule, args, state, control, **kwargs)
            beside(state.global_step)
            if state.global_step == FIRST:
                marks.update(store=_store_bytes(), at=time.monotonic(), before=self.seen.copy())
            if state.global_step == LAST:
                per_step = {key: count / (LAST - FIRST) for key, count in (self.seen - marks["before"]).items()}
                seconds, store = time.monotonic() - marks["at"], _store_bytes() - marks["store"]
                report.write_text(json.dumps({"per_step": per_step, "seconds": seconds, "store_bytes": store}))
            return done

        callbacks.Schedule.on_step_end = on_step_end  # only in this child

    def collectives(self) -> dict[str, Callable[..., Any]]:
        """Torch's collectives, that count before they are made."""
        return {name: self._counting(name, getattr(dist, name)) for name in COLLECTIVES}

    def _counting(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **kwargs: Any) -> Any:
            group = kwargs.get("group") or next((one for one in args if isinstance(one, dist.ProcessGroup)), None)
            own = "data" if group is None or group is dist.group.WORLD or group.group_name != _control() else "control"
            handed = [one.nbytes for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
            self.seen[f"{own} {name}"] += 1
            # In and out have the same bytes, or one is a part of the other: the smaller is what was handed over.
            self.seen[f"{own} bytes"] += min(handed) if name == "all_gather_into_tensor" else max(handed, default=0)
            return plain(*args, **kwargs)

        return counting

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not event.startswith(FILE_EVENTS):
            return
        thread = "main" if threading.current_thread() is threading.main_thread() else "other"
        beat = bool(args) and str(args[0]).endswith("/heartbeat")  # touched once a second, by the first rank
        self.seen[f"{'other' if beat else thread} {event}"] += 1


def _control() -> str:
    """The name of the second group that was made: the first is torch's default."""
    names = [group.group_name for group in dist.distributed_c10d._world.pg_map]
    return names[1] if len(names) > 1 else ""


def _store_bytes() -> int:
    """Of the file by which ranks met: whatever is set there is added at its end."""
    meeting = Path(os.environ.get("STOKER_RENDEZVOUS", "/nonexistent"))
    return sum(path.stat().st_size for path in meeting.glob("store-*"))


def of(counts: dict[str, Any], kind: str) -> dict[str, float]:
    """What was counted of `control`, `data`, `main` or `other`, per step."""
    return {key.split(" ", 1)[1]: count for key, count in counts["per_step"].items() if key.startswith(f"{kind} ")}
