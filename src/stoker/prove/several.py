"""Two processes: two cards by NCCL, or two processes of a CPU by gloo, against one."""

import sys

from stoker.prove import resuming, trials
from stoker.prove.check import Check, absent, failed, passed
from stoker.prove.resuming import DETERMINISTIC
from stoker.prove.trials import Trials
from stoker.rundir.layout import RunDir

_LOSS_LIMIT = 1e-2
"""How far losses of sharded weights may be from those of whole ones over 20 steps: other roundings, no more."""


def ddp(on: Trials) -> Check:
    """Two processes, one of them killed, end with the bits of one process that nobody disturbed."""
    if reason := _missing(on):
        return absent("ddp", reason)
    if sys.platform != "linux":
        return absent("ddp", "prove.reason.not_linux")
    killed = on.killed("ddp", trials.kill_rank, *words(on, "ddp"))
    attempts = trials.noted(killed, "attempt")
    figures = {
        "backend": _backend(on),
        "attempts": len(attempts),
        "resumed_step": attempts[-1]["resumed_step"],
        "lost": [event["reason"] for event in trials.noted(killed, "restart")],
    }
    whole = on.trained("whole", DETERMINISTIC)
    if len(attempts) == 1:
        return failed("ddp", "prove.reason.not_resumed", figures)
    if _threads(whole) != _threads(killed):  # a processor's sums depend on them
        return _near("ddp", whole, killed, {**figures, "threads": [_threads(whole), _threads(killed)]})
    return resuming.same_weights("ddp", whole, killed, **figures)


def fsdp2(on: Trials) -> Check:
    """Two processes that hold half of the weights each; sharding rounds otherwise, and it is said how much."""
    if reason := _missing(on):
        return absent("fsdp2", reason)
    sharded = on.trained("fsdp2", *words(on, "fsdp2"))
    return _near("fsdp2", on.trained("whole", DETERMINISTIC), sharded, {"backend": _backend(on)})


def words(on: Trials, strategy: str) -> list[str]:
    """The overrides of a run of two processes."""
    where = ["where.gpus=2"] if on.machine.kind == "cuda" else ["where.gpus=0", "where.processes=2"]
    return [*where, f"where.strategy={strategy}", DETERMINISTIC]


def _near(name: str, one: RunDir, other: RunDir, figures: dict[str, object]) -> Check:
    """Two trainings whose losses must be close; how many weights differ is told."""
    apart = resuming.losses_apart(one, other)
    found = {**figures, **resuming.apart(one, other), "loss_apart": apart}
    if apart > _LOSS_LIMIT:
        return failed(name, "prove.reason.far", found, apart=f"{apart:.1e}")
    return passed(name, **found)


def _missing(on: Trials) -> str:
    """Why two processes cannot be tried here."""
    if on.machine.kind == "mps" or (on.machine.kind == "cuda" and len(on.machine.devices) == 1):
        return "prove.reason.one_card"
    return ""


def _backend(on: Trials) -> str:
    return "nccl" if on.machine.kind == "cuda" else "gloo"


def _threads(run_dir: RunDir) -> int:
    return trials.plan_of(run_dir).threads
