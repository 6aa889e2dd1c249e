"""A rank's heartbeat: a thread writes once a second what the main thread does, to the rendezvous folder.

The main thread only sets attributes: no lock, no file, no extra clock. The thread keeps running while the main thread
waits in a collective, and stops with the process: a silent rank is stopped or dead.
`SIGUSR2` writes the stacks of all threads into the rank's log, also while the main one hangs.
"""

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from stoker import env

_BEAT_SECONDS = 1.0
_NEWEST = 20
"""Steps whose times are reported."""


class Pulse:
    """What a rank is doing, as set by its main thread."""

    def __init__(self, *, cuda: bool = False) -> None:
        self.step = 0
        """The current step, from 1; while saving or evaluating, the last one."""
        self.mark = "join"
        """join, open, build, rehearsal, data, micro 1.., sum, update, save, eval; at last end or failed."""
        self.data_seconds: tuple[float, ...] = ()
        """How long the newest steps waited for data."""
        self._cuda = cuda
        self._began: Any = None
        self._computed: deque[tuple[Any, Any, int]] = deque(maxlen=_NEWEST)
        self._own_seconds: deque[float] = deque(maxlen=_NEWEST)

    def waited(self, seconds: float) -> None:
        """Record a step's wait for data."""
        self.data_seconds = (*self.data_seconds, seconds)[-_NEWEST:]

    def begin(self) -> None:
        """Start timing the micro batches of a step."""
        self._began = self._now()

    def computed(self, micro_batches: int) -> None:
        """Stop timing them.

        Only valid if no other rank was waited for: gradients are reduced after the last micro batch, in the canonical
        order. With overlapped communication (DDP's own reduction, FSDP) a slow rank slows all, and times say nothing.
        """
        self._computed.append((self._began, self._now(), micro_batches))

    def _now(self) -> Any:
        """A timestamp: by the clock, or a CUDA event in the device's asynchronous stream."""
        if not self._cuda:
            return time.perf_counter()
        moment = torch.cuda.Event(enable_timing=True)
        moment.record()
        return moment

    # ---- in the thread

    def record(self) -> dict[str, Any]:
        """The record to write; own seconds are per micro batch, because ranks may have different numbers of them."""
        if self._cuda and self._computed:
            # A thread starts on device 0: querying another device's event from there would create a context on both.
            torch.cuda.set_device(int(env.read(env.LOCAL_RANK, "0")))
        while self._computed and _is_over(self._computed[0][1]):
            began, ended, count = self._computed.popleft()
            self._own_seconds.append(_seconds(began, ended) / count)
        return {
            "step": self.step,
            "mark": self.mark,
            "own_seconds": [round(seconds, 6) for seconds in self._own_seconds],
            "data_seconds": [round(seconds, 6) for seconds in self.data_seconds],
        }


def _is_over(moment: Any) -> bool:
    return isinstance(moment, float) or moment.query()


def _seconds(began: Any, ended: Any) -> float:
    return ended - began if isinstance(ended, float) else began.elapsed_time(ended) / 1000


@contextmanager
def beating(rank: int, *, cuda: bool) -> Iterator[Pulse]:
    """A pulse that is written while the block runs; not written by a single process."""
    _show_stacks_when_asked()
    pulse = Pulse(cuda=cuda)
    meeting = env.read(env.RENDEZVOUS)
    if not meeting:
        yield pulse
        return
    ended = threading.Event()
    who = {"rank": rank, "pid": os.getpid(), "node": env.read(env.NODE)}
    path = Path(meeting) / f"pulse-{rank}.json"
    thread = threading.Thread(target=_beat, args=(path, who, pulse, ended), name="pulse", daemon=True)
    thread.start()
    try:
        yield pulse
        pulse.mark = "end"
    except BaseException:
        pulse.mark = "failed"
        raise
    finally:
        ended.set()
        thread.join()


def _beat(path: Path, who: dict[str, Any], pulse: Pulse, ended: threading.Event) -> None:
    over = False
    while not over:
        over = ended.is_set()
        _write(path, {**who, "at": round(time.time(), 3), **pulse.record()})
        ended.wait(_BEAT_SECONDS)


def _write(path: Path, record: dict[str, Any]) -> None:
    """Replaced atomically; not synced: readers only need the current second."""
    aside = path.with_suffix(".tmp")
    with suppress(OSError):  # the folder is removed when the first rank of the node ends
        aside.write_text(json.dumps(record), encoding="utf-8")
        aside.replace(path)


def _show_stacks_when_asked() -> None:
    if hasattr(signal, "SIGUSR2"):
        faulthandler.register(signal.SIGUSR2, file=sys.stderr, all_threads=True)
