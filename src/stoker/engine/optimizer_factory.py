"""The optimizers that the Trainer cannot make itself, as the factories it takes (`optimizer_cls_and_kwargs`)."""

from typing import Any

from stoker.config.run import Run
from stoker.engine import muon, rounded
from stoker.plan import optimizers


def of(run: Run, arguments: Any) -> tuple[Any, dict[str, Any]] | None:
    """The factory with its options, from the Trainer's arguments; None where the Trainer knows the optimizer."""
    if optimizers.rounds(run):
        return rounded.for_trainer(arguments)
    return muon.for_trainer(arguments) if run.train.optimizer == "muon" else None
