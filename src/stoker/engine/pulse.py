"""A rank's sign of life: a thread writes once a second what the main thread does, to the folder where ranks meet.

The main thread sets attributes and nothing else: no lock, no file, no clock it would not read anyway. The thread goes
on while the main one waits in a collective, and stops when the process does: a silent rank is a stopped or dead one.
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
"""Steps whose times are shown."""


class Pulse:
    """What a rank is doing, as its main thread leaves it."""

    def __init__(self, *, cuda: bool = False) -> None:
        self.step = 0
        """The one in work, from 1; while saving or evaluating, the one that ended."""
        self.mark = "join"
        """join, open, build, rehearsal, data, micro 1.., sum, update, save, eval; at last end or failed."""
        self.data_seconds: tuple[float, ...] = ()
        """How long the newest steps waited for data."""
        self._cuda = cuda
        self._began: Any = None
        self._computed: deque[tuple[Any, Any, int]] = deque(maxlen=_NEWEST)
        self._own_seconds: deque[float] = deque(maxlen=_NEWEST)

    def waited(self, seconds: float) -> None:
        """A step waited for its data."""
        self.data_seconds = (*self.data_seconds, seconds)[-_NEWEST:]

    def begin(self) -> None:
        """The micro batches of a step begin."""
        self._began = self._now()

    def computed(self, micro_batches: int) -> None:
        """They are through, and no other rank was waited for.

        To be said only where that is so: gradients that are added up after the last one, in the canonical order.
        Where ranks compute while they talk (DDP's own reduction, shards) a slow one slows all, and no time is anyone's.
        """
        self._computed.append((self._began, self._now(), micro_batches))

    def _now(self) -> Any:
        """A moment: by the clock, or a mark in the device's stream, which runs behind."""
        if not self._cuda:
            return time.perf_counter()
        moment = torch.cuda.Event(enable_timing=True)
        moment.record()
        return moment

    # ---- in the thread

    def record(self) -> dict[str, Any]:
        """What is written; own seconds are per micro batch, as ranks may have more or fewer of them."""
        if self._cuda and self._computed:
            # A thread begins on device 0: asked from there, an event of another one takes memory of both.
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
    """A pulse that is written for as long as the block runs; a process that trains alone has none to show it to."""
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
    """Replaced in one step; not synced: who reads it asks about this second."""
    aside = path.with_suffix(".tmp")
    with suppress(OSError):  # the folder goes when the first rank of a machine ends
        aside.write_text(json.dumps(record), encoding="utf-8")
        aside.replace(path)


def _show_stacks_when_asked() -> None:
    if hasattr(signal, "SIGUSR2"):
        faulthandler.register(signal.SIGUSR2, file=sys.stderr, all_threads=True)
