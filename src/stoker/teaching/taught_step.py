"""What a teacher adds to a student's step: its weights and what is compared in memory, its forward pass in time.

It is frozen, in the type that the run computes in, sharded where the student is. For each micro batch it comes first:
its activations are gone when the student's begin, its logits stay until the loss.
"""

import dataclasses
import math
from dataclasses import dataclass

from stoker.estimate import memory, operations, speed
from stoker.estimate.memory import Estimate
from stoker.estimate.speed import Hardware, Pace
from stoker.estimate.step import BYTES, Step
from stoker.facts.rates import rates
from stoker.facts.shapes import ModelShape

COMPARED_BYTES = 20
"""Of each position and word of the vocabulary, beside what a loss of logits holds: both models' probabilities and what
their divergence keeps for the backward pass. Counted by `tests/engine/test_teacher_memory.py`."""
MIXED_BYTES = 24
"""The same that a mixture of both takes besides."""
_WIDTHS, _INNER_WIDTHS = 8, 4
"""Activations of a block while it is computed and nothing is kept, in hidden and in feed-forward widths."""
_PASSES = 3
"""Of a step: forward, and backward for activations and for weights."""
_HALF_BYTES = 2


@dataclass(frozen=True)
class TeacherFacts:
    """The model that a run learns from; without a shape nobody teaches, and nothing is added."""

    shape: ModelShape | None = None
    mixes: bool = False
    """Whether the divergence is from a mixture of both models."""
    downloaded: bool = False
    """Whether its files come from a hub."""

    @property
    def stored_bytes(self) -> int:
        """What its files take on disk, where they are copied there."""
        return self.shape.parameters() * _HALF_BYTES if self.shape and self.downloaded else 0

    def whole_bytes(self, student: Step) -> int:
        """Its weights, as one process builds them."""
        return memory.whole_weight_bytes(self._step(student, self.shape)) if self.shape else 0

    def beside(self, used: Estimate) -> Estimate:
        """The memory of a student's step with its teacher on the device."""
        if self.shape is None:
            return used
        step, parts = used.step, used.parts
        weights = self.whole_bytes(step) // step.weight_parts
        word_bytes = COMPARED_BYTES + (MIXED_BYTES if self.mixes else 0)
        compared = step.micro * step.length * self.shape.vocab * (word_bytes + BYTES[step.compute])
        # What a step holds all the time, and the teacher's pass before the student's.
        held = parts["weights"] + parts["gradients"] + parts["optimizer"]
        least = held + self._passing_bytes(step, self.shape)
        added = weights + max(compared, least - used.allocated)
        return dataclasses.replace(used, allocated=used.allocated + added, parts={**parts, "teacher": added})

    def slowing(self, pace: Pace, student: Step, on: Hardware) -> Pace:
        """The pace of a student's step with the teacher's forward passes."""
        if self.shape is None:
            return pace
        return slowed(pace, "teacher", self._forward_seconds(self._step(student, self.shape), on))

    def _step(self, student: Step, shape: ModelShape) -> Step:
        """The student's step, were the teacher trained in it."""
        return dataclasses.replace(
            student, shape=shape, adapter=None, weights=student.compute, recompute="none", kept_away=False
        )

    def _passing_bytes(self, step: Step, shape: ModelShape) -> int:
        """One block's work, the logits and a copy of those that count; of shards, what is gathered meanwhile."""
        size, tokens = BYTES[step.compute], step.micro * step.length
        work = tokens * (_WIDTHS * shape.hidden + _INNER_WIDTHS * shape.intermediate) + 2 * tokens * shape.vocab
        table = shape.vocab * shape.hidden
        block = (shape.parameters() - table) // shape.layers
        return size * (work + (2 * block + table if step.weight_parts > 1 else 0))

    def _forward_seconds(self, step: Step, on: Hardware) -> float:
        """Of all micro batches of a step."""
        parts = speed.estimate(step, on).parts
        if on.kind != "cuda":
            return math.fsum(parts.values()) / _PASSES
        known, forward, times = rates(), operations.work(step).forward, step.accumulation
        streamed = forward.streamed / (known.bandwidth * on.bandwidth) + forward.kernels * known.kernel
        computed = parts["forward"] + times * streamed
        waited = max(0.0, times * forward.launches * known.launch - computed)
        return computed + waited + parts["communication"] / _PASSES


def slowed(pace: Pace, part: str, seconds: float) -> Pace:
    """The pace of a step that takes so many seconds more, for a part of this name."""
    total = pace.step_seconds + seconds
    rate = pace.tokens_per_second * pace.step_seconds / total
    return Pace(step_seconds=total, tokens_per_second=rate, parts={**pace.parts, part: seconds})


NOBODY = TeacherFacts()
"""Of a run that learns from its data alone."""
