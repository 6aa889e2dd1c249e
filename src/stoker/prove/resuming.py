"""Killed and resumed against unbroken: the same bits where EXACT is claimed; what saves and resumes cost."""

import datetime
import statistics
from typing import Any

from stoker.prove import trials, weight_bits
from stoker.prove.check import Check, failed, passed
from stoker.prove.trials import Trials
from stoker.rundir import events
from stoker.rundir.layout import RunDir

DETERMINISTIC = "train.deterministic=true"


def resume_exact(on: Trials) -> Check:
    """20 steps, SIGKILL, resume, with `train.deterministic`."""
    return compared("resume_exact", on.trained("whole", DETERMINISTIC), _killed(on, "killed", DETERMINISTIC))


def resume_default(on: Trials) -> Check:
    """The same without it: on a GPU bits may differ, and it is said how many."""
    return compared("resume_default", on.trained("default"), _killed(on, "killed-default"))


def compared(name: str, whole: RunDir, killed: RunDir) -> Check:
    """The weights of a run that was killed against those of one that was not."""
    attempts = trials.noted(killed, "attempt")
    figures = {
        **apart(whole, killed),
        "tier": attempts[-1]["tier"],
        "attempts": len(attempts),
        "resumed_step": attempts[-1]["resumed_step"],
    }
    if len(attempts) == 1 or not figures["resumed_step"]:
        return failed(name, "prove.reason.not_resumed", figures)
    if figures["elements_differing"] and figures["tier"] == "EXACT":
        return failed(name, "prove.reason.bits", figures, **_said(figures))
    return passed(name, **figures)


def same_weights(name: str, one: RunDir, other: RunDir, **figures: Any) -> Check:
    """Two trainings that must end with the same weights."""
    found = {**figures, **apart(one, other)}
    if found["elements_differing"]:
        return failed(name, "prove.reason.bits", found, **_said(found))
    return passed(name, **found)


def losses_apart(one: RunDir, other: RunDir, steps: int | None = None) -> float:
    """The largest difference between the losses of two trainings at one step, relative to the loss.

    Args:
        one: A run.
        other: Another one, of as many steps.
        steps: Of the first so many steps; None for all.
    """
    left, right = (events.steps(run_dir.events_file) for run_dir in (one, other))
    pairs = [(float(left[step]["loss"]), float(right[step]["loss"])) for step in sorted(left)[:steps]]
    return max(abs(a - b) / abs(a) for a, b in pairs)


def saves(on: Trials) -> Check:
    """How long a save stalls the steps, how long it takes to be committed, and how long a resume takes."""
    whole, killed = on.trained("whole", DETERMINISTIC), _killed(on, "killed", DETERMINISTIC)
    saved = trials.noted(whole, "checkpoint")
    return passed(
        "saves",
        saves=len(saved),
        bytes=max(event["bytes"] for event in saved),
        stall_seconds=statistics.median(event["stall_seconds"] for event in saved),
        commit_seconds=statistics.median(event["seconds"] for event in saved),
        start_seconds=seconds_to_first_step(whole),
        resume_seconds=seconds_to_first_step(killed),
    )


def seconds_to_first_step(run_dir: RunDir) -> float:
    """From the restart, or from the plan of a run that had none, to the next step's event."""
    happened = [(event["event"], _seconds(event["at"])) for event in events.read(run_dir.events_file)]
    began = max((at for kind, at in happened if kind == "restart"), default=run_dir.plan_file.stat().st_mtime)
    return round(min(at for kind, at in happened if kind == "step" and at > began) - began, 3)


def _killed(on: Trials, name: str, *words: str) -> RunDir:
    return on.killed(name, trials.kill_trainer, *words)


def apart(one: RunDir, other: RunDir) -> dict[str, Any]:
    """Digests of the weights of two trainings, and how many elements and bits differ."""
    digests = [weight_bits.digest(run_dir.final) for run_dir in (one, other)]
    figures: dict[str, Any] = {"digest": digests[0], "other_digest": digests[1]}
    found = weight_bits.difference(one.final, other.final)
    return {**figures, "elements": found.elements, "elements_differing": found.differing, "bits_differing": found.bits}


def _said(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        "differing": f"{figures['elements_differing']:,}",
        "elements": f"{figures['elements']:,}",
        "bits": f"{figures['bits_differing']:,}",
    }


def _seconds(at: str) -> float:
    return datetime.datetime.fromisoformat(at).timestamp()
