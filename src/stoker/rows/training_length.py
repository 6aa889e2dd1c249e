"""How long a training is in steps and passes, and what is said of one that is too short or too long to learn well."""

from typing import Any

from stoker.config import values
from stoker.config.run import Run
from stoker.rows import usual_rates

FEWEST_STEPS = 30
"""Optimizer steps below which an adapter has hardly moved, and the schedule's warm-up is most of the training."""
MOST_EPOCHS = 10
"""Passes above which a model learns its rows by heart."""
_USUAL_EPOCHS = 3

Remark = tuple[str, str, dict[str, Any]]
"""The word of the run file it is about, a key of the catalogue, and its fields."""


def remarks(run: Run, sequences: int, total: int, epochs: int) -> list[Remark]:
    """What the number of steps and the learning rate call for.

    Args:
        run: The run file.
        sequences: Of one pass over the data.
        total: Optimizer steps of the whole training.
        epochs: Passes, the last one perhaps in part.
    """
    asked = {"epochs": run.train.epochs, "steps": run.train.steps}
    said: list[Remark] = []
    if run.train.steps is not None and "epochs" in run.train.model_fields_set:
        said.append(("train.epochs", "why.epochs", asked))
    if total < FEWEST_STEPS:
        said.append(_few(run, sequences, total, epochs))
    if epochs > MOST_EPOCHS:
        word, fewer = (
            ("train.epochs", _USUAL_EPOCHS) if run.train.steps is None else ("train.steps", _passes(run, sequences))
        )
        fields = {"epochs": epochs, "sequences": f"{sequences:,}", "word": word, "fewer": fewer, "usual": _USUAL_EPOCHS}
        said.append((word, "why.epochs.many", fields))
    return said + _beyond(run, total) + usual_rates.remarks(run)


def _beyond(run: Run, total: int) -> list[Remark]:
    """That no checkpoint is committed before the end."""
    asked = values.every(run.save.every)
    if asked.kind != "steps" or asked.amount < total or total < FEWEST_STEPS:
        return []
    return [("save.every", "why.save.beyond", {"asked": int(asked.amount), "total": total})]


def _passes(run: Run, sequences: int) -> int:
    """Steps of the usual number of passes."""
    return _USUAL_EPOCHS * -(-sequences // run.train.batch)


def _few(run: Run, sequences: int, total: int, epochs: int) -> Remark:
    counts = {"total": total, "sequences": f"{sequences:,}", "batch": run.train.batch, "epochs": epochs}
    if run.train.steps is not None and run.train.steps <= total:
        return "train.steps", "why.steps.asked", {**counts, "fewest": FEWEST_STEPS}
    smaller = sequences * epochs // FEWEST_STEPS
    if smaller and smaller < run.train.batch:
        return "train.batch", "why.steps.few", {**counts, "smaller": smaller}
    more = -(-FEWEST_STEPS // -(-sequences // run.train.batch))
    key = "why.steps.few.packed" if run.data.pack else "why.steps.few.rows"
    return "train.epochs", key, {**counts, "more": more}
