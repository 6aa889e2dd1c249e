"""Rules applied to a trace instead of running them: DeepSpeed's ZeRO, DDP's buckets, and offloading.

A rule changes the size and lifetime of a storage on this device; the order of events is the traced one. ZeRO's own
buffers are those of its `auto` settings in transformers (integrations/deepspeed.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from stoker.engine.tracing.ledger import Ledger, Part
from stoker.estimate.allocator import Entry
from stoker.estimate.optimizer_state import KEPT
from stoker.estimate.step import BYTES, Step

_FIRST_BUCKET = 1 << 20
_BUCKET = 25 << 20
"""DDP's `bucket_cap_mb`; the first bucket is smaller, so that sending starts early."""
_LIVE_PARAMETERS = 10**9
"""ZeRO-3's `stage3_max_live_parameters`: weights that may stay gathered."""


def buffers(step: Step, gradient_sizes: list[int]) -> list[int]:
    """Bytes of permanent buffers of a strategy.

    Args:
        step: What one device does.
        gradient_sizes: Bytes of each trained weight's gradient, in the model's order.
    """
    if step.strategy == "ddp":
        return list(_buckets(gradient_sizes))
    if step.strategy in ("zero2", "zero3"):
        # Two buckets of hidden x hidden elements: one is filled while the other is sent.
        bucket = min(step.shape.hidden**2 * BYTES[step.compute], sum(gradient_sizes))
        return [bucket, bucket]
    return []


def gathered(step: Step) -> int:
    """Bytes of weights that ZeRO-3 keeps gathered."""
    if step.strategy != "zero3":
        return 0
    return min(step.shape.parameters(), _LIVE_PARAMETERS) * BYTES.get(step.weights, 2)


def unseen(step: Step) -> dict[Part, int]:
    """Bytes of experts that are not traced: a token uses a few of them, the device holds all."""
    shape = step.shape
    if not shape.experts:
        return {}
    elements = shape.layers * (shape.experts - shape.experts_per_token) * 3 * shape.hidden * shape.intermediate
    held = BYTES.get(step.weights, 1 if step.weights == "int8" else 0.5)
    sizes: dict[Part, int] = {"weights": int(elements * held) // step.weight_parts}
    if step.adapter is None:
        kept = KEPT[step.optimizer]
        state = 0 if kept.paged else (kept.moments + step.extra_moments) * (kept.bits / 8 or held)
        sizes["gradients"] = int(elements * held) * min(1, step.gradient_sets) // step.gradient_parts
        sizes["optimizer"] = int(elements * state) // step.state_parts
    return sizes


def _buckets(sizes: list[int]) -> Iterator[int]:
    """Bucket sizes: gradients in backward order, split when a bucket is full."""
    filled, limit = 0, _FIRST_BUCKET
    for size in reversed(sizes):
        filled += size
        if filled >= limit:
            yield filled
            filled, limit = 0, _BUCKET
    if filled:
        yield filled


def applies(step: Step) -> bool:
    """Whether any rule changes the record."""
    return step.strategy.startswith("zero") or step.offload != "none"


@dataclass
class Rewriting:
    """Rewrites a ledger's record by the rules."""

    step: Step
    ledger: Ledger
    log: list[Entry] = field(default_factory=list)
    moments: list[tuple[int, str]] = field(default_factory=list)
    _now: dict[int, int] = field(default_factory=dict)
    """The current number of a storage, if it was replaced."""
    _gradient: int | None = None
    """The newest gradient, whole until the next one arrives."""

    def run(self) -> None:
        """Rewrite the record."""
        marks = dict(self.ledger.moments)
        for place, entry in enumerate(self.ledger.log):
            if place in marks:
                self._enter(marks[place])
            if len(entry) == 1:
                self._free(-entry[0])
            else:
                self._add(*entry)
        self.ledger.log, self.ledger.moments = self.log, self.moments

    def _enter(self, moment: str) -> None:
        """At the end of the backward pass the last gradient is reduced, too."""
        if self._gradient is not None and not moment.endswith("backward"):
            self._shrink(self._gradient)
            self._gradient = None
        self.moments.append((len(self.log), moment))

    def _add(self, number: int, size: int, stream: int) -> None:
        if self._passes_on(number):
            if self._gradient is not None:
                self._shrink(self._gradient)
            self._gradient = number
            self.log.append((number, size, stream))
            return
        self.log.append((number, int(size * self._share(number)), stream))

    def _free(self, number: int) -> None:
        if number == self._gradient:
            self._gradient = None
        self.log.append((-self._now.pop(number, number),))

    def _passes_on(self, number: int) -> bool:
        """Whether it is a gradient that is reduced to other devices or offloaded."""
        birth = self.ledger.births[number]
        handed = self.step.strategy in ("zero2", "zero3") or (self._offloads and self.step.strategy != "zero1")
        return handed and birth.part == "gradients" and birth.moment.endswith("backward")

    def _shrink(self, number: int) -> None:
        """Replace a reduced gradient by this device's shard, or by nothing."""
        birth = self.ledger.births[number]
        part = 0 if self._offloads else birth.size // self.step.gradient_parts
        renewed = len(self.ledger.births) + 1
        self.ledger.births[renewed] = replace(birth, size=part)
        self._now[number] = renewed
        self.log += [(-number,), (renewed, part, 0)]

    @property
    def _offloads(self) -> bool:
        return self.step.offload != "none" and (self.step.offload == "all" or self.step.strategy.startswith("zero"))

    def _share(self, number: int) -> float:
        """The share of a storage on this device."""
        birth, step = self.ledger.births[number], self.step
        zero = step.strategy.startswith("zero")
        if birth.part == "optimizer" or birth.moment in ("clipping", "optimizer"):
            return 0 if step.offload != "none" else 1 / step.state_parts if zero else 1
        if birth.part == "weights" and birth.moment == "start":
            return 0 if step.offload == "all" else 1 / step.weight_parts if zero else 1
        return 1
