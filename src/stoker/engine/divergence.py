"""How far a model has moved on answers that belong to other prompts: what `kto` measures the rewards of a step against.

It is one figure of a whole step (or of a whole split that is evaluated), computed before the losses, without
gradients: the mean over all rows of all ranks, so that neither micro batches nor the number of processes change it.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from stoker.engine.dataset import ROWS, MicroBatch, StepItem
from stoker.engine.objective import answer_log_probs
from stoker.engine.parallel import Ranks


def of(
    items: Iterable[StepItem],
    model: Any,
    inputs: Callable[[MicroBatch], dict[str, Any]],
    table: torch.Tensor,
    ranks: Ranks,
) -> torch.Tensor:
    """The mean of what the mismatched answers of some items have gained, at least 0.

    Args:
        items: Steps, or items of a split.
        model: In evaluation mode, without gradients.
        inputs: The model's arguments for a micro batch.
        table: The values of the mismatched answers before training, by row.
        ranks: All of them call this.
    """
    sums, rows = [], 0
    for item in items:
        assert item.mismatched is not None
        other = item.mismatched.to(table.device)
        own = torch.zeros(other.leaves, device=table.device)
        for turn, micro in enumerate(other.micro_batches):
            tokens = {name: value for name, value in micro.items() if name != ROWS}
            gained = answer_log_probs(model, inputs(tokens))[0] - table[micro[ROWS][:, 0], 0]
            if turn < len(other.numbers):
                own[other.numbers[turn]] = gained.sum()
        sums.append(own)
        rows += len(item.sequences)
    return (ranks.gather(torch.cat(sums)).sum() / rows).clamp(min=0)
