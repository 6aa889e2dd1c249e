"""Memory that children take, by the kernel's figures: from outside, all the while."""

import contextlib
import ctypes
import gc
import re
import threading
from collections.abc import Callable
from pathlib import Path


def anonymous_bytes(pid: int | str = "self") -> int:
    """Memory of a process that is in no file."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+)", status)[1]) << 10


class MemoryWatch:
    """The most anonymous memory that children forked meanwhile grew by: each of them, and all at a time."""

    def __init__(self, every_seconds: float = 0.002, shared: Callable[[list[int]], int] = lambda _: 0) -> None:
        """Watch the children of this thread.

        Args:
            every_seconds: The pause between two looks.
            shared: What some children have together besides.
        """
        self.growth: dict[int, int] = {}
        """Of each child."""
        self.looks: dict[int, int] = {}
        self.most = 0
        """Of all at a time, with what is shared."""
        self._every_seconds = every_seconds
        self._shared = shared
        self._least: dict[int, int] = {}
        self._over = threading.Event()
        self._children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "MemoryWatch":
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # children would inherit what is free here and take it unseen
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._every_seconds):
            pids = list(map(int, self._children.read_text().split()))
            self.most = max(self.most, sum(map(self._look, pids)) + self._shared(pids))

    def _look(self, pid: int) -> int:
        """By how much a child grew since it had least."""
        with contextlib.suppress(OSError, TypeError):  # gone, or a zombie without memory
            now = anonymous_bytes(pid)
            self._least[pid] = min(now, self._least.get(pid, now))  # what was inherited may go first
            self.looks[pid] = self.looks.get(pid, 0) + 1
            self.growth[pid] = max(self.growth.get(pid, 0), now - self._least[pid])
            return now - self._least[pid]
        return 0
