"""Memory the allocator reserves beyond what tensors hold: two steps of a shallow model, replayed.

Blocks are alike: those between the first and the last add to what is held, hardly to what is lost between. The second
step matters, because the optimizer's state, made at the end of the first, then lies where the first one's tensors were.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from stoker.estimate.allocator import Allocator, Entry

_COUNTED_FROM = 1 << 20
"""Smaller tensors are ignored: together they fill a few segments of 2 MiB."""


@dataclass(frozen=True)
class Tensors:
    """Bytes of the tensors around a micro batch."""

    held: list[int]
    """Permanent ones."""
    waiting: list[int] = field(default_factory=list)
    """Gradients of earlier micro batches."""
    states: list[int] = field(default_factory=list)
    """Optimizer state, created in the first step."""
    scratch: list[int] = field(default_factory=list)
    """Temporaries of the optimizer step."""


def lost_bytes(log: list[Entry], around: Tensors, *, expandable: bool) -> int:
    """Bytes reserved at the end of two steps beyond the highest bytes allocated.

    Args:
        log: One micro batch's tensors.
        around: The others.
        expandable: Whether segments grow.
    """
    run = _Run(log, expandable=expandable)
    run.make(around.held)
    for turn in range(2 if around.states or around.waiting else 1):
        living = run.micro_batch() if around.waiting else []
        run.drop(living)
        waiting = run.make(around.waiting)
        living = run.micro_batch()
        if turn == 0:
            run.make(around.states)
        run.drop(run.make(around.scratch))
        run.drop([*waiting, *living])
    return run.allocator.peak_reserved - run.allocator.peak_allocated


class _Run:
    """An allocator, and numbers for what it serves."""

    def __init__(self, log: list[Entry], *, expandable: bool) -> None:
        large = {entry[0]: None for entry in log if len(entry) > 1 and entry[1] >= _COUNTED_FROM}
        self._log = [entry for entry in log if abs(entry[0]) in large]
        self._numbers = max(large, default=0) + 1
        for entry in self._log:
            if len(entry) == 1:
                del large[-entry[0]]
        self._left = list(large)
        self.allocator = Allocator(expandable=expandable)
        self._next = 1

    def make(self, sizes: Iterable[int]) -> list[int]:
        """Serve some requests; their numbers."""
        first = self._next
        for size in sizes:
            if size >= _COUNTED_FROM:
                self.allocator.malloc(self._next, size)
                self._next += 1
        return list(range(first, self._next))

    def drop(self, numbers: Iterable[int]) -> None:
        """Free some requests."""
        for number in numbers:
            self.allocator.free(number)

    def micro_batch(self) -> list[int]:
        """Serve the log; returns the numbers of live requests at its end."""
        offset, malloc, free = self._next, self.allocator.malloc, self.allocator.free
        for entry in self._log:
            if len(entry) == 1:
                free(offset - entry[0])
            else:
                malloc(offset + entry[0], entry[1], entry[2])
        self._next += self._numbers
        return [offset + number for number in self._left]
