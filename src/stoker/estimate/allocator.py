"""Replays a log of allocations as CUDA's caching allocator (c10/cuda/CUDACachingAllocator.cpp) would serve it.

Models size classes, block splitting and merging, and a pool per stream. Memory is unlimited: nothing is returned to the
driver, so `reserved` only grows. Requests and frees only; knows nothing of tensors.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

MiB = 1 << 20
_SMALLEST = 512
_SMALL = MiB
"""Largest request that is served from a small pool."""
_SMALL_SEGMENT = 2 * MiB
_LARGE_SEGMENT = 20 * MiB
_OWN_SEGMENT = 10 * MiB
"""From here on a request gets a segment of its own."""
_SEGMENT_ROUND = 2 * MiB

Entry = tuple[int, int, int] | tuple[int]
"""(number, bytes, stream) of an allocation, or (-number,) of its free."""


@dataclass(frozen=True)
class Peaks:
    """Peaks of a replay."""

    allocated: int
    """Bytes of blocks in use, as `torch.cuda.max_memory_allocated` counts them."""
    reserved: int
    """Bytes taken from the driver, as `torch.cuda.max_memory_reserved` counts them."""


class _Pool:
    """Where requests of one stream, small or large ones, are served from."""

    __slots__ = ("end", "free", "least_rest", "page")

    def __init__(self, page: int, least_rest: int) -> None:
        self.free: list[tuple[int, int, _Block]] = []
        """Free blocks as sorted (size, address, block); addresses differ, so that blocks are never compared."""
        self.end: _Block | None = None
        """The last block of the growing segment."""
        self.page = page
        """By how many bytes a growing segment grows."""
        self.least_rest = least_rest
        """What is left of a block is cut off from so many bytes on."""

    def remove(self, block: "_Block") -> None:
        del self.free[bisect_left(self.free, (block.size, block.address))]


class _Block:
    """A block of a segment; the blocks of a segment are linked in address order."""

    __slots__ = ("address", "after", "before", "free", "pool", "size")

    def __init__(
        self, address: int, size: int, pool: _Pool, before: "_Block | None" = None, after: "_Block | None" = None
    ) -> None:
        self.address, self.size, self.pool = address, size, pool
        self.before, self.after = before, after
        self.free = True

    def absorb(self, after: "_Block") -> None:
        """Grow by the block after this one."""
        self.size += after.size
        self.after = after.after
        if self.after is not None:
            self.after.before = self
        if self.pool.end is after:
            self.pool.end = self


@dataclass
class Allocator:
    """The allocator of one device. A table calls `malloc` and `free` a hundred thousand times: no layers in them."""

    expandable: bool = False
    """`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`: one growing segment per pool."""
    allocated: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    _pools: dict[tuple[int, bool], _Pool] = field(default_factory=dict, repr=False)
    """By stream and by small or large requests."""
    _used: dict[int, _Block] = field(default_factory=dict, repr=False)
    _next: int = 0

    def malloc(self, number: int, size: int, stream: int = 0) -> int:
        """Serve a request; returns the size of its block, which counts as allocated.

        From the smallest free block that is large enough, of equal ones that of the lowest address; the free end of a
        growing segment is taken last.
        """
        if size == 0:
            return 0
        size = -(-size // _SMALLEST) * _SMALLEST
        pool = self._pools.get((stream, size <= _SMALL)) or self._new_pool(stream, small=size <= _SMALL)
        free = pool.free
        place = bisect_left(free, (size,))
        if place + 1 < len(free) and free[place][2] is pool.end:
            place += 1
        block = free.pop(place)[2] if place < len(free) else self._new(pool, size)
        rest = block.size - size
        if rest >= pool.least_rest:
            after = block.after
            block.after = cut = _Block(block.address + size, rest, pool, block, after)
            block.size = size
            if after is not None:
                after.before = cut
            if pool.end is block:
                pool.end = cut
            insort(free, (rest, cut.address, cut))
        block.free = False
        self._used[number] = block
        self.allocated += block.size
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated
        return block.size

    def free(self, number: int) -> None:
        """Free a block and merge it with free neighbours."""
        block = self._used.pop(number, None)
        if block is None:
            return
        self.allocated -= block.size
        pool, before, after = block.pool, block.before, block.after
        if after is not None and after.free:
            pool.remove(after)
            block.absorb(after)
        if before is not None and before.free:
            pool.remove(before)
            before.absorb(block)
            block = before
        block.free = True
        insort(pool.free, (block.size, block.address, block))

    def sizes(self) -> dict[int, int]:
        """Bytes of the blocks in use, by the request's number."""
        return {number: block.size for number, block in self._used.items()}

    def _new_pool(self, stream: int, *, small: bool) -> _Pool:
        least_rest = _SMALLEST if small or self.expandable else _SMALL + 1
        made = self._pools[stream, small] = _Pool(_SMALL_SEGMENT if small else _LARGE_SEGMENT, least_rest)
        return made

    def _new(self, pool: _Pool, size: int) -> _Block:
        if self.expandable:
            return self._grown(pool, size)
        segment = _segment_size(size)
        block = _Block(self._next, segment, pool)
        self._next += segment
        self._reserve(segment)
        return block

    def _grown(self, pool: _Pool, size: int) -> _Block:
        """Extend the pool's segment by whole pages until its free end holds the request."""
        end = pool.end
        missing = size - (end.size if end is not None and end.free else 0)
        grown = -(-missing // pool.page) * pool.page
        self._reserve(grown)
        if end is not None and end.free:
            pool.remove(end)
            end.size += grown
            return end
        if end is None:
            address = self._next
            self._next += 1 << 50  # larger than any device: segments of different pools never touch
        else:
            address = end.address + end.size
        pool.end = block = _Block(address, grown, pool, before=end)
        if end is not None:
            end.after = block
        return block

    def _reserve(self, size: int) -> None:
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)


def replay(log: Iterable[Entry], *, expandable: bool = False) -> Peaks:
    """The peaks of a whole log."""
    allocator = Allocator(expandable=expandable)
    for entry in log:
        if len(entry) == 1:
            allocator.free(-entry[0])
        else:
            allocator.malloc(*entry)
    return Peaks(allocator.peak_allocated, allocator.peak_reserved)


def _segment_size(size: int) -> int:
    """Bytes requested from the driver if no free block is large enough."""
    if size <= _SMALL:
        return _SMALL_SEGMENT
    if size < _OWN_SEGMENT:
        return _LARGE_SEGMENT
    return -(-size // _SEGMENT_ROUND) * _SEGMENT_ROUND
