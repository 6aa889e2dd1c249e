"""The progress of a run, read from its events: for handles, `train`, `watch` and `runs`. Reads each event once."""

import math
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

from stoker import messages
from stoker.errors import StokerError
from stoker.launch import training
from stoker.rundir import events, last_known
from stoker.rundir.last_known import LastKnown
from stoker.rundir.layout import RunDir
from stoker.settle import settled_record, spending
from stoker.settle.reasons import reason
from stoker.settle.spending import Price, Spent

_RECENT_STEPS = 20
_CURVE_PARTS = 1000
_EVAL_PARTS = 400
_ENDS = ("done", "stopped")
_KEPT = {
    "eval": "evaluation",
    "checkpoint": "checkpoint",
    "save_failed": "failed_save",
    "end": "end",
    "sources": "sources",
    "not_best": "not_best",
    "stalled": "stalled",
    "reference": "reference",
}
"""Events of which the newest counts, and the attribute that holds it."""
_SUPERVISORS = {"STK670", "STK673", "STK674"}
_INTERVENTIONS = {"restart", "replan", "passed_over", "limit", "warning", "lost", "straggler", "alike"}
_INPUT_BOUND_SHARE = 0.2
"""If a larger share of the time is spent waiting for data, loading limits the run."""


@dataclass(frozen=True)
class CurvePoint:
    """Some steps of a curve that follow each other: their middle, their mean, their smallest and largest value."""

    step: float
    mean: float
    low: float
    high: float


class Curve:
    """A figure over the steps of a run, in a few thousand numbers however long it is: neighbours are averaged."""

    def __init__(self, most_parts: int = _CURVE_PARTS) -> None:
        self._most, self._width = most_parts, 1
        self._parts: dict[int, tuple[float, float, float, float, float]] = {}
        """By number: weight, its products with step and value, smallest and largest value."""

    def add(self, step: int, value: float, weight: float = 1.0) -> None:
        """One more value; the mean of a part is weighted."""
        self._put(step // self._width, (weight, weight * step, weight * value, value, value))
        while len(self._parts) > self._most:
            old, self._parts, self._width = self._parts, {}, 2 * self._width
            for number, part in old.items():
                self._put(number // 2, part)

    def _put(self, number: int, new: tuple[float, float, float, float, float]) -> None:
        if (old := self._parts.get(number)) is None:
            self._parts[number] = new
            return
        sums = (old[0] + new[0], old[1] + new[1], old[2] + new[2])
        self._parts[number] = (*sums, min(old[3], new[3]), max(old[4], new[4]))

    def forget_after(self, step: int) -> None:
        """Drop steps that a resume does again."""
        self._parts = {number: part for number, part in self._parts.items() if number * self._width <= step}

    @property
    def points(self) -> list[CurvePoint]:
        """The curve in order."""
        parts = (part for _, part in sorted(self._parts.items()))
        return [CurvePoint(at / weight, sums / weight, low, high) for weight, at, sums, low, high in parts if weight]


@dataclass
class RunProgress:
    """What the events so far say."""

    run_dir: RunDir
    attempt: dict[str, Any] = field(default_factory=dict)
    step: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    checkpoint: dict[str, Any] = field(default_factory=dict)
    failed_save: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Any] = field(default_factory=dict)
    """Which sources differed from the prepared data at the newest start."""
    not_best: dict[str, Any] = field(default_factory=dict)
    """Why the finished model is not of the best step; empty where it is, or none was asked for."""
    stalled: dict[str, Any] = field(default_factory=dict)
    """How long the next step has waited for its rows from a store, and why; empty once it was done."""
    reference: dict[str, Any] = field(default_factory=dict)
    """How far the pass before training is; empty once training has begun."""
    rejected: list[dict[str, Any]] = field(default_factory=list)
    interventions: list[dict[str, Any]] = field(default_factory=list)
    """What the supervisor did or saw: restart, replan, passed_over, limit, warning, lost, straggler; and answers
    that are all scored alike."""
    recent: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))
    first_loss: float | None = None
    newest: str = ""
    """Time of the newest event."""
    read_bytes: int = 0
    _failed_program: str = ""
    price: Price | None = None
    """What the machine costs; None where no price is known."""
    elsewhere: LastKnown | None = None
    """What was last known of a run that was sent to another place; None for one that is here."""
    rehearsed: list[str] = field(default_factory=list)
    """Parts of the newest attempt's rehearsal that are done."""
    loss_curve: Curve = field(default_factory=Curve)
    """The training loss over the run; of old steps some are known."""
    eval_curve: Curve = field(default_factory=lambda: Curve(_EVAL_PARTS))
    """The eval loss over the run."""

    def __post_init__(self) -> None:
        self.price = spending.price(self.run_dir)
        self.elsewhere = last_known.read(self.run_dir)

    def update(self) -> bool:
        """Read new events; returns whether there were any."""
        changed = False
        path = self.run_dir.events_file
        for event, offset in events.follow(path, self.read_bytes) if self.read_bytes else events.recent(path):
            self._take(event)
            self.read_bytes = offset
            changed = True
        if self.recent and training.supervision(self.run_dir).get("started", "") > self.recent[-1]["at"]:
            self.recent.clear()  # of an attempt that was killed with its supervisor: the new one has no step yet
        return changed

    def skim(self) -> None:
        """Read all events, but only the newest step: enough for a list of runs."""
        for event in events.skim(self.run_dir.events_file):
            self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        if not events.is_whole(event):
            return
        kind, self.newest = event["event"], event["at"]
        if kind == "attempt":
            self._begin_attempt(event)
        elif kind == "rejected":
            self.rejected.append(event)
        elif kind in _INTERVENTIONS:
            self.interventions.append(event)
            if kind == "restart":
                self.recent.clear()
        elif kind == "step":
            self._take_step(event)
        elif kind in _KEPT:
            self._keep(event)
        elif kind == "rehearsal":
            self.rehearsed.append(str(event.get("part")))
        elif kind in ("prepare", "error"):
            self._take_error(event)

    def _take_step(self, event: dict[str, Any]) -> None:
        self.step, self.stalled = event, {}
        self.recent.append(event)
        if (value := finite(event["loss"])) is not None:
            self.first_loss = value if self.first_loss is None else self.first_loss
            self.loss_curve.add(event["step"], value)

    def _keep(self, event: dict[str, Any]) -> None:
        setattr(self, _KEPT[event["event"]], event)
        if event["event"] == "eval" and (value := finite(event["eval_loss"])) is not None:
            self.eval_curve.add(event["step"], value)

    def _take_error(self, event: dict[str, Any]) -> None:
        if event["event"] == "prepare":
            if self._failed_program == "prepare":
                self.error = {}  # it was tried again
        elif event["program"] in ("train", "prepare", "supervisor"):
            # Where one rank fails, others fail at its absence; of many bad rows the first is the reason.
            follows = self.error and event["error"]["code"] in ("STK402", "STK423", "STK313", self.error["code"])
            if not follows:
                self.error, self._failed_program = event["error"], event["program"]

    def _begin_attempt(self, event: dict[str, Any]) -> None:
        self.attempt, self.end, self.error, self.not_best, self.stalled = event, {}, {}, {}, {}
        self.reference = {}
        self.recent.clear()
        self.rehearsed.clear()
        for curve in (self.loss_curve, self.eval_curve):
            curve.forget_after(event["resumed_step"])

    @property
    def problem(self) -> StokerError:
        """The run's error."""
        return problem(self.error)

    @property
    def state(self) -> str:
        """`running`, `failed`, `done`, `stopped`, `interrupted` or `new`.

        Of a run at another place what was last known; `sent`, `queued` and `unreachable` are possible then.
        """
        return self.elsewhere.shown_state if self.elsewhere else self.own_state

    @property
    def own_state(self) -> str:
        """The state by the files here; what was killed with its supervisor was interrupted, and can be resumed."""
        if training.is_running(self.run_dir):
            return "running"
        if self.error:
            return "failed"
        if self.end.get("status") in _ENDS:
            return str(self.end["status"])
        if training.was_cut_off(self.run_dir):
            return "interrupted"
        return "failed" if self.attempt or self.run_dir.process_file.exists() else "new"

    @property
    def failed_in(self) -> str:
        """The program whose error made the run fail: `prepare`, `train` or `supervisor`; empty where none did."""
        return self._failed_program if self.error else ""

    @property
    def done_steps(self) -> int:
        """Steps done; of a run elsewhere, as far as that is known."""
        own = int(self.step.get("step", self.attempt.get("resumed_step", 0)))
        return max(own, self.elsewhere.step) if self.elsewhere else own

    @property
    def total_steps(self) -> int:
        """Steps of the run."""
        return int(self.attempt.get("total_steps", 0)) or (self.elsewhere.total_steps if self.elsewhere else 0)

    @property
    def tokens_per_second(self) -> float:
        """Real tokens per second over the last steps."""
        seconds = sum(step["seconds"] for step in self.recent)
        return float(sum(step["tokens"] for step in self.recent) / seconds) if seconds else 0.0

    @property
    def seconds_left(self) -> float:
        """Expected time to the last step."""
        if not self.recent:
            return 0.0
        mean = sum(step["seconds"] for step in self.recent) / len(self.recent)
        return float(mean) * (self.total_steps - self.done_steps)

    @property
    def spent(self) -> Spent | None:
        """Money so far, and at the end where the time left is known; None where no price is known."""
        if self.price is None:
            return None
        running = self.state == "running"
        left = 0.0 if self.state == "done" else self.seconds_left if running and self.recent else None
        return spending.spent(self.run_dir, self.price, left, running=running)

    @property
    def input_bound(self) -> bool:
        """Whether data loading limits the run."""
        seconds = sum(step["seconds"] for step in self.recent)
        waited = sum(step["wait_seconds"] for step in self.recent)
        return len(self.recent) >= 5 and waited > _INPUT_BOUND_SHARE * seconds

    @property
    def is_save_failing(self) -> bool:
        """Whether the newest save was dropped."""
        return bool(self.failed_save) and self.failed_save["at"] > self.checkpoint.get("at", "")

    def figures(self) -> dict[str, Any]:
        """The run's figures, under the names that `stoker watch --json` uses."""
        step, checkpoint = self.step, self.checkpoint
        return {
            "name": self.run_dir.name,
            "state": self.state,
            "step": self.done_steps,
            "total_steps": self.total_steps,
            "epoch": step.get("epoch"),
            "loss": step.get("loss"),
            "learning_rate": step.get("learning_rate"),
            "eval_loss": self.evaluation.get("eval_loss"),
            "eval_step": self.evaluation.get("step"),
            **{
                name: event["figures"]
                for name, event in (("figures", step), ("eval_figures", self.evaluation))
                if event.get("figures")
            },
            "tokens_per_second": self.tokens_per_second,
            "seconds_left": self.seconds_left,
            "input_bound": self.input_bound,
            "memory_bytes": step.get("memory_bytes"),
            "sources": step.get("sources"),
            "checkpoint": {key: checkpoint.get(key) for key in ("step", "bytes", "at")} if checkpoint else None,
            "tier": self.attempt.get("tier"),
            "supervisor": training.supervision(self.run_dir) or None,
            "settled": settled_record.read(self.run_dir) or None,
            "money": asdict(self.spent) if self.spent else None,
            "price": asdict(self.price) if self.price else None,
            "last_step_at": step.get("at"),
            "error": self.error or None,
        }


def problem(written: dict[str, Any]) -> StokerError:
    """An error that a program wrote; the reason inside a supervisor's is translated, too."""
    given = written.get("fields")
    fields = {"cause": "", **given} if isinstance(given, dict) else given  # older runs recorded no cause
    error = StokerError.from_json({**written, "fields": fields})
    if error.code in _SUPERVISORS:
        line = str(error.fields["cause"])
        error.fields["reason"] = reason(str(error.fields["reason"]))
        error.fields["cause"] = messages.text("failure.last_line" if line else "failure.no_line", line=line)
    return error


def finite(value: Any) -> float | None:
    """A loss that can be drawn: a step that was passed over has none, and NaN is written as a word."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def wait_a_little() -> None:
    """Sleep for the interval at which files are polled."""
    time.sleep(0.2)
