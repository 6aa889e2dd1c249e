"""What LLaMA-Factory and axolotl both hand to transformers' Trainer: batch, length of the training, schedule, saves.

The names differ, the meaning does not. Their defaults where a key is absent are the caller's.
"""

import math
import typing
from typing import Any

from stoker.config import load, native, objectives
from stoker.config.optimizer_names import OptimizerName
from stoker.config.run import Train
from stoker.migrate.draft import Draft, percent

_SCHEDULES: tuple[str, ...] = typing.get_args(Train.model_fields["schedule"].annotation)
_OPTIMIZERS: tuple[str, ...] = typing.get_args(OptimizerName)
_PLAIN_ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw")
"""One optimizer in different kernels; `adamw` takes the fused one where there is a GPU."""

_ONLINE = ("online", "cloud", "shared")
"""Modes in which a tracker sends what it is told."""


def batch(draft: Draft, per_device: str, default: int, accumulation: int | None = None) -> None:
    """Sequences per optimizer step: theirs per device and accumulation, ours over all."""
    micro = draft.whole(per_device, default)
    accumulation = accumulation or draft.whole("gradient_accumulation_steps", 1)
    total = micro * accumulation * draft.devices
    draft.write(
        "train.batch",
        total,
        "migrate.from.batch",
        batch=total,
        micro=micro,
        accumulation=accumulation,
        devices=draft.devices,
    )
    draft.carried(per_device, "train.batch")
    draft.carried("gradient_accumulation_steps", "train.batch")


def length_of_training(draft: Draft, epochs: str, default: float) -> None:
    """Epochs or steps; ours are whole epochs."""
    steps = draft.whole("max_steps", -1)
    if steps > 0:
        draft.carry("max_steps", "train.steps", steps)
        draft.own(epochs, "migrate.own.steps_given")
        return
    draft.equal("max_steps")
    asked = draft.number(epochs, default)
    whole = max(1, math.ceil(asked))
    if asked == whole:
        draft.carry(epochs, "train.epochs", whole)
        return
    draft.write("train.epochs", whole, "migrate.from.key", key=epochs, line=draft.theirs.lines[(epochs,)])
    draft.left(epochs, "migrate.left.epochs", asked=asked, written=whole)


def schedule(draft: Draft, key: str, default: str) -> None:
    """The learning rate over the steps."""
    asked = draft.text(key, default)
    options = draft.value("lr_scheduler_kwargs", {})
    if asked not in _SCHEDULES:
        draft.left(key, "migrate.left.schedule", asked=asked, known=[f"`{one}`" for one in _SCHEDULES])
        draft.write("train.schedule", "cosine", "migrate.from.none")
        draft.left("lr_scheduler_kwargs", "migrate.left.schedule_options", schedule="cosine")
        return
    draft.carry(key, "train.schedule", asked)
    if not options:
        draft.equal("lr_scheduler_kwargs")
    elif isinstance(options, dict) and set(options) <= set(native.schedule_options(asked)):
        draft.pass_on("lr_scheduler_kwargs", "trainer", "lr_scheduler_kwargs")
    else:
        draft.left("lr_scheduler_kwargs", "migrate.left.schedule_options", schedule=asked)


def warmup(draft: Draft, default: int | str) -> None:
    """Steps, or a share of all; a number of steps goes first, and one below 1 is a share for transformers 5."""
    steps = draft.number("warmup_steps", 0)
    if steps >= 1:
        draft.carry("warmup_steps", "train.warmup", draft.whole("warmup_steps", 0))
        draft.own("warmup_ratio", "migrate.own.steps_given")
    elif steps > 0:
        draft.carry("warmup_steps", "train.warmup", percent(steps))
        draft.own("warmup_ratio", "migrate.own.steps_given")
    elif draft.has("warmup_ratio"):
        draft.carry("warmup_ratio", "train.warmup", percent(draft.number("warmup_ratio", 0)))
        draft.equal("warmup_steps")
    else:
        draft.carry("warmup_steps", "train.warmup", 0 if draft.has("warmup_steps") else default)


def optimizer(draft: Draft, key: str) -> None:
    """The optimizer, by transformers' name."""
    asked = draft.text(key, "adamw_torch_fused")
    if asked in _PLAIN_ADAMW:
        draft.equal(key, "train.optimizer: adamw")
    elif asked in _OPTIMIZERS and asked != "muon":
        draft.carry(key, "train.optimizer", asked)
    else:
        draft.left(key, "migrate.left.optimizer", asked=asked)


def figures(draft: Draft, rate: float | None) -> None:
    """Learning rate, weight decay, clipping and seed."""
    if rate is None and not draft.has("learning_rate"):
        raise draft.unreadable("learning_rate")
    draft.carry("learning_rate", "train.learning_rate", float(draft.number("learning_rate", rate or 0)))
    draft.carry("weight_decay", "train.weight_decay", draft.number("weight_decay", 0.0))
    draft.carry("max_grad_norm", "train.clip", draft.number("max_grad_norm", 1.0))
    draft.carry("seed", "train.seed", draft.whole("seed", 42))


def eval_interval(draft: Draft, when: str, *, has_eval: bool) -> None:
    """When the eval loss is measured.

    Args:
        draft: Read and written.
        when: What they do where no strategy is named: `no`, `epoch` or `steps`.
        has_eval: Whether there are rows to measure it on.
    """
    for key in ("eval_strategy", "evaluation_strategy"):
        when = draft.text(key, when)
    steps = draft.number("eval_steps", 0)
    keys = ("eval_strategy", "evaluation_strategy", "eval_steps")
    if not has_eval:
        for key in keys:
            draft.own(key, "migrate.own.no_eval")
        return
    if when == "steps" and steps >= 1:
        every = f"{int(steps)} steps"
    elif when == "steps":
        every = "epoch"
        draft.own("eval_steps", "migrate.own.interval", written=every)
    else:
        every = {"no": "never"}.get(when, "epoch")
    source = next((key for key in ("eval_steps", *keys) if draft.has(key)), "eval_strategy")
    draft.carry(source, "train.eval_every", every)
    for key in keys:
        draft.carried(key, "train.eval_every")


def saves(draft: Draft) -> None:
    """When checkpoints are committed and how many are kept: no effect on what is trained."""
    steps, strategy = draft.number("save_steps", 0), draft.text("save_strategy", "steps")
    total = draft.whole("max_steps", -1)
    if strategy == "epoch":
        draft.carry("save_strategy", "save.every", "epoch")
    elif strategy == "steps" and 0 < total <= steps:
        draft.own("save_steps", "migrate.own.beyond", total=total, asked=int(steps), written="auto")
    elif steps >= 1 and strategy == "steps":
        draft.carry("save_steps", "save.every", f"{int(steps)} steps")
    for key in ("save_strategy", "save_steps"):
        draft.own(key, "migrate.own.interval", written="auto")
    if draft.has("save_total_limit"):
        asked = draft.whole("save_total_limit", 3)
        draft.carry("save_total_limit", "save.keep", max(2, asked))
    best = draft.truth("load_best_model_at_end")
    metric = draft.text("metric_for_best_model", "loss")
    if best and metric in ("loss", "eval_loss") and "data.eval" in draft.written:
        draft.carry("load_best_model_at_end", "save.best", "eval_loss")
        draft.carried("metric_for_best_model", "save.best")
    elif best:
        draft.left("load_best_model_at_end", "migrate.left.best", metric=metric)
        draft.left("metric_for_best_model", "migrate.left.best", metric=metric)
    for key in ("load_best_model_at_end", "metric_for_best_model", "greater_is_better"):
        draft.own(key, "migrate.own.no_best")


def trackers(draft: Draft, key: str = "report_to") -> None:
    """Where the curves go; theirs is nowhere or everywhere, ours TensorBoard's files."""
    if not draft.has(key):
        return
    asked = draft.names(key)
    if asked in (["tensorboard"], ["all"]):
        draft.equal(key)
    elif asked == ["none"]:
        draft.carry(key, "native.trainer.report_to", "none")
    else:
        if online := [one for one in asked if not is_offline(draft, one)]:
            draft.carry(key, "native.trainer.report_to", online)
        for tracker in asked:
            leave_offline(draft, key, tracker)


def is_offline(draft: Draft, tracker: str) -> bool:
    """Whether a mode keeps a tracker off the network; no word of a run file says so, and there it would go online."""
    return str(draft.value(f"{tracker}_mode") or _ONLINE[0]).lower() not in _ONLINE


def leave_offline(draft: Draft, key: str, tracker: str) -> None:
    """Leave out a tracker that `key` asks for, where a mode keeps it off the network."""
    if is_offline(draft, tracker):
        mode = f"{tracker}_mode"
        fields = {"tracker": tracker, "variable": mode.upper(), "mode": draft.text(mode).lower()}
        for one in (mode, key):
            draft.left(one, "migrate.left.offline", **fields)


def dropout(draft: Draft, objective: str) -> None:
    """Of the adapter; trainings that compare answers have none, TRL's neither."""
    if objectives.facts(objective).by_row:
        draft.own("lora_dropout", "migrate.own.no_dropout")
    else:
        draft.carry("lora_dropout", "tune.dropout", draft.number("lora_dropout", 0.0))


def also_tracked(draft: Draft, key: str, tracker: str) -> None:
    """A tracker that a key of its own asks for."""
    leave_offline(draft, key, tracker)
    if is_offline(draft, tracker):
        return
    asked = [one for one in draft.names("report_to") if one not in ("none", "all", tracker)]
    word = "native.trainer.report_to"
    draft.write(word, [*asked, tracker], "migrate.from.key", key=key, line=draft.theirs.lines[(key,)])
    draft.carried(key, word)


def run_name(draft: Draft, key: str) -> None:
    """The run's name, if it can be a folder's."""
    asked: Any = draft.value(key)
    if asked is None:
        draft.equal(key)
    elif load.run_name(str(asked)) == str(asked):
        draft.carry(key, "name", str(asked))
    else:
        draft.own(key, "migrate.own.name")
