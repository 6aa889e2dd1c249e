"""What scored answers show, and how much better than the others of its group each of them is."""

import math
from typing import Any

import numpy as np
import torch

from stoker.engine.rollout_files import Rollout

_SMALL = 1e-4
"""Added to a standard deviation that advantages are divided by, as TRL does."""


class AlikeSteps:
    """Steps whose answers to the same prompt all have the same reward: they cost what others do, and teach nothing."""

    _MOST = 5

    def __init__(self) -> None:
        self._count = 0

    def take(self, figures: dict[str, float]) -> dict[str, Any] | None:
        """Count a step by its figures; what is to be said once so many in a row were alike, and only then."""
        self._count = self._count + 1 if figures.get("alike") == 1.0 else 0
        return {"steps": self._count, "reward": round(figures["reward"], 4)} if self._count == self._MOST else None


def advantages(rewards: list[float], group: int, scale: str) -> torch.Tensor:
    """How much better than the others of its group each answer is, as `trl.GRPOTrainer` computes it."""
    by_group = torch.tensor(rewards, dtype=torch.float64).view(-1, group)  # equal rewards are equal to their mean
    centred = by_group - by_group.mean(1, keepdim=True)
    if scale == "group":
        centred = centred / (by_group.std(1, keepdim=True) + _SMALL)
    elif scale == "batch":
        centred = centred / (by_group.std() + _SMALL)
    return centred.flatten().float()


def of(rollout: Rollout, group: int) -> dict[str, float]:
    """Figures of a step's answers: rewards, their spread and parts, lengths."""
    rewards = np.array(rollout.rewards).reshape(-1, group)
    return {
        "reward": float(rewards.mean()),
        "reward_spread": float(rewards.std(axis=1, ddof=1).mean()),
        "alike": float(np.isclose(rewards.std(axis=1), 0).mean()),
        **lengths(rollout.answers, rollout.ended),
        **({"failed": float(np.mean(rollout.failed))} if any(rollout.failed) else {}),
        **{f"reward.{name}": _mean(values) for name, values in rollout.parts.items() if len(rollout.parts) > 1},
    }


def _mean(values: list[float]) -> float:
    """Of the answers that a reward applies to."""
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else 0.0


def lengths(answers: list[np.ndarray], ended: list[bool]) -> dict[str, float]:
    """Figures of answers: how long they are, and how many were cut."""
    return {"length": float(np.mean([len(one) for one in answers])), "cut": 1 - float(np.mean(ended))}
