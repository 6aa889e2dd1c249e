"""Size of the data: counted by `prepare`, or declared in the run file."""

import math
from dataclasses import dataclass

from stoker.config import values
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.rundir.inputs import eval_share
from stoker.rundir.prepared import Report

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

    @property
    def estimated(self) -> bool:
        """Declared, not counted."""
        return not self.digest


def from_report(report: Report) -> DataFacts:
    """Counted facts."""
    tokens = report.train.tokens + (report.eval.tokens if report.eval else 0)
    return DataFacts(
        sequences=report.train.sequences,
        tokens=report.train.tokens,
        longest=report.train.longest,
        longest_segment=report.train.longest_segment,
        digest=report.digest,
        has_eval=report.eval is not None,
        disk_bytes=4 * tokens,
    )


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
