"""Parallel strategies: candidates, conflicts with other words of the run file, and DeepSpeed's configuration."""

from typing import Any

from stoker import messages
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.facts.machine import Machine
from stoker.plan.plan import Reason

_AUTO = "auto"

_REASONS = {"single": "why.strategy.single", "ddp": "why.strategy.ddp", "fsdp2": "why.strategy.fsdp2"}

_OURS = {
    "train_batch_size": "train.batch",
    "train_micro_batch_size_per_gpu": "where.micro",
    "gradient_accumulation_steps": "train.batch",
    "gradient_clipping": "train.clip",
    "optimizer": "train.optimizer",
    "scheduler": "train.schedule",
    "bf16": "where.precision",
    "fp16": "where.precision",
    "torch_autocast": "where.precision",
    "amp": "where.precision",
}
"""DeepSpeed's options that a word of the run file sets."""


def candidates(run: Run, machine: Machine, devices: int, precision: str) -> list[str]:
    """Strategies to try, best first: the first that fits is taken."""
    asked, zero = run.where.strategy, _zero_stage(run)
    if asked != _AUTO:
        return [asked]
    if zero:
        return [f"zero{zero}"]
    if devices == 1:
        return ["single"]
    alone = precision == "fp16" or _conflicts(run, machine, "fsdp2", devices)
    return ["ddp"] if alone else ["ddp", "fsdp2"]


def reason(run: Run, chosen: str, *, kept: bool = False) -> Reason:
    """Why this strategy; `kept`: because the earlier attempt used it."""
    if run.where.strategy != _AUTO:
        return Reason(about="strategy", key="why.asked", fields={"word": "where.strategy"})
    if kept and chosen == "fsdp2":
        return Reason(about="strategy", key="why.strategy.earlier", fields={"strategy": chosen})
    return Reason(about="strategy", key=_REASONS.get(chosen, "why.asked"), fields={"word": "native.deepspeed"})


def check(run: Run, machine: Machine, strategy: str, devices: int, precision: str) -> None:
    """Refuse conflicting words of the run file."""
    conflicts = _conflicts(run, machine, strategy, devices)
    # The loss scaler knows no shards; DeepSpeed's own is neither unscaled before clipping nor in checkpoints.
    if strategy not in ("single", "ddp") and precision == "fp16":
        conflicts.append(("where.precision", "fp16", "ddp"))
    for word, asked, instead in conflicts:
        raise StokerError("STK216", word=word, asked=asked, strategy=strategy, instead=instead)


def _conflicts(run: Run, machine: Machine, strategy: str, devices: int) -> list[tuple[str, str, str]]:
    """(word, its value, the strategy to use instead) for each word that conflicts with the strategy."""
    if strategy in ("single", "ddp"):
        return [("where.strategy", strategy, _AUTO)] if strategy == "ddp" and machine.kind == "mps" else []
    found = []
    if machine.kind == "mps":
        found.append(("where.strategy", strategy, _AUTO))
    if run.train.optimizer != "adamw":
        found.append(("train.optimizer", run.train.optimizer, "ddp"))
    if run.train.precision != "fp32":
        found.append(("train.precision", run.train.precision, "ddp"))
    if strategy == "fsdp2" and exact(run, strategy) and devices & (devices - 1):
        found.append(("train.exact", messages.text("strategy.no_power_of_two", devices=devices), "ddp"))
    if strategy != "fsdp2" and machine.nodes > 1:
        asked = ", ".join(run.where.hosts) if run.where.hosts else str(machine.nodes)
        found.append(("where.hosts" if run.where.hosts else "where.nodes", asked, "fsdp2"))
    if strategy != "fsdp2" and run.train.exact is True:
        found.append(("train.exact", "true", "fsdp2"))
    if strategy != "fsdp2" and run.train.on_bad_step == "skip":
        found.append(("train.on_bad_step", "skip", "fsdp2"))
    if strategy != "fsdp2" and run.tune.method == "qlora":
        found.append(("tune.method", "qlora", "fsdp2"))
    return found


def exact(run: Run, strategy: str) -> bool:
    """Whether gradients are combined in the canonical order: by the recipe; DeepSpeed sums in its own order."""
    if strategy.startswith("zero"):
        return False
    return run.tune.method != "full" if run.train.exact == _AUTO else bool(run.train.exact)


# ---- DeepSpeed


def _zero_stage(run: Run) -> int:
    settings = run.native.deepspeed
    return int(settings.get("zero_optimization", {}).get("stage", 0)) if isinstance(settings, dict) else 0


def deepspeed(run: Run, strategy: str, precision: str, share: int, devices: int) -> dict[str, Any]:
    """DeepSpeed's configuration: ours where a word of the run file decides, the user's for the rest."""
    if not strategy.startswith("zero"):
        return {}
    user = run.native.deepspeed
    assert isinstance(user, dict)
    _refuse_ours(user)
    stage = int(strategy.removeprefix("zero"))
    zero = user.get("zero_optimization", {})
    if zero.get("stage", stage) != stage:
        fields = {"option": "zero_optimization.stage", "value": zero["stage"], "word": "where.strategy"}
        raise StokerError("STK217", ours="where.strategy", **fields)
    return {
        **{key: value for key, value in user.items() if key not in _OURS},
        "zero_optimization": {**zero, "stage": stage},
        "train_micro_batch_size_per_gpu": share,
        "train_batch_size": share * devices,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": run.train.clip,
        # Weights stay in fp32 and matrix products run in the lower precision, as with every other strategy.
        **({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}} if precision == "bf16" else {}),
        "zero_allow_untested_optimizer": True,
    }


def _refuse_ours(user: dict[str, Any]) -> None:
    for option, word in _OURS.items():
        for name, value in _stated(option, user.get(option, _AUTO)):
            raise StokerError("STK217", option=name, value=value, word=word, ours=word)


def _stated(name: str, value: Any) -> list[tuple[str, Any]]:
    """Every value under an option that is not `auto`, by its path.

    DeepSpeed's own half-precision engines are not used: of their blocks only `enabled` matters.
    """
    if not isinstance(value, dict):
        return [] if value == _AUTO else [(name, value)]
    if "enabled" in value:
        return [] if value["enabled"] in (_AUTO, False) else [(f"{name}.enabled", value["enabled"])]
    inner = [_stated(f"{name}.{key}", one) for key, one in value.items() if key != "type"]
    return [found for some in inner for found in some]
