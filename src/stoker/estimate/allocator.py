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


@dataclass(eq=False, slots=True)
class _Block:
    """A block of a segment; the blocks of a segment are linked in address order."""

    address: int
    size: int
    pool: list[tuple[int, int]]
    free: bool = True
    before: "_Block | None" = None
    after: "_Block | None" = None


@dataclass
class Allocator:
    """The allocator of one device."""

    expandable: bool = False
    """`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`: one growing segment per pool."""
    allocated: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    _pools: dict[tuple[int, bool], list[tuple[int, int]]] = field(default_factory=dict, repr=False)
    """Free blocks as sorted (size, address), by stream and by small or large requests."""
    _free: dict[int, _Block] = field(default_factory=dict, repr=False)
    _used: dict[int, _Block] = field(default_factory=dict, repr=False)
    _ends: dict[int, _Block] = field(default_factory=dict, repr=False)
    """The last block of each pool's growing segment, by the pool's identity."""
    _next: int = 0

    def malloc(self, number: int, size: int, stream: int = 0) -> int:
        """Serve a request; returns the size of its block, which counts as allocated."""
        if size == 0:
            return 0
        size = rounded(size)
        small = size <= _SMALL
        pool = self._pools.setdefault((stream, small), [])
        block = self._found(pool, size) or self._new(pool, size, small=small)
        if self._splits(block.size - size, small=small):
            self._cut(block, size)
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
        block.free = True
        if block.after is not None and block.after.free:
            self._join(block, block.after)
        if block.before is not None and block.before.free:
            before = block.before
            self._take(before)
            self._join(before, block, listed=False)
            block = before
        self._list(block)

    def sizes(self) -> dict[int, int]:
        """Bytes of the blocks in use, by the request's number."""
        return {number: block.size for number, block in self._used.items()}

    def _found(self, pool: list[tuple[int, int]], size: int) -> _Block | None:
        """The smallest free block that is large enough, of equal ones that of the lowest address.

        The free end of a growing segment is taken last.
        """
        end = self._ends.get(id(pool))
        for place in range(bisect_left(pool, (size, -1)), len(pool)):
            block = self._free[pool[place][1]]
            if block is not end:
                del pool[place], self._free[block.address]
                return block
        if end is not None and end.free and end.size >= size:
            self._take(end)
            return end
        return None

    def _new(self, pool: list[tuple[int, int]], size: int, *, small: bool) -> _Block:
        if self.expandable:
            return self._grown(pool, size, small=small)
        segment = _segment_size(size)
        block = _Block(self._next, segment, pool)
        self._next += segment
        self._reserve(segment)
        return block

    def _grown(self, pool: list[tuple[int, int]], size: int, *, small: bool) -> _Block:
        """Extend the pool's segment by whole pages until its free end holds the request."""
        page = _SMALL_SEGMENT if small else _LARGE_SEGMENT
        end = self._ends.get(id(pool))
        missing = size - (end.size if end is not None and end.free else 0)
        grown = -(-missing // page) * page
        self._reserve(grown)
        if end is not None and end.free:
            self._take(end)
            end.size += grown
            return end
        if end is None:
            address = self._next
            self._next += 1 << 50  # larger than any device: segments of different pools never touch
        else:
            address = end.address + end.size
        block = _Block(address, grown, pool, before=end)
        if end is not None:
            end.after = block
        self._ends[id(pool)] = block
        return block

    def _reserve(self, size: int) -> None:
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _splits(self, rest: int, *, small: bool) -> bool:
        if small or self.expandable:
            return rest >= _SMALLEST
        return rest > _SMALL

    def _cut(self, block: _Block, size: int) -> None:
        rest = _Block(block.address + size, block.size - size, block.pool, before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        if self._ends.get(id(block.pool)) is block:
            self._ends[id(block.pool)] = rest
        block.after, block.size = rest, size
        self._list(rest)

    def _join(self, block: _Block, after: _Block, *, listed: bool = True) -> None:
        if listed:
            self._take(after)
        block.size += after.size
        block.after = after.after
        if after.after is not None:
            after.after.before = block
        if self._ends.get(id(block.pool)) is after:
            self._ends[id(block.pool)] = block

    def _list(self, block: _Block) -> None:
        insort(block.pool, (block.size, block.address))
        self._free[block.address] = block

    def _take(self, block: _Block) -> None:
        del block.pool[bisect_left(block.pool, (block.size, block.address))]
        del self._free[block.address]


def replay(log: Iterable[Entry], *, expandable: bool = False) -> Peaks:
    """The peaks of a whole log."""
    allocator = Allocator(expandable=expandable)
    for entry in log:
        if len(entry) == 1:
            allocator.free(-entry[0])
        else:
            allocator.malloc(*entry)
    return Peaks(allocator.peak_allocated, allocator.peak_reserved)


def rounded(size: int) -> int:
    """Bytes of a request as the allocator counts it."""
    return max(_SMALLEST, -(-size // _SMALLEST) * _SMALLEST)


def _segment_size(size: int) -> int:
    """Bytes requested from the driver if no free block is large enough."""
    if size <= _SMALL:
        return _SMALL_SEGMENT
    if size < _OWN_SEGMENT:
        return _LARGE_SEGMENT
    return -(-size // _SEGMENT_ROUND) * _SEGMENT_ROUND
