"""Which optimizers are used: transformers' names, what the estimate calls them, why others are refused. Pure."""

from typing import Any

from stoker import messages
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.estimate.optimizer_state import KEPT
from stoker.estimate.step import Optimizer

_STEPS: dict[str, Optimizer] = {
    "adamw": "adamw_fused",
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw_fused",
    "adamw_bnb_8bit": "adamw_8bit",
    "rmsprop_bnb_32bit": "rmsprop_bnb",
}
"""Names that the estimate knows by another."""
ROUNDED = "adamw_torch_8bit"
"""The Trainer's name of torchao's AdamW, whose arithmetic `engine.rounded` calls."""
REFUSED = {
    **dict.fromkeys(("paged_ademamix_32bit", "paged_ademamix_8bit"), "optimizer.refused.pages"),
    **dict.fromkeys(("adamw_torch_4bit", "adamw_torch_8bit"), "optimizer.refused.tensors"),
    **dict.fromkeys(("adamw_torch_xla", "adamw_torch_npu_fused"), "optimizer.refused.device"),
    **dict.fromkeys(
        (
            *("galore_adamw_layerwise", "galore_adamw_8bit_layerwise", "galore_adafactor_layerwise"),
            *("apollo_adamw_layerwise", "lomo", "adalomo"),
        ),
        "optimizer.refused.backward",
    ),
    **dict.fromkeys(
        (
            *("adamw_anyprecision", "grokadamw", "stable_adamw", "apollo_adamw"),
            *("galore_adamw", "galore_adamw_8bit", "galore_adafactor"),
            *("schedule_free_adamw", "schedule_free_radam", "schedule_free_sgd"),
        ),
        "optimizer.refused.package",
    ),
}
"""Names of transformers that Stoker does not use, with the reason."""


def check(run: Run) -> None:
    """Refuse an optimizer that is not known to resume exactly."""
    asked = run.train.optimizer
    if asked in REFUSED:
        raise StokerError("STK240", asked=asked, reason=messages.text(REFUSED[asked]))


def rounds(run: Run) -> bool:
    """Whether trained weights are in bf16, and AdamW rounds its updates at random."""
    return run.train.precision == "bf16"


def trainer_name(run: Run, device: str) -> str:
    """The Trainer's name; on a CPU the fused AdamW rounds the tail of a shard differently from its middle.

    The same for all strategies: the result must not depend on sharding. Muon, and AdamW that rounds at random, are
    given to the Trainer as factories.
    """
    asked = run.train.optimizer
    if rounds(run):
        return ROUNDED
    if asked == "muon":
        return "adamw_torch"
    if asked == "adamw":
        return "adamw_torch" if device == "cpu" else "adamw_torch_fused"
    return asked


def step_name(run: Run) -> Optimizer:
    """What the estimate calls it."""
    asked: Any = run.train.optimizer
    found: Optimizer = "adamw_rounded" if rounds(run) else _STEPS.get(asked, asked)
    return found


def extra_moments(run: Run) -> int:
    """Moments that `native.trainer.optim_args` adds: momentum of SGD and RMSprop, a mean of RMSprop."""
    stated = str(run.native.trainer.get("optim_args") or "").replace(" ", "")
    options = dict(part.split("=", 1) for part in stated.split(",") if "=" in part)
    moments = 0
    if run.train.optimizer in ("sgd", "rmsprop") and options.get("momentum", "0") not in ("0", "0.0"):
        moments += 1
    if run.train.optimizer == "rmsprop" and options.get("centered", "").lower() in ("true", "1", "yes"):
        moments += 1
    return moments


def of_bitsandbytes(run: Run) -> bool:
    """Whether bitsandbytes makes it."""
    name = step_name(run)
    return name in KEPT and KEPT[name].bits > 0 and not KEPT[name].torchao
