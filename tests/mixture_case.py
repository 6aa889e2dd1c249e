"""Mixtures for tests and the benchmark: run files, counted sources, and a replay that knows no closed form.

The replay hands out one sequence after the other, with counters at every halving of the list of sources, and reads
whole epochs of a source by `Order`: another way to the same answer, in time that grows with the step.
"""

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from stoker.config import load
from stoker.config.run import Run
from stoker.rows.mixture import Mixture
from stoker.rows.order import Order
from stoker.rundir.prepared import SourceCount, Split

NAMES = ("wiki", "code", "qa", "books", "news", "talk")


def run_of(stages: str, train: str = "steps: 40, batch: 8", names: Sequence[str] = NAMES[:4], sources: str = "") -> Run:
    """A run file whose sources are called by these names; `stages` in YAML's flow style."""
    listed = sources or ", ".join(f"{{path: data/{name}.jsonl}}" for name in names)
    text = "model: {shape: llama, layers: 2, width: 64, heads: 2}\ntokenizer: tok\n"
    text += f"data: {{train: [{listed}]{f', stages: {stages}' if stages else ''}}}\ntrain: {{{train}}}\n"
    return load.parse(text, "run.yaml")


def split_of(sizes: Sequence[int], means: Sequence[float], names: Sequence[str] = NAMES) -> Split:
    """A counted training split."""
    firsts = [sum(sizes[:number]) for number in range(len(sizes))]
    sources = [
        SourceCount(name=name, first=first, sequences=size, tokens=round(size * mean))
        for name, first, size, mean in zip(names, firsts, sizes, means, strict=False)
    ]
    tokens = sum(one.tokens for one in sources)
    facts = {"segments": sum(sizes), "trained_tokens": tokens, "longest": 64, "longest_segment": 64}
    return Split(sequences=sum(sizes), tokens=tokens, shards=[], files={}, sources=sources, **facts)


@dataclass
class _Halving:
    """A list of sources, halved: how many went to either half so far."""

    parts: Sequence[int]
    first: int
    taken: int = 0
    left: int = 0
    halves: "list[_Halving]" = field(default_factory=list)

    def next_source(self) -> int:
        """The source of the next sequence."""
        if len(self.parts) == 1:
            return self.first
        half = len(self.parts) // 2
        if not self.halves:
            self.halves = [_Halving(self.parts[:half], self.first), _Halving(self.parts[half:], self.first + half)]
        self.taken += 1
        wanted = Fraction(self.taken * sum(self.parts[:half]), sum(self.parts))
        to_left = wanted + Fraction(1, 2) >= self.left + 1
        self.left += to_left
        return self.halves[0 if to_left else 1].next_source()


def replayed(mixture: Mixture, digest: str, seed: int, batch: int) -> Iterator[list[int]]:
    """The sequence ids of each step, one step after the other."""
    drawn: Counter[int] = Counter()
    epochs: dict[tuple[int, int], list[int]] = {}
    step: list[tuple[int, int]] = []
    for stage in mixture.stages:
        halving = _Halving(stage.parts, 0)
        for _ in range(stage.sequences):
            number = halving.next_source()
            source = mixture.sources[number]
            epoch, place = divmod(drawn[number], source.sequences)
            drawn[number] += 1
            if (number, epoch) not in epochs:
                whole = Order(f"{digest}/{source.name}", seed, source.sequences, source.sequences)
                epochs[number, epoch] = whole.sequences(epoch)
            step.append((number, source.first + epochs[number, epoch][place]))
            if len(step) == batch:
                yield [one for _, one in sorted(step, key=lambda drawn: drawn[0])]
                step = []
    if step:
        yield [one for _, one in sorted(step, key=lambda drawn: drawn[0])]


def any_case(generator: random.Random) -> tuple[Run, Split]:
    """A mixture drawn at random: one to six sources, one to four stages, by shares, by tokens or by epochs."""
    names = NAMES[: generator.randint(1, len(NAMES))]
    sizes = [generator.randint(1, 60) for _ in names]
    split = split_of(sizes, [generator.uniform(1, 64) for _ in names], names)
    batch = generator.randint(1, 16)
    if generator.random() < 0.2:
        listed = ", ".join(f"{{path: {name}.txt, epochs: {generator.choice([0.5, 1, 2, 3.25])}}}" for name in names)
        return run_of("", f"batch: {batch}", names, listed), split
    by_tokens = generator.random() < 0.4
    count = generator.randint(1, 4)
    lengths = percents(generator, count)
    stages = []
    for length in lengths:
        mix = ", ".join(f"{name}: {share}" for name, share in zip(names, percents(generator, len(names)), strict=True))
        extent = f"tokens: {generator.randint(1, 4000)}" if by_tokens else f"share: {length}"
        stages.append(f"{{{extent}, mix: {{{mix}}}}}")
    train = f"batch: {batch}" if by_tokens else f"batch: {batch}, steps: {generator.randint(1, 60)}"
    return run_of(f"[{', '.join(stages)}]", train, names), split


def percents(generator: random.Random, count: int) -> list[str]:
    """Shares that add up to 100 %, some of them nothing."""
    cuts = sorted(generator.randint(0, 1000) for _ in range(count - 1))
    edges = [0, *cuts, 1000]
    return [f"{(after - before) / 10:.1f}%" for before, after in itertools.pairwise(edges)]
