"""The watch sees what a child takes, and not what it was born with."""

import mmap
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from memory_watch import MemoryWatch

TAKEN = 32 << 20

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's figures"),
    pytest.mark.filterwarnings("default"),  # later Pythons warn of a fork beside a thread
]


@contextmanager
def children(watch: MemoryWatch, *sizes: int) -> Iterator[list[int]]:
    """Processes that take so many bytes once they were looked at, and hold them until they were again."""
    pipes = [os.pipe() for _ in sizes]
    pids = [fork(size, read) for size, (read, _) in zip(sizes, pipes, strict=True)]
    for beyond in (lambda pid: watch.looks.get(pid, 0), lambda pid: watch.growth[pid] >= sizes[pids.index(pid)]):
        while not all(map(beyond, pids)):
            time.sleep(0.01)
        for _, write in pipes:
            os.write(write, b"go")
    yield pids
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * len(pids)


def fork(taken: int, told: int) -> int:
    pid = os.fork()
    if pid == 0:
        os.read(told, 2)
        pages = mmap.mmap(-1, taken, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for at in range(0, taken, mmap.PAGESIZE):
            pages[at] = 1
        os.read(told, 2)
        os._exit(0)
    return pid


def test_each_child_and_all_together() -> None:
    inherited = bytearray(b"1" * TAKEN)
    with MemoryWatch() as watch, children(watch, TAKEN, 2 * TAKEN) as pids:
        pass
    assert len(inherited) == TAKEN
    for pid, times in zip(pids, (1, 2), strict=True):
        assert times * TAKEN <= watch.growth[pid] < (times + 0.5) * TAKEN
    assert 3 * TAKEN <= watch.most < 3.9 * TAKEN


def test_what_is_shared_is_added() -> None:
    with MemoryWatch(shared=lambda pids: 5 * TAKEN if pids else 0) as watch, children(watch, TAKEN):
        pass
    assert watch.most >= 6 * TAKEN
