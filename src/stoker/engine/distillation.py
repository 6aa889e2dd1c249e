"""Answers of a student that a teacher judges: generated and committed as those of `grpo`, and scored by nobody."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from stoker.engine import answer_figures, streaming
from stoker.engine.dataset import Arrangement, PreparedSplit, StepItem
from stoker.engine.objective import SAMPLED, TEACHER, is_trained
from stoker.engine.opened import Opened
from stoker.engine.rollout_files import Rollout
from stoker.engine.rollouts import MeanLoss, Rollouts, rollout_of, side_by_side
from stoker.engine.sampler import Generated
from stoker.engine.teacher import Teacher
from stoker.rewards import scorer


class Distillation(Rollouts):
    """What generates and commits the answers of a student, and asks its teacher about them."""

    def __init__(self, opened: Opened, arrangement: Arrangement, model: Any, *rest: Any) -> None:
        """Prepare for training, as `Rollouts` does, and load the teacher."""
        super().__init__(opened, arrangement, model, *rest)
        self._teacher = Teacher(opened, model)

    def told(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs of a micro batch with the teacher's logits for its answers: one micro batch at a time."""
        found = super().told(inputs)
        return {**found, TEACHER: self._teacher.logits(found, is_trained(found["labels"]))}

    def evaluate(self, items: Iterable[StepItem], mean_loss: MeanLoss) -> dict[str, float]:
        """Mean divergence from the teacher on the likeliest answers to held-out prompts."""
        report = self._opened.report.eval
        assert report is not None
        split = streaming.open_split(self._opened.run_dir, "eval", report)
        answered: list[Rollout] = []

        def generated() -> Iterator[StepItem]:
            for item, answers in self._likeliest(split, items):
                answered.append(rollout_of(item.sequences, answers))
                yield self._item(item, answered[-1], split)

        found = mean_loss(generated())
        if self._vllm is not None:
            found.pop("gap")  # of the likeliest tokens vLLM gives log-probabilities at temperature 1
        answers = [one for rollout in answered for one in rollout.answers]
        return {**found, **answer_figures.lengths(answers, [one for rollout in answered for one in rollout.ended])}

    def _scored(
        self,
        split: PreparedSplit,  # noqa: ARG002  # nobody scores whole answers
        rows: list[int],  # noqa: ARG002
        answers: list[Generated],
        step: int = 0,  # noqa: ARG002
    ) -> list[scorer.Score]:
        """Nothing of each."""
        return [scorer.Score(0.0, {}) for _ in answers]

    def _shown(self, rollout: Rollout) -> dict[str, float]:
        """Figures of a step's answers."""
        return answer_figures.lengths(rollout.answers, rollout.ended)

    def _learned(self, rollout: Rollout) -> dict[str, torch.Tensor]:
        """What the loss must know of the answers."""
        return {SAMPLED: side_by_side(rollout.sampled)}

    def _unknown(self, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """What stands for it in a rehearsal."""
        return {SAMPLED: torch.zeros_like(labels, dtype=torch.float32)}
