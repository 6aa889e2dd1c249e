"""How many sequences of each source a training has seen after any number of them: shares by tokens, stages, epochs.

Pure arithmetic in whole numbers, so that every machine counts the same, in O(stages x sources) wherever one looks.
Which sequences of a source these are, the engine says (`engine/mixed_order.py`).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from stoker.config import mixing
from stoker.config.data_section import Stage
from stoker.config.run import Run
from stoker.errors import StokerError, closest
from stoker.rundir.prepared import SourceCount


class Counted(Protocol):
    """What is known of the training split: its report, or a plan's facts."""

    @property
    def sequences(self) -> int:
        """Of all sources."""

    @property
    def tokens(self) -> int:
        """Of all sources."""

    @property
    def sources(self) -> Sequence[SourceCount]:
        """Empty before `prepare`: then all sources are taken to be alike."""


@dataclass(frozen=True)
class MixedStage:
    """A stage in sequences."""

    sequences: int
    parts: tuple[int, ...]
    """Sequences of each source, in proportion to one another."""


@dataclass(frozen=True)
class Mixture:
    """The stages of a training, over its sources."""

    sources: tuple[SourceCount, ...]
    stages: tuple[MixedStage, ...]

    @property
    def sequences(self) -> int:
        """Of the whole training."""
        return sum(stage.sequences for stage in self.stages)

    def seen(self, sequences: int) -> list[int]:
        """How many of the training's first `sequences` are of each source."""
        counts = [0] * len(self.sources)
        for stage in self.stages:
            taken = min(sequences, stage.sequences)
            counts = [before + more for before, more in zip(counts, divided(taken, stage.parts), strict=True)]
            sequences -= taken
        return counts

    @property
    def tokens(self) -> dict[str, float]:
        """Tokens of each source in the whole training, by the source's mean."""
        counts = zip(self.sources, self.seen(self.sequences), strict=True)
        return {one.name: count * one.tokens / one.sequences if count else 0.0 for one, count in counts}


def divided(total: int, parts: Sequence[int]) -> list[int]:
    """`total` divided in proportion to `parts`; none of the counts falls where `total` rises by one.

    Halves of the list are divided by rounding, then each half in itself: a count is within half of one of its share for
    each time the list was halved, so within one for up to four parts. Largest remainders would be within one for any
    number, but a count can then fall.
    """
    if len(parts) < 2 or not sum(parts):
        return [total] * len(parts)
    half, whole = len(parts) // 2, sum(parts)
    first = (2 * total * sum(parts[:half]) + whole) // (2 * whole)
    return divided(first, parts[:half]) + divided(total - first, parts[half:])


def total_steps(run: Run, data: Counted) -> int:
    """Optimizer steps of the whole training, with a mixture or without."""
    if mixed := of(run, data):
        return -(-mixed.sequences // run.train.batch)
    return run.train.steps or run.train.epochs * -(-data.sequences // run.train.batch)


def whole(run: Run, data: Counted) -> list[dict[str, Any]]:
    """What the whole training sees of each source; nothing without a mixture, or before its data is prepared."""
    mixed = of(run, data) if data.sources else None
    if mixed is None:
        return []
    counts = zip(mixed.sources, mixed.seen(mixed.sequences), mixed.tokens.values(), strict=True)
    return [
        {"name": one.name, "sequences": count, "tokens": round(tokens), "epochs": count / max(1, one.sequences)}
        for one, count, tokens in counts
    ]


def of(run: Run, data: Counted) -> Mixture | None:
    """The mixture a run file asks for; None where it asks for none."""
    if not mixing.is_mixed(run.data):
        return None
    asked = mixing.stages(run.data)
    named = list(dict.fromkeys(name for stage in asked for name in stage.mix))
    found = tuple(data.sources) or _alike(mixing.names(run.data) or named, data)
    if unknown := [name for name in named if name not in {one.name for one in found}]:
        known = [one.name for one in found]
        near = closest(unknown[0], known, 1)
        raise StokerError("STK161", name=unknown[0], choices=[f"`{name}`" for name in known], nearest=near)
    if not asked:
        times = [Fraction(str(source.epochs)) for source in mixing.parts(run.data)]
        parts = tuple(max(1, round(time * one.sequences)) for time, one in zip(times, found, strict=True))
        return Mixture(_checked(found, parts), (MixedStage(sum(parts), parts),))
    per_token = [_per_token(stage, found) for stage in asked]
    if asked[0].tokens:
        lengths = [max(1, round((stage.tokens or 0) * sum(one))) for stage, one in zip(asked, per_token, strict=True)]
    else:
        steps = run.train.steps or run.train.epochs * -(-data.sequences // run.train.batch)
        ends = itertools.accumulate((mixing.part(stage.share or "100%") for stage in asked), initial=Fraction(0))
        marks = [round(end * steps * run.train.batch) for end in ends]
        lengths = [after - before for before, after in itertools.pairwise(marks)]
    stages = [MixedStage(length, _whole(one)) for length, one in zip(lengths, per_token, strict=True)]
    return Mixture(found, tuple(stages))


def _alike(names: Sequence[str], data: Counted) -> tuple[SourceCount, ...]:
    """Sources of which nothing is known but their sum."""
    each = max(1, data.sequences // len(names)), max(1, data.tokens // len(names))
    return tuple(SourceCount(name=name, first=0, sequences=each[0], tokens=each[1]) for name in names)


def _per_token(stage: Stage, sources: Sequence[SourceCount]) -> list[Fraction]:
    """Sequences of each source in one token of the stage: its share over its mean tokens per sequence."""
    shares = {name: mixing.part(percent) for name, percent in stage.mix.items()}
    found = _checked(sources, [shares.get(one.name, Fraction(0)) for one in sources])
    return [shares[one.name] * one.sequences / one.tokens if shares.get(one.name) else Fraction(0) for one in found]


def _checked(sources: Sequence[SourceCount], parts: Sequence[int | Fraction]) -> tuple[SourceCount, ...]:
    """The sources, of which those with a part have something to train."""
    for one, part in zip(sources, parts, strict=True):
        if part and not one.sequences:
            raise StokerError("STK330", name=one.name)
    return tuple(sources)


def _whole(numbers: Sequence[Fraction]) -> tuple[int, ...]:
    """The same proportions in whole numbers."""
    unit = math.lcm(*(number.denominator for number in numbers))
    return tuple(int(number * unit) for number in numbers)
