"""The order of a mixture: which sequences of which source form step k, a pure function of (digest, seed, step).

How many are of each source says `rows/mixture.py`. Within a source they follow its own seeded permutation, one for each
epoch of the source, and go on over stages: no sequence comes twice before all of its source came once.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from stoker.config.run import Run
from stoker.rows import mixture, order
from stoker.rows.mixture import Mixture
from stoker.rows.order import Order
from stoker.rundir.prepared import Report, SourceCount


@dataclass(frozen=True)
class MixedOrder:
    """The order in which a run reads the sequences of its sources."""

    digest: str
    """Digest of the prepared set."""
    seed: int
    mixture: Mixture
    batch: int

    def seen(self, step: int) -> list[int]:
        """Sequences of each source in the first `step` steps; the last step of the run may be short."""
        return self.mixture.seen(min(step * self.batch, self.mixture.sequences))

    def sequences(self, step: int) -> list[int]:
        """The sequence ids of step number `step` (from 0), source by source."""
        edges = zip(self.mixture.sources, self.seen(step), self.seen(step + 1), strict=True)
        return [self._sequence(source, number) for source, first, last in edges for number in range(first, last)]

    def _sequence(self, source: SourceCount, number: int) -> int:
        """The `number`-th sequence that is taken of a source."""
        epoch, position = divmod(number, source.sequences)
        keys = order.round_keys(f"{self.digest}/{source.name}", self.seed, epoch)
        return source.first + order.permute(position, source.sequences, keys)


def of(run: Run, report: Report, batch: int) -> Order | MixedOrder:
    """The order of a run over its prepared set."""
    train, seed = report.train, run.train.seed
    mixed = mixture.of(run, train)
    return (
        MixedOrder(report.digest, seed, mixed, batch) if mixed else Order(report.digest, seed, train.sequences, batch)
    )


@dataclass
class Seen:
    """What a training has seen of each source; nothing where there is no mixture."""

    order: Order | MixedOrder
    tokens: dict[str, int] = field(default_factory=dict)
    """By source, up to the newest step."""

    def add(self, step: int, lengths: Sequence[int]) -> None:
        """Count the tokens of step number `step` (from 0), of whose sequences these are the lengths, in order."""
        if isinstance(self.order, Order):
            return
        left = iter(lengths)
        for source, first, last in zip(
            self.order.mixture.sources, self.order.seen(step), self.order.seen(step + 1), strict=True
        ):
            more = sum(itertools.islice(left, last - first))
            self.tokens[source.name] = self.tokens.get(source.name, 0) + more

    def counts(self, step: int) -> dict[str, list[int]]:
        """Sequences and tokens by source after `step` steps, for the events."""
        if isinstance(self.order, Order):
            return {}
        named = zip(self.order.mixture.sources, self.order.seen(step), strict=True)
        return {source.name: [count, self.tokens.get(source.name, 0)] for source, count in named}
