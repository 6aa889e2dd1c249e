"""Size of the data: counted by `prepare`, estimated from its files, or declared in the run file."""

import math
from dataclasses import dataclass

from stoker.config import values
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.plan.plan import Reason
from stoker.rundir.inputs import eval_share
from stoker.rundir.prepared import SourceCount

_PACK_EFFICIENCY = 0.97
"""Assumed fill of packed sequences before the data is packed."""


@dataclass(frozen=True)
class DataFacts:
    """Sizes of the training split."""

    sequences: int
    tokens: int
    longest: int
    longest_segment: int
    digest: str
    has_eval: bool
    disk_bytes: int
    interval: tuple[float, float] = (1.0, 1.0)
    """Counted over these tokens: nine in ten texts lie between."""
    reasons: tuple[Reason, ...] = ()
    """How the tokens were estimated from files that are not prepared."""
    sources: tuple[SourceCount, ...] = ()
    """Of a mixture, once prepared."""

    @property
    def tokens_range(self) -> tuple[int, int]:
        """Nine in ten texts like these have so many."""
        return round(self.tokens * self.interval[0]), round(self.tokens * self.interval[1])

    @property
    def estimated(self) -> bool:
        """Declared or estimated, not counted."""
        return not self.digest


def declared(run: Run) -> DataFacts:
    """Facts the run file declares, for a plan before the data is available."""
    data = run.data
    if data.tokens is None:
        raise StokerError("STK206")
    share = eval_share(run)
    kept = 1 - values.share(share) if share else 1.0
    if not kept:
        raise StokerError("STK307", share=share, eval_rows=data.rows or "-", train_rows=0)
    tokens = max(1, int(data.tokens * kept))
    if data.pack:
        sequences = math.ceil(tokens / (data.length * _PACK_EFFICIENCY))
    elif data.rows is not None:
        sequences = max(1, round(data.rows * kept))
        tokens = min(tokens, sequences * data.length)  # longer rows are cut
    else:
        sequences = math.ceil(tokens / data.length)
    return DataFacts(
        sequences=sequences,
        tokens=tokens,
        longest=data.length,
        longest_segment=data.length,
        digest="",
        has_eval=data.eval is not None,
        disk_bytes=4 * data.tokens,
    )
