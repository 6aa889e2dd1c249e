"""Detects bad steps and out-of-memory errors, reads which steps to pass over, and touches the heartbeat file.

A bad step ends the process with an error; the supervisor decides, by the plan, whether the run returns to the last
checkpoint and passes over the step. A step that is passed over keeps its number and makes no update (law 2).
"""

import math
import statistics
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from stoker.errors import StokerError
from stoker.plan.plan import GuardPlan
from stoker.rundir import events, in_place

_RECENT = 20
_LEAST = 5
"""Losses needed for a meaningful median."""
_BEAT_SECONDS = 1.0
_NO_MEMORY = (
    *("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory", "out of memory"),
    # A card without room for a library's workspace; the handle of cuBLAS is created in the first product of matrices.
    *("CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED", "CUDNN_STATUS_ALLOC_FAILED"),
)


class StepGuard:
    """Checks every step's loss and gradient norm, in order."""

    def __init__(self, guard: GuardPlan, past: "Past") -> None:
        """Start with the losses before the resumed step, so that a resume judges like the whole run."""
        self._spike = guard.spike
        self._recent: deque[float] = deque(past.losses, maxlen=_RECENT)

    def check(self, step: int, loss: float, norm: float | None, *, scaled: bool) -> None:
        """Refuse a bad step.

        Args:
            step: Its number.
            loss: Its loss.
            norm: Its gradient norm, if gradients are clipped.
            scaled: Whether a loss scaler skips overflowing steps by design.
        """
        if not math.isfinite(loss):
            raise StokerError("STK405", step=step, loss=loss)
        if norm is not None and not math.isfinite(norm) and not scaled:
            # Without a scaler it would make the weights NaN.
            raise StokerError("STK416", step=step, norm=norm)
        if self._spike is not None and len(self._recent) >= _LEAST:
            median = statistics.median(self._recent)
            if loss > self._spike * median:
                raise StokerError("STK672", step=step, loss=f"{loss:.4f}", times=f"{loss / median:.1f}")
        self._recent.append(loss)


class Heartbeat:
    """A file that is touched while work is done, at most once a second."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._beat_at = 0.0

    def beat(self) -> None:
        """Touch the file."""
        now = time.monotonic()
        if self._path is not None and now - self._beat_at >= _BEAT_SECONDS:
            self._beat_at = now
            with suppress(OSError):  # a full or lost disk is reported by writes that matter
                in_place.touch(self._path)


@dataclass(frozen=True)
class Past:
    """Past steps, from the events."""

    passed_over: tuple[int, ...]
    """Steps the supervisor passed over, by number from 1."""
    losses: tuple[float, ...]
    """Of the newest steps before the resumed one, if the spike guard needs them."""


def read_past(guard: GuardPlan, path: Path, resumed_step: int) -> Past:
    """The past of a run, from its events."""
    found = (event for event in events.skim(path) if event["event"] == "passed_over" and events.is_whole(event))
    passed_over = tuple(event["step"] for event in found)
    if guard.spike is None:
        return Past(passed_over, ())
    newest = events.newest_steps(path, _RECENT, resumed_step)
    before = [events.loss(event) for step, event in sorted(newest.items()) if step <= resumed_step]
    return Past(passed_over, tuple(loss for loss in before[-_RECENT:] if loss is not None and math.isfinite(loss)))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or the machine ran out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _NO_MEMORY)
