"""What happens around the steps, and when: the life of a training process.

open run directory, read plan, join the other ranks             train.main, parallel
newest verified checkpoint?  -> tier; to machines without it    train.main, spread    event: attempt
build model, trainer                                            models, trainer
on_train_begin      rehearse: longest batch, eval, save         Rehearsal             event: rehearsal
for each step                                                   (transformers' loop)
    training_step   micro batches -> gradients                  trainer
    clip, optimizer, scheduler                                  (transformers' loop)
    on_step_end     event; save? evaluate? stop?                Recorder, Schedule    event: step
    evaluate                                                    trainer               event: eval
    copy to the host; a thread writes and commits               trainer, saving       event: checkpoint
last checkpoint -> artifacts/final                              train.main            event: end
"""

import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from transformers import TrainerCallback

from stoker.config import objectives, values
from stoker.config.run import Run
from stoker.config.values import Every
from stoker.engine.guard import StepGuard
from stoker.engine.parallel import Ranks
from stoker.engine.saving import Saver
from stoker.plan.plan import Plan
from stoker.rows import order
from stoker.rundir.events import EventLog


class StopRequest:
    """A stop requested by a signal or, on the first rank, by the run directory's stop file; read between steps."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._signalled = False
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGBREAK"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True

    @property
    def requested(self) -> bool:
        """Whether to commit and end now."""
        # Not `Path.exists`: it raises if the disk is gone.
        return self._signalled or (self._file is not None and os.path.exists(self._file))  # noqa: PTH110


class Schedule(TrainerCallback):
    """Decides at each step boundary whether to evaluate, to save and to stop."""

    def __init__(self, plan: Plan, stop: StopRequest, ranks: Ranks, saver: Saver) -> None:
        self._plan = plan
        self._ranks = ranks
        self._saver = saver
        self._save = values.every(plan.intervals.save)
        self._evaluate = values.every(plan.intervals.evaluate)
        self._stop = stop
        self._saved_at = time.monotonic()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start background checks once the data loader's workers run."""
        self._saver.start_checks()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Set the Trainer's flags; it evaluates before it saves."""
        step, per_epoch = state.global_step, self._plan.steps.per_epoch
        last = step >= self._plan.steps.total
        # The Trainer sees the whole run as one pass; report the epoch of the data.
        state.epoch = step / per_epoch
        elapsed = time.monotonic() - self._saved_at
        due = self._saver.is_due(due=self._is_save_due(step, per_epoch, elapsed))
        (save,) = self._ranks.agree([due])
        (stop,) = self._ranks.anyone([self._stop.requested])
        control.should_evaluate = _due(self._evaluate, step, per_epoch) or (last and self._evaluate.kind != "never")
        control.should_save = last or stop or save
        control.should_training_stop = last or stop
        if control.should_save:
            self._saved_at = time.monotonic()
        return control

    def _is_save_due(self, step: int, per_epoch: int, elapsed_seconds: float) -> bool:
        if self._save.kind == "auto":
            return elapsed_seconds >= self._saver.interval_seconds
        return _due(self._save, step, per_epoch, elapsed_seconds)


def _due(every: Every, step: int, per_epoch: int, elapsed_seconds: float = 0) -> bool:
    if every.kind == "epoch":
        return step % per_epoch == 0
    if every.kind == "steps":
        return step % int(every.amount) == 0
    return every.kind == "seconds" and elapsed_seconds >= every.amount


class Best(TrainerCallback):
    """Tracks the best eval loss and its step in the Trainer's state, which is saved with each checkpoint."""

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **kwargs: Any) -> Any:
        """A new best is committed at once."""
        loss = metrics["eval_loss"]
        if state.best_metric is None or loss < state.best_metric:
            state.best_metric = loss
            state.best_global_step = state.global_step
            control.should_save = True
        return control


def flush_every(run: Run, device: str) -> int:
    """After so many steps their losses are looked at, which waits for the card."""
    if objectives.facts(run.train.objective).prompts:
        return 1  # answers by weights that a bad step made are never committed
    return 1 if device == "cpu" else 10


class Recorder(TrainerCallback):
    """Writes an event per step. Losses stay on the device until a flush, to avoid synchronising with the GPU."""

    def __init__(self, events: EventLog, steps_per_epoch: int, flush_every: int, guard: StepGuard) -> None:
        self._events = events
        self._guard = guard
        self._steps_per_epoch = steps_per_epoch
        self._flush_every = flush_every
        self._pending: list[tuple[dict[str, Any], torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]] = []
        self._learning_rate = 0.0
        self.trainer: Any = None
        self._started = time.perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the step's clock, including the wait for data."""
        self._started = time.perf_counter() - self.trainer.wait_seconds

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the learning rate: the scheduler advances before the step ends."""
        self._learning_rate = self.trainer.lr_scheduler.get_last_lr()[0]

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Buffer the step; flush when enough are pending, or before a save or an evaluation."""
        item, seen = self.trainer.last_item, self.trainer.seen
        seen.add(item.step, item.lengths)
        counts = seen.counts(state.global_step)
        fields = {
            "step": state.global_step,
            "epoch": state.global_step / self._steps_per_epoch,
            "learning_rate": self._learning_rate,
            "sequences": len(item.sequences),
            "order": order.check(item.sequences),
            "micro_batches": item.leaves,
            "tokens": item.tokens,
            "trained_tokens": item.trained_tokens,
            "padded_tokens": item.padded_tokens,
            "seconds": round(time.perf_counter() - self._started, 6),
            "wait_seconds": round(self.trainer.wait_seconds, 6),
            "memory_bytes": torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0,
            **({"sources": counts} if counts else {}),
        }
        trainer = self.trainer
        if trainer.rollouts is not None and trainer.last_losses is not None:
            fields["figures"] = dict(trainer.rollouts.figures)
        self._pending.append((fields, trainer.last_losses, trainer.last_norm, trainer.last_figures))
        if len(self._pending) >= self._flush_every or control.should_save or control.should_evaluate:
            self.flush()

    def flush(self) -> None:
        """Write pending steps; a bad step ends the process."""
        for fields, losses, norm, figures in self._pending:
            if losses is None:  # passed over
                self._events.write("step", **fields, loss=None, grad_norm=None)
                continue
            value = sum(losses.tolist())
            norm_value = None if norm is None else norm.item()
            if figures is not None:
                named = zip(self.trainer.objective.figures, figures.tolist(), strict=True)
                fields["figures"] = {**fields.get("figures", {}), **{name: _json(value) for name, value in named}}
            self._events.write("step", **fields, loss=_json(value), grad_norm=_json(norm_value))
            self._guard.check(fields["step"], value, norm_value, scaled=self.trainer.accelerator.scaler is not None)
            if self.trainer.rollouts is not None:
                self.trainer.rollouts.check(fields["step"], float(fields["figures"]["gap"]))
        self._pending.clear()
        self._events.cut()

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **kwargs: Any) -> None:
        """Write an eval event."""
        told = ("eval_loss", "eval_perplexity", "eval_seconds")
        figures = {name.removeprefix("eval_"): _json(value) for name, value in metrics.items() if name not in told}
        self._events.write(
            "eval",
            step=state.global_step,
            eval_loss=metrics["eval_loss"],
            perplexity=metrics.get("eval_perplexity"),
            seconds=round(metrics["eval_seconds"], 3),
            **({"figures": figures} if figures else {}),
        )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the last events."""
        self.flush()


def _json(value: float | None) -> float | str | None:
    """JSON has no NaN."""
    return value if value is None or math.isfinite(value) else str(value)


class Rehearsal(TrainerCallback):
    """Runs the rehearsal once the model is on its devices."""

    def __init__(self, rehearse: Callable[[], None]) -> None:
        self._rehearse = rehearse

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """What can fail in hour nine must fail in minute one (law 11)."""
        self._rehearse()
