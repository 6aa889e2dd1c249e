"""Prepared data as the trainer reads it: memory-mapped rows, and one item per optimizer step.

`Steps[k]` is a pure function of (prepared set, seed, k): the step's sequences by `rows.order`, arranged into numbered
logical micro batches, of which a rank gets its own. Stateless: any worker process may compute any step.

Shapes: B sequences of a micro batch, L tokens of the longest of them.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from stoker.engine.mixed_order import MixedOrder
from stoker.engine.parallel import ALONE, Ranks
from stoker.rows.order import Order
from stoker.rundir.prepared import Split

UNTRAINED = -100
"""The label that cross entropy ignores."""

_GROUP_START = 1 / 32
"""Overhead of a micro batch as a share of its token budget: trades padding against many small batches."""

MicroBatch = dict[str, Any]
"""What a model is given of some rows: tensors, and numbers that the host knows of them."""
DOCUMENT_ENDS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
"""Where documents end and the longest of them, as transformers passes it to FlashAttention."""
_ENDS = "ends"
"""Where the documents of a single row end, from 0 on, among the tensors of a micro batch."""
Segment = np.ndarray
"""int32 tokens of one document; an untrained token is stored as ~id."""


def token_ids(segment: Segment) -> np.ndarray:
    """A segment's tokens, trained or not."""
    return np.where(segment < 0, ~segment, segment)


class PreparedSplit:
    """Rows of one split over all its shards, by memory map."""

    def __init__(self, folder: Path, split: Split) -> None:
        self._shards = [Shard(folder / name) for name in split.shards]
        self._first_row = np.cumsum([0] + [len(shard) for shard in self._shards])

    def __len__(self) -> int:
        return int(self._first_row[-1])

    def row(self, index: int) -> list[Segment]:
        """The segments of one sequence."""
        shard, local = self._locate(index)
        return shard.row(local)

    def outline(self, index: int) -> list[Any]:
        """The segments of one sequence as far as their lengths are needed; `loaded` has their tokens."""
        return self.row(index)

    def loaded(self, leaves: list[Any], step: int) -> list[Any]:  # noqa: ARG002  # for sets that are not here
        """The micro batches of a step, made of outlines, with their tokens."""
        return leaves

    def spread(self, count: int) -> list[int]:
        """Indices of `count` sequences spread evenly over the split, or all of a smaller one."""
        return sorted({place * len(self) // count for place in range(count)})

    def trained_tokens(self, index: int) -> int:
        """The number of trained tokens of one sequence."""
        shard, local = self._locate(index)
        return int(shard.trained[local])

    def _locate(self, index: int) -> tuple["Shard", int]:
        number = int(np.searchsorted(self._first_row, index, side="right")) - 1
        return self._shards[number], index - int(self._first_row[number])


class Shard:
    """One shard, by memory map. Of a streamed set the tokens are not there."""

    def __init__(self, folder: Path) -> None:
        here = (folder / "tokens.bin").exists()
        self._tokens = np.memmap(folder / "tokens.bin", dtype="<i4", mode="r") if here else np.empty(0, "<i4")
        self._segments = np.memmap(folder / "segments.bin", dtype="<i8", mode="r")
        self._rows = np.memmap(folder / "rows.bin", dtype="<i8", mode="r")
        self.trained = np.memmap(folder / "trained.bin", dtype="<i4", mode="r")

    def __len__(self) -> int:
        return len(self._rows) - 1

    def row(self, index: int) -> list[Segment]:
        """The segments of a row."""
        return [self._tokens[start:end] for start, end in itertools.pairwise(self.bounds(index))]

    def bounds(self, index: int) -> np.ndarray:
        """Where the segments of a row begin among the shard's tokens, and where the last one ends."""
        return self._segments[self._rows[index] : self._rows[index + 1] + 1]


@dataclass(frozen=True)
class StepItem:
    """One optimizer step: which sequences, how many trained tokens, and its micro batches in order."""

    step: int
    sequences: list[int]
    lengths: list[int]
    """Tokens of each of them."""
    tokens: int
    trained_tokens: int
    padded_tokens: int
    leaves: int
    """Micro batches of the step over all ranks."""
    numbers: list[int]
    """Those this rank computes."""
    shapes: list[dict[str, tuple[int, int]]]
    """Names and shapes of these in order; then of zero-weight stand-ins, if all ranks must run equally often."""
    longest: list[int]
    """The longest document of each of them: kernels are told before the card has read it."""
    flat: torch.Tensor
    """The tokens of all of them, then the number of trained tokens: one tensor, since a loader process passes each with
    a file descriptor, and one copy per step to the device."""

    @property
    def micro_batches(self) -> list[MicroBatch]:
        """Views of the flat tensor, where that is."""
        sizes = [math.prod(shape) for shapes in self.shapes for shape in shapes.values()]
        parts = iter(self.flat[:-1].split(sizes))
        views = [{name: next(parts).view(shape) for name, shape in shapes.items()} for shapes in self.shapes]
        return [
            micro | (document_ends(micro.pop(_ENDS)[0], longest) if _ENDS in micro else {})
            for micro, longest in zip(views, self.longest, strict=True)
        ]

    @property
    def divisor(self) -> torch.Tensor:
        """The number of trained tokens, where the micro batches are."""
        return self.flat[-1]

    def pin_memory(self) -> "StepItem":
        """Called by the loader where memory is pinned."""
        return dataclasses.replace(self, flat=self.flat.pin_memory())

    def to(self, device: torch.device) -> "StepItem":
        """The same on a device; from pinned memory the host does not wait for the copy."""
        return dataclasses.replace(self, flat=self.flat.to(device, non_blocking=self.flat.is_pinned()))


@dataclass(frozen=True)
class Arrangement:
    """How a step's sequences form micro batches."""

    kind: Literal["rows", "grouped"]
    micro: int
    """Sequences of a micro batch; grouped: micro x length tokens are its budget."""
    length: int
    flatten: bool
    """For variable-length attention kernels: one long row per micro batch without padding, and where documents end."""
    pad: int

    def leaves(self, rows: Sequence[list[Segment]]) -> list[Sequence[list[Segment]]]:
        """The numbered logical micro batches of these sequences: the rows of each."""
        if self.kind == "grouped":
            # Documents as rows, padded on the right: causal attention never looks there, so no mask is needed.
            return [[[segment] for segment in group] for group in self._groups(rows)]
        chunks = [rows[i : i + self.micro] for i in range(0, len(rows), self.micro)]
        return [[[s for row in chunk for s in row]] for chunk in chunks] if self.flatten else chunks

    def _groups(self, rows: Sequence[list[Segment]]) -> list[list[Segment]]:
        """Documents grouped by similar length: the cheapest partition of the sorted list.

        A group costs its padded tokens plus a fixed share of the budget, and never exceeds the budget.
        """
        segments = sorted((segment for row in rows for segment in row), key=len, reverse=True)
        budget = self.micro * self.length
        start_cost = budget * _GROUP_START
        best = [0.0]
        cut_before = [0]
        for end in range(1, len(segments) + 1):
            cheapest, cut = math.inf, end - 1
            for first in range(end - 1, -1, -1):
                padded = (end - first) * len(segments[first])
                if padded > budget and first < end - 1:
                    break
                if best[first] + padded < cheapest:
                    cheapest, cut = best[first] + padded, first
            best.append(cheapest + start_cost)
            cut_before.append(cut)
        groups = []
        end = len(segments)
        while end:
            groups.append(segments[cut_before[end] : end])
            end = cut_before[end]
        return groups[::-1]

    def padded(self, rows: Sequence[list[Segment]]) -> MicroBatch:
        """A micro batch: rows side by side. Where a row holds several documents, positions start anew at each of them.

        Attention isolates them only if positions are passed, no mask is, and the cache is off.
        """
        longest = max(sum(map(len, row)) for row in rows)
        packed = any(len(row) > 1 for row in rows)
        ids_BL = np.full((len(rows), longest), self.pad, dtype=np.int64)  # noqa: N806  # shape suffix
        labels_BL = np.full((len(rows), longest), UNTRAINED, dtype=np.int64)  # noqa: N806
        positions_BL = np.zeros((len(rows), longest), dtype=np.int64)  # noqa: N806
        for b, row in enumerate(rows):
            at = 0
            for segment in row:
                end = at + len(segment)
                ids_BL[b, at:end] = token_ids(segment)
                labels_BL[b, at:end] = np.where(segment < 0, UNTRAINED, segment)
                positions_BL[b, at:end] = np.arange(len(segment))
                at = end
            positions_BL[b, at:] = np.arange(longest - at)
        micro = {"input_ids": torch.from_numpy(ids_BL), "labels": torch.from_numpy(labels_BL)}
        if packed:
            micro["position_ids"] = torch.from_numpy(positions_BL)
        return micro

    def ends(self, rows: Sequence[list[Segment]]) -> MicroBatch:
        """Where the documents of a micro batch end, if a kernel takes them: in a single row."""
        if not self.flatten or len(rows) > 1:
            return {}
        return {_ENDS: torch.tensor([list(itertools.accumulate(map(len, rows[0]), initial=0))])}


def document_ends(ends: torch.Tensor, longest: int) -> MicroBatch:
    """Where documents end, by transformers' names; from positions it would read it on the card, in each layer."""
    ends = ends.int()
    return dict(zip(DOCUMENT_ENDS, (ends, ends, longest, longest), strict=True))


class Steps(Dataset[StepItem]):
    """All steps of a run, as a virtual dataset."""

    def __init__(
        self,
        split: PreparedSplit,
        order: Order | MixedOrder,
        arrangement: Arrangement,
        total: int,
        ranks: Ranks,
    ) -> None:
        self._split = split
        self.order = order
        self._arrangement = arrangement
        self._total = total
        self._ranks = ranks

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, step: int) -> StepItem:
        return make_item(self._split, self.order.sequences(step), self._arrangement, step, self._ranks)

    def sequences_read(self, step: int) -> list[int]:
        """The sequences of a step of which this rank reads any token."""
        sequences = self.order.sequences(step)
        if self._ranks.world == 1:
            return sequences
        rows = [self._split.outline(index) for index in sequences]
        leaves = self._arrangement.leaves(rows)
        own = {
            id(segment) for number in _own_leaves(self._ranks, len(leaves)) for row in leaves[number] for segment in row
        }
        return [index for index, row in zip(sequences, rows, strict=True) if any(id(one) in own for one in row)]


def make_item(
    split: PreparedSplit, sequences: list[int], arrangement: Arrangement, step: int, ranks: Ranks
) -> StepItem:
    """The sequences as one step, with this rank's micro batches."""
    rows = [split.outline(index) for index in sequences]
    leaves = arrangement.leaves(rows)
    lengths = [sum(map(len, row)) for row in rows]
    tokens = sum(lengths)
    trained = sum(split.trained_tokens(index) for index in sequences)
    numbers = ranks.leaves(len(leaves))
    own = split.loaded([leaves[number] for number in _own_leaves(ranks, len(leaves))], step)
    micro_batches = [arrangement.padded(leaf) | arrangement.ends(leaf) for leaf in own]
    parts = [tensor.view(-1) for micro in micro_batches for tensor in micro.values()]
    return StepItem(
        step=step,
        sequences=sequences,
        lengths=lengths,
        tokens=tokens,
        trained_tokens=trained,
        padded_tokens=sum(len(leaf) * max(sum(map(len, row)) for row in leaf) for leaf in leaves) - tokens,
        leaves=len(leaves),
        numbers=numbers,
        shapes=[{name: (len(tensor), tensor.shape[1]) for name, tensor in micro.items()} for micro in micro_batches],
        longest=[max(len(segment) for row in leaf for segment in row) for leaf in own],
        flat=torch.cat([*parts, torch.tensor([trained])]),
    )


def _own_leaves(ranks: Ranks, count: int) -> list[int]:
    """The micro batches of a step that this rank computes, then those that stand in for none."""
    numbers = ranks.leaves(count)
    return [*numbers, *[count - 1] * (ranks.turns(count) - len(numbers))]


class InOrder(Sequence[StepItem]):
    """A whole split in its own order, `batch` sequences per item: for evaluation."""

    def __init__(self, split: PreparedSplit, arrangement: Arrangement, batch: int, ranks: Ranks = ALONE) -> None:
        self._split = split
        self._arrangement = arrangement
        self._batch = batch
        self._ranks = ranks

    def __len__(self) -> int:
        return -(-len(self._split) // self._batch)

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        last = min((index + 1) * self._batch, len(self._split))
        return make_item(self._split, list(range(index * self._batch, last)), self._arrangement, index, self._ranks)


class FromStep(Sampler[int]):
    """Step numbers from the resumed one on: O(1) seek. Its length is the whole run, as the Trainer expects."""

    def __init__(self, start: int, total: int) -> None:
        self._start = start
        self._total = total

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._start, self._total))

    def __len__(self) -> int:
        return self._total


def single(items: list[Any]) -> Any:
    """Collate function for loaders whose items are whole steps."""
    (item,) = items
    return item
