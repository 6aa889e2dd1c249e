"""The exact step: one canonical order of gradient additions, and randomness keyed by place, not by history.

Leaves of the tree are the step's numbered micro batches. A node at level l covers leaves [i * 2^l, (i+1) * 2^l);
what is left over at the right edge is folded from right to left. The tree depends on the number of leaves only, so
whoever computes a leaf, the sum has the same bits. Keeps at most log2(leaves) + 1 gradient sets.
"""

from collections.abc import Iterable

import torch

from stoker.plan.order import stream_seed

Gradients = list[torch.Tensor | None]


class GradientTree:
    """Adds per-micro-batch gradients in the canonical binary-tree order."""

    def __init__(self) -> None:
        self._pending: list[tuple[int, Gradients]] = []

    def add(self, gradients: Gradients) -> None:
        """Add the next leaf."""
        level = 0
        while self._pending and self._pending[-1][0] == level:
            gradients = _sum(self._pending.pop()[1], gradients)
            level += 1
        self._pending.append((level, gradients))

    def total(self) -> Gradients:
        """The sum over all leaves."""
        _, gradients = self._pending.pop()
        while self._pending:
            gradients = _sum(self._pending.pop()[1], gradients)
        return gradients


def take_gradients(parameters: Iterable[torch.nn.Parameter]) -> Gradients:
    """Detach the gradients from their parameters."""
    gradients: Gradients = []
    for parameter in parameters:
        gradients.append(parameter.grad)
        parameter.grad = None
    return gradients


def give_gradients(parameters: Iterable[torch.nn.Parameter], gradients: Gradients) -> None:
    """Attach gradients to their parameters."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def seed_stream(seed: int, step: int, micro: int) -> None:
    """Start the random stream of one micro batch, on every device of this process."""
    torch.manual_seed(stream_seed(seed, step, micro))


def _sum(left: Gradients, right: Gradients) -> Gradients:
    """Left plus right, in place of left where both are there."""
    out: Gradients = []
    for a, b in zip(left, right, strict=True):
        out.append(b if a is None else a if b is None else a.add_(b))
    return out
