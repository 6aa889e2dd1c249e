"""Size of the data: counted by `prepare`, estimated from its files, or declared in the run file."""

import math
from dataclasses import dataclass

from stoker.config import objectives, values
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.facts import setup_times
from stoker.generating.generated_step import NO_ANSWERS, AnswerFacts
from stoker.plan.plan import Reason
from stoker.rundir.inputs import eval_share
from stoker.rundir.prepared import SourceCount

_PACK_EFFICIENCY = 0.97
"""Assumed fill of packed sequences before the data is packed."""
_WORTH_SECONDS = 60


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
    source_bytes: int = 0
    """Of the files they are prepared from; 0 where these are not on this machine."""
    tokens_before: float = 0.0
    tokens_beside: float = 0.0
    """What is computed before training, and beside each token of a step, takes as long as so many tokens of it."""
    answers: AnswerFacts = NO_ANSWERS
    """What is generated before each step."""

    @property
    def tokens_range(self) -> tuple[int, int]:
        """Nine in ten texts like these have so many."""
        return round(self.tokens * self.interval[0]), round(self.tokens * self.interval[1])

    @property
    def estimated(self) -> bool:
        """Declared or estimated, not counted."""
        return not self.digest


def preparing_seconds(run: Run, data: DataFacts, processors: int) -> float:
    """How long it takes until data that is not prepared is: its pipeline, if there is one, then tokenising."""
    steps = len(run.data.pipeline or ())
    seconds = setup_times.preparing(data.tokens, processors, steps, data.source_bytes or 4 * data.tokens)
    return seconds if data.estimated and run.data.set is None else 0.0


def pipeline_bytes(run: Run, data: DataFacts) -> int:
    """Disk that a pipeline takes: the documents before every step that reads them twice, and what it gives."""
    twice = [step for step in run.data.pipeline or () if step.step.endswith("Dedup")]
    size = (data.source_bytes or 4 * data.tokens) * (1 + len(twice))
    return size if data.estimated and run.data.pipeline else 0


def preparing_reasons(run: Run, data: DataFacts, processors: int) -> list[Reason]:
    """How long preparing takes, where it is worth a line; half to twice as long, as all of a stay besides training."""
    seconds = preparing_seconds(run, data, processors)
    if seconds < _WORTH_SECONDS:
        return []
    minutes = {name: f"{seconds * part / 60:,.0f}" for name, part in (("low", 0.5), ("minutes", 1), ("high", 2))}
    fields = {**minutes, "processors": processors, "gigabytes": f"{data.disk_bytes / 1e9:.1f}"}
    return [Reason(about="data", key="why.data.preparing", fields=fields)]


def declared(run: Run) -> DataFacts:
    """Facts the run file declares, for a plan before the data is available."""
    data, segments = run.data, objectives.facts(run.train.objective).segments
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
        tokens = min(tokens, sequences * data.length * segments)  # longer rows are cut
    else:
        sequences = math.ceil(tokens / data.length)
    return DataFacts(
        sequences=sequences,
        tokens=tokens,
        longest=data.length * segments,
        longest_segment=data.length,
        digest="",
        has_eval=data.eval is not None,
        disk_bytes=4 * data.tokens,
    )
