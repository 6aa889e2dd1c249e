"""The optimizers that the Trainer cannot make itself, as the factories it takes (`optimizer_cls_and_kwargs`)."""

from typing import Any

from stoker.config.run import Run
from stoker.engine import muon, rounded
from stoker.plan import optimizers

Factory = tuple[Any, dict[str, Any]]


def of(run: Run, arguments: Any) -> Factory | None:
    """The factory with its options, from the Trainer's arguments; None where the Trainer knows the optimizer."""
    if optimizers.rounds(run):
        return rounding(arguments)
    return with_muon(arguments) if run.train.optimizer == "muon" else None


def rounding(arguments: Any) -> Factory:
    """AdamW over weights in bf16."""
    return _factory(rounded.over, arguments, seed=arguments.seed)


def with_muon(arguments: Any) -> Factory:
    """Muon, and AdamW for what it is not for."""
    return _factory(muon.over, arguments, fused=not arguments.use_cpu)


def _factory(over: Any, arguments: Any, **own: Any) -> Factory:
    return lambda: over, {  # transformers calls it once, and what it returns with the model
        "lr": arguments.learning_rate,
        "weight_decay": arguments.weight_decay,
        "betas": (arguments.adam_beta1, arguments.adam_beta2),
        "eps": arguments.adam_epsilon,
        **own,
    }
