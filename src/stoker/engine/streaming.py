"""A split whose tokens are in a store: its index is here, its rows are read while training runs.

`open_split` gives the kind of split that a run directory has, for whoever reads rows.
"""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import get_worker_info

from stoker.config import values
from stoker.config.run import Run
from stoker.engine import mixed_order, read_ahead
from stoker.engine.dataset import Arrangement, PreparedSplit, Segment, Steps
from stoker.engine.parallel import Ranks
from stoker.engine.read_ahead import Carried, ReadAhead, StepCache
from stoker.errors import StokerError
from stoker.plan.plan import Plan
from stoker.rundir import events, set_list
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report, Split
from stoker.rundir.set_list import SetList
from stoker.store.row_ranges import RowPlace, RowRanges


class Piece:
    """A segment of which only the place is known."""

    __slots__ = ("end", "row", "start")

    def __init__(self, row: int, start: int, end: int) -> None:
        self.row, self.start, self.end = row, start, end
        """In tokens, from the beginning of the row."""

    def __len__(self) -> int:
        return self.end - self.start


class StreamedSplit(PreparedSplit):
    """Rows of a training split in a store."""

    def __init__(self, folder: Path, split: Split, listed: SetList, ranges: RowRanges) -> None:
        super().__init__(folder, split)
        self._ranges = ranges
        self.where = ranges.where
        self._sums = [_sums(folder / name) for name in split.shards]
        entries = [listed.files[f"{folder.name}/{name}/{set_list.TOKENS_NAME}"] for name in split.shards]
        self._objects = [set_list.object_name(entry) for entry in entries]
        self._aheads: list[ReadAhead] = []

    def read_ahead(self, aheads: list[ReadAhead]) -> None:
        """Take the rows of steps from these, one for each process that loads."""
        self._aheads = aheads

    def row(self, index: int) -> list[Segment]:
        """The segments of one sequence, fetched now."""
        tokens = _tokens(read_ahead.fetched(self._ranges, self.places([index]))[index])
        return [tokens[piece.start : piece.end] for piece in self.outline(index)]

    def outline(self, index: int) -> list[Any]:
        """The places of a sequence's segments."""
        shard, local = self._locate(index)
        bounds = (shard.bounds(local) - shard.bounds(local)[0]).tolist()
        return [Piece(index, start, end) for start, end in itertools.pairwise(bounds)]

    def loaded(self, leaves: list[Any], step: int) -> list[Any]:
        """The tokens of this rank's micro batches, read ahead."""
        worker = get_worker_info()
        try:
            rows = self._aheads[worker.id if worker else 0].take(step, stride=len(self._aheads))
        except StokerError as error:
            if worker is None:
                raise
            raise Carried(json.dumps(error.to_json())) from error
        tokens = {row: _tokens(content) for row, content in rows.items()}
        return [[[tokens[one.row][one.start : one.end] for one in row] for row in leaf] for leaf in leaves]

    def places(self, rows: Sequence[int]) -> dict[int, RowPlace]:
        """Where rows are in the store."""
        return {row: self._place(row) for row in rows}

    def _place(self, row: int) -> RowPlace:
        number = int(np.searchsorted(self._first_row, row, side="right")) - 1
        local = row - int(self._first_row[number])
        bounds = self._shards[number].bounds(local)
        return RowPlace(
            self._objects[number], 4 * int(bounds[0]), 4 * int(bounds[-1]), self._sums[number][local].tobytes()
        )


def steps(run_dir: RunDir, run: Run, plan: Plan, report: Report, arrangement: Arrangement, ranks: Ranks) -> Steps:
    """All steps of a run, with what brings their rows where they are in a store."""
    split = open_split(run_dir, "train", report.train)
    found = Steps(split, mixed_order.of(run, report, run.train.rows), arrangement, plan.steps.total, ranks)
    if isinstance(split, StreamedSplit):
        processes = max(1, int(plan.native.trainer.get("dataloader_num_workers") or 0))
        folder, kind = run_dir.store_folder / "stream", f"{ranks.world}-{processes}"
        if ranks.first_here:
            read_ahead.clear_others(folder, kind)
        ranks_here = max(1, ranks.world // max(1, len(plan.nodes)))
        limit = values.size_bytes(run.data.cache) // (ranks_here * processes)
        caches = [StepCache(folder / kind / f"{ranks.rank}-{n}", limit, report.digest) for n in range(processes)]
        split.read_ahead([_ahead(split, found, run_dir, ranks, cache) for cache in caches])
    return found


def _ahead(split: StreamedSplit, steps: Steps, run_dir: RunDir, ranks: Ranks, cache: StepCache) -> ReadAhead:
    def tell(kind: str, **fields: Any) -> None:
        if ranks.rank == ranks.rank_here:  # other machines than the first have no events
            events.append(run_dir.events_file, kind, rank=ranks.rank, **fields)

    rows_of = lambda step: sorted(steps.sequences_read(step))  # noqa: E731
    ranges = RowRanges(split.where, run_dir.folder())
    return ReadAhead(ranges, split.places, rows_of, cache, len(steps), tell)


def open_split(run_dir: RunDir, name: str, split: Split) -> PreparedSplit:
    """One split of a run's data, wherever its tokens are."""
    listed = set_list.read(run_dir.data) if name == "train" else None
    if listed is None or not listed.streamed:
        return PreparedSplit(run_dir.data / name, split)
    return StreamedSplit(run_dir.data / name, split, listed, RowRanges(listed.where, run_dir.folder()))


def _sums(shard: Path) -> np.ndarray:
    flat = np.memmap(shard / set_list.SUMS_NAME, dtype=np.uint8, mode="r")
    return flat.reshape(-1, set_list.SUM_BYTES)


def _tokens(content: bytes) -> Segment:
    return np.frombuffer(content, dtype="<i4")
