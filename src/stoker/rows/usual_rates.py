"""Learning rates that are usual for a kind of training, and what is said of one far outside them: a remark, no more."""

from typing import Any

from stoker.config import objectives
from stoker.config.run import Run, Shape

_FAR = 10
"""Times above the highest or below the lowest usual rate, from which on it is remarked."""
_USUAL = {
    "scratch": ("1e-4", "3e-3", "3e-4"),
    "full": ("5e-6", "5e-5", "2e-5"),
    "adapter": ("5e-5", "5e-4", "2e-4"),
    "full, answers": ("5e-7", "5e-6", "1e-6"),
    "adapter, answers": ("5e-6", "5e-5", "1e-5"),
}
"""By kind of training: the lowest, the highest, and one to start at."""
_LIKE_ADAM = ("adamw", "paged_adamw", "muon")
"""Optimizers whose rates these are, by how their names begin. Muon's updates are scaled to the size of AdamW's."""


def remarks(run: Run) -> list[tuple[str, str, dict[str, Any]]]:
    """That the rate is probably a mistake."""
    if not run.train.optimizer.startswith(_LIKE_ADAM):
        return []
    kind, rate = _kind(run), run.train.learning_rate
    low, high, start = _USUAL[kind]
    if rate > _FAR * float(high):
        key, times = "why.rate.high", rate / float(high)
    elif rate < float(low) / _FAR:
        key, times = "why.rate.low", float(low) / rate
    else:
        return []
    fields = {"rate": f"{rate:g}", "times": f"{times:,.0f}", "low": low, "high": high, "start": start}
    return [("train.learning_rate", key, {**fields, "method": _words(run)})]


def _kind(run: Run) -> str:
    if isinstance(run.model, Shape):
        return "scratch"
    method, asked = "full" if run.tune.method == "full" else "adapter", objectives.facts(run.train.objective)
    # Objectives over whole answers move a model that can answer already; a model that scores begins anew.
    return f"{method}, answers" if asked.by_row and not asked.scores else method


def _words(run: Run) -> str:
    """The words of the run file that make it usual: those of no language."""
    return "`model: {shape: ...}`" if isinstance(run.model, Shape) else f"`{run.tune.method}`, `{run.train.objective}`"
