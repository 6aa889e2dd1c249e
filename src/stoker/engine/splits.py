"""Which rows an eval share holds out, and how many of them a split needs: at least one, in the smallest set too."""

from collections.abc import Sequence

from stoker.config import objectives, values
from stoker.config.run import Run
from stoker.engine import sampling
from stoker.rundir import inputs

_SEED = 1
"""Of the draws for eval; weights and texts have others."""
_MOST_MISSING = 2

Place = tuple[int, int]
"""A source and the number of a unit in it."""
Draw = tuple[int, int, int]
"""What decides which unit would be drawn next, and its place."""


def fewest(run: Run) -> int:
    """Rows that a split needs: where answers are judged, each is compared with that of another row."""
    return 2 if objectives.facts(run.train.objective).labels else 1


def is_held(run: Run, forced: Sequence[Place], source: int, unit: int) -> bool:
    """Whether a unit of a source is held out: drawn, or forced to be."""
    share = inputs.eval_share(run)
    if not share:
        return False
    return (source, unit) in forced or sampling.taken(unit, values.share(share), run.train.seed, source, _SEED)


def next_draws(run: Run, known: list[Draw], source: int, unit: int) -> list[Draw]:
    """Those that would be drawn next, after one more unit that was not."""
    if not inputs.eval_share(run):
        return known
    return sorted([*known, (sampling.mix(run.train.seed, source, unit, _SEED), source, unit)])[:_MOST_MISSING]


def num_missing(run: Run, train: int, held: int) -> int:
    """How many more an eval share must hold out, where training can spare them."""
    missing = max(0, fewest(run) - held) if inputs.eval_share(run) else 0
    return missing if train - missing >= fewest(run) else 0
