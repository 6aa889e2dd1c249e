"""Prepared data as the trainer reads it: memory-mapped rows, and one item per optimizer step.

`Steps[k]` is a pure function of (prepared set, seed, k): the step's sequences by `rows.order`, arranged into numbered
logical micro batches, of which a rank gets its own. Stateless: any worker process may compute any step.

Shapes: B sequences of a micro batch, L tokens of the longest of them.
"""

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from stoker.engine.mixed_order import MixedOrder
from stoker.engine.objective import DESIRED, SFT, Objective
from stoker.engine.parallel import ALONE, Ranks
from stoker.engine.shards import COLUMNS_NAME
from stoker.rows.order import Order
from stoker.rundir.prepared import Split

UNTRAINED = -100
"""The label that cross entropy ignores."""

_GROUP_START = 1 / 32
"""Overhead of a micro batch as a share of its token budget: trades padding against many small batches."""

_OTHER_ANSWER = 0.382
"""How far another row's answer is away, as a share of the split."""

MicroBatch = dict[str, Any]
"""What a model is given of some rows: tensors, and numbers that the host knows of them."""
DOCUMENT_ENDS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
"""Where documents end and the longest of them, as transformers passes it to FlashAttention."""
_ENDS = "ends"
"""Where the documents of a single row end, from 0 on, among the tensors of a micro batch."""
ROWS = "rows"
"""The numbers of the rows of a micro batch in their split, where something is known of each row."""
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
        count = int(shard.trained[local])
        return max(count, ~count)

    def is_desired(self, index: int) -> bool:
        """Whether the answer of a judged row is a good one; true of any other row."""
        shard, local = self._locate(index)
        return bool(shard.trained[local] >= 0)

    def columns(self, index: int) -> dict[str, Any]:
        """Of a prompt: what it asks, and all columns of its row."""
        shard, local = self._locate(index)
        return shard.columns(local)

    def _locate(self, index: int) -> tuple["Shard", int]:
        number = int(np.searchsorted(self._first_row, index, side="right")) - 1
        return self._shards[number], index - int(self._first_row[number])


class Mismatched(PreparedSplit):
    """Every prompt of a split with the answer of another row, no longer than the longest row."""

    def __init__(self, split: PreparedSplit, longest: int) -> None:
        self._split = split
        self._longest = longest
        # Neighbours are often answers to one prompt, or copies of a row; the two halves of a set may be good and bad.
        self._further = round(_OTHER_ANSWER * len(split)) or 1

    def __len__(self) -> int:
        return len(self._split)

    def row(self, index: int) -> list[Segment]:
        """The row's prompt with the other answer."""
        (own,), (other,) = self._split.row(index), self._split.row((index + self._further) % len(self))
        joined = np.concatenate([own[: _answer_start(own)], other[_answer_start(other) :]])
        return [joined[: self._longest]]

    def trained_tokens(self, index: int) -> int:
        """The number of tokens of the other answer."""
        return int(np.count_nonzero(self.row(index)[0] >= 0))


def _answer_start(segment: Segment) -> int:
    return int(np.argmax(segment >= 0))


class Shard:
    """One shard, by memory map. Of a streamed set the tokens are not there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
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

    def columns(self, index: int) -> dict[str, Any]:
        """What is known of a row of prompts."""
        begin = self._ends[index - 1] + 1 if index else 0
        found: dict[str, Any] = json.loads(self._lines[begin : self._ends[index]].tobytes())
        return found

    @functools.cached_property
    def _lines(self) -> np.ndarray:
        return np.memmap(self._folder / COLUMNS_NAME, dtype=np.uint8, mode="r")

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        return np.flatnonzero(self._lines == ord("\n"))

    def bounds(self, index: int) -> np.ndarray:
        """Where the segments of a row begin among the shard's tokens, and where the last one ends."""
        return self._segments[self._rows[index] : self._rows[index + 1] + 1]


@dataclass(frozen=True)
class StepItem:
    """One optimizer step: which sequences, their weight in the loss, and its micro batches in order."""

    step: int
    sequences: list[int]
    lengths: list[int]
    """Tokens of each of them."""
    tokens: int
    trained_tokens: int
    weight: int
    """What the sum of its losses is divided by: the objective's."""
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
    """The tokens of all of them, then the weight: one tensor, since a loader process passes each with
    a file descriptor, and one copy per step to the device."""
    mismatched: "StepItem | None" = None
    """The same prompts with answers of other rows, where the objective looks at them first."""

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
        """The weight, where the micro batches are."""
        return self.flat[-1]

    def pin_memory(self) -> "StepItem":
        """Called by the loader where memory is pinned."""
        other = self.mismatched and self.mismatched.pin_memory()
        return dataclasses.replace(self, flat=self.flat.pin_memory(), mismatched=other)

    def to(self, device: torch.device) -> "StepItem":
        """The same on a device; from pinned memory the host does not wait for the copy."""
        other = self.mismatched and self.mismatched.to(device)
        moved = self.flat.to(device, non_blocking=self.flat.is_pinned())
        return dataclasses.replace(self, flat=moved, mismatched=other)


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
    objective: Objective = SFT
    numbered: bool = False
    """Micro batches have the numbers of their rows, of which something is known besides."""

    @property
    def together(self) -> int:
        """Segments that are never in two micro batches."""
        return 2 if self.objective.pairs else 1

    def leaves(self, rows: Sequence[list[Segment]]) -> list[Sequence[list[Segment]]]:
        """The numbered logical micro batches of these sequences: the rows of each."""
        if self.kind == "grouped":
            # Documents as rows, padded on the right: causal attention never looks there, so no mask is needed.
            return [[[segment] for segment in group] for group in self._groups(rows)]
        chunks = [rows[i : i + self.micro] for i in range(0, len(rows), self.micro)]
        return [[[s for row in chunk for s in row]] for chunk in chunks] if self.flatten else chunks

    def _groups(self, rows: Sequence[list[Segment]]) -> list[list[Segment]]:
        """Documents grouped by similar length: the cheapest partition of the sorted list; pairs stay together.

        A group costs its padded tokens plus a fixed share of the budget, and never exceeds the budget.
        """
        together = self.together
        units = [row[first : first + together] for row in rows for first in range(0, len(row), together)]
        units.sort(key=_longest, reverse=True)
        budget = self.micro * self.length
        start_cost = budget * _GROUP_START
        best = [0.0]
        cut_before = [0]
        for end in range(1, len(units) + 1):
            cheapest, cut = math.inf, end - 1
            for first in range(end - 1, -1, -1):
                padded = (end - first) * together * _longest(units[first])
                if padded > budget and first < end - 1:
                    break
                if best[first] + padded < cheapest:
                    cheapest, cut = best[first] + padded, first
            best.append(cheapest + start_cost)
            cut_before.append(cut)
        groups = []
        end = len(units)
        while end:
            groups.append([segment for unit in units[cut_before[end] : end] for segment in unit])
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


def _longest(unit: Sequence[Segment]) -> int:
    return max(map(len, unit))


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
        self.objective = arrangement.objective
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
    weight = arrangement.objective.weight(len(sequences), trained)
    numbers = ranks.leaves(len(leaves))
    outlined = [leaves[number] for number in _own_leaves(ranks, len(leaves))]
    own = split.loaded(outlined, step)
    micro_batches = [arrangement.padded(leaf) | arrangement.ends(leaf) for leaf in own]
    judged = arrangement.objective.labels and not isinstance(split, Mismatched)
    if arrangement.objective.reference or arrangement.numbered:
        index_of = {id(row[0]): index for row, index in zip(rows, sequences, strict=True)}
        for micro, leaf in zip(micro_batches, outlined, strict=True):
            named = [[index_of[id(row[0])]] for row in leaf[:: arrangement.together]]
            micro[ROWS] = torch.tensor(named)
            if judged:
                micro[DESIRED] = torch.tensor([[int(split.is_desired(index))] for (index,) in named])
    parts = [tensor.view(-1) for micro in micro_batches for tensor in micro.values()]
    return StepItem(
        step=step,
        sequences=sequences,
        lengths=lengths,
        tokens=tokens,
        trained_tokens=trained,
        weight=weight,
        padded_tokens=sum(len(leaf) * max(sum(map(len, row)) for row in leaf) for leaf in leaves) - tokens,
        leaves=len(leaves),
        numbers=numbers,
        shapes=[{name: (len(tensor), tensor.shape[1]) for name, tensor in micro.items()} for micro in micro_batches],
        longest=[max(len(segment) for row in leaf for segment in row) for leaf in own],
        flat=torch.cat([*parts, torch.tensor([weight])]),
        mismatched=make_item(Mismatched(split, arrangement.length), sequences, arrangement, step, ranks)
        if judged
        else None,
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
        self.together = arrangement.together
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
