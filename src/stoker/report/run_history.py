"""What a page needs of a run's events, read once and held in little memory, however many steps there are."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from stoker.api.run_progress import Curve, finite
from stoker.rundir import events
from stoker.rundir.layout import RunDir

_MOST_HAPPENINGS = 60
_MOST_SAMPLES = 12
HAPPENINGS = (
    *("attempt", "restart", "replan", "lost", "straggler", "alike", "passed_over", "warning", "limit"),
    *("rejected", "not_best", "save_failed", "sources", "error", "end"),
)
"""Kinds of events that are told one by one."""


@dataclass
class RunHistory:
    """The curves of a run, what happened to it, and what was measured of its model."""

    learning_rate: Curve = field(default_factory=Curve)
    pace: Curve = field(default_factory=Curve)
    """Tokens per second, weighted by time."""
    memory: Curve = field(default_factory=Curve)
    """Peak of what the allocator reserved on a device, in bytes; without points on a processor."""
    happenings: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_MOST_HAPPENINGS))
    num_happenings: int = 0
    num_attempts: int = 0
    num_saves: int = 0
    num_failed_saves: int = 0
    save_stall_seconds: float = 0.0
    eval_seconds: float = 0.0
    samples: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The newest by prompt."""
    tasks: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """The newest by artifact and task."""
    evaluated: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The newest by artifact."""
    judged: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The newest win rate by judge."""
    best_eval: dict[str, Any] = field(default_factory=dict)
    first_eval: dict[str, Any] = field(default_factory=dict)
    _steps: int = 0
    _tokens: float = 0.0
    _seconds: float = 0.0

    @property
    def tokens_per_step(self) -> float:
        """Mean over the steps that were read."""
        return self._tokens / self._steps if self._steps else 0.0

    @property
    def seconds_per_step(self) -> float:
        """Mean over the steps that were read."""
        return self._seconds / self._steps if self._steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Over all steps, evals and saves aside."""
        return self._tokens / self._seconds if self._seconds else 0.0

    @property
    def peak_bytes(self) -> int:
        """Most that the allocator reserved on a device; 0 where nothing was measured."""
        return int(max((point.high for point in self.memory.points), default=0.0))

    def take(self, event: dict[str, Any]) -> None:
        """One more event."""
        kind = event["event"]
        if kind in HAPPENINGS:
            self.happenings.append(event)
            self.num_happenings += 1
        if kind == "step":
            self._take_step(event)
        elif kind == "attempt":
            self.num_attempts += 1
            for curve in (self.learning_rate, self.pace, self.memory):
                curve.forget_after(event["resumed_step"])
        elif kind == "eval":
            self._take_eval(event)
        elif kind == "checkpoint":
            self.num_saves += 1
            self.save_stall_seconds += finite(event.get("stall_seconds")) or 0.0
        elif kind == "save_failed":
            self.num_failed_saves += 1
        elif kind in ("sample", "task", "evaluated", "judged"):
            self._take_measurement(kind, event)

    def _take_step(self, event: dict[str, Any]) -> None:
        for of_other_weights in (self.evaluated, self.tasks, self.judged):
            of_other_weights.clear()
        step, seconds, tokens = event["step"], event["seconds"], event["tokens"]
        self._steps, self._tokens, self._seconds = self._steps + 1, self._tokens + tokens, self._seconds + seconds
        if (rate := finite(event.get("learning_rate"))) is not None:
            self.learning_rate.add(step, rate)
        if seconds:
            self.pace.add(step, tokens / seconds, seconds)
        if reserved := finite(event.get("memory_bytes")):
            self.memory.add(step, reserved)

    def _take_eval(self, event: dict[str, Any]) -> None:
        self.eval_seconds += finite(event.get("seconds")) or 0.0
        if (value := finite(event["eval_loss"])) is None:
            return
        self.first_eval = self.first_eval or event
        if not self.best_eval or value < self.best_eval["eval_loss"]:
            self.best_eval = event

    def _take_measurement(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "sample":
            said = str(event.get("prompt"))
            self.samples.pop(said, None)
            self.samples[said] = event
            if len(self.samples) > _MOST_SAMPLES:
                del self.samples[next(iter(self.samples))]
        elif kind == "task":
            self.tasks[(str(event.get("artifact") or ""), str(event.get("task")))] = event
        elif kind == "judged":
            self.judged[str(event.get("judge"))] = event
        else:
            self.evaluated[str(event.get("artifact") or "")] = event


def read(run_dir: RunDir) -> RunHistory:
    """The history of a run so far; of the oldest steps of a long one some are left out."""
    history = RunHistory()
    for event, _ in events.recent(run_dir.events_file):
        if events.is_whole(event):
            history.take(event)
    return history
