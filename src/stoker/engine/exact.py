"""The exact step: one canonical order of gradient additions, and random streams keyed by position, not history.

Leaves of the tree are the step's numbered micro batches. A node (start, level) covers leaves [start, start + 2^level)
with start a multiple of 2^level; the remainder at the right edge is folded from right to left. The tree depends only on
the number of leaves, so the sum has the same bits whichever process computes a leaf. One process keeps at most
log2(leaves) + 1 gradient sets.

Between processes only whole nodes are sent, and every element is added by one process in tree order: an all-to-all
gives each process its slice of every node. Ranks with whole gradients (`reduce_nodes`) then all-gather the slices;
ranks with shards (`CanonicalReduceScatter`) keep theirs.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from stoker.rows.order import stream_seed

Gradients = list[torch.Tensor]
T = TypeVar("T")

_BUCKET_ELEMENTS = 1 << 24
"""Gradients are sent in buckets of at most this many elements, to bound the copies."""


class Tree(Generic[T]):
    """Adds nodes in the canonical order. Nodes arrive in the order of their first leaf."""

    def __init__(self, add: Callable[[T, T], T]) -> None:
        self._add = add
        self.nodes: list[tuple[int, int, T]] = []
        """(start, level, sum) of nodes that could not be joined yet."""

    def add(self, start: int, level: int, value: T) -> None:
        """Append the next node; join it with its left neighbours while they form larger nodes."""
        while self.nodes:
            left_start, left_level, left = self.nodes[-1]
            if left_level != level or left_start % 2 ** (level + 1):
                break
            self.nodes.pop()
            start, level, value = left_start, level + 1, self._add(left, value)
        self.nodes.append((start, level, value))

    def total(self) -> T:
        """The sum over all leaves."""
        _, _, value = self.nodes.pop()
        while self.nodes:
            value = self._add(self.nodes.pop()[2], value)
        return value


@functools.lru_cache(maxsize=1 << 12)
def aligned_nodes(first: int, last: int) -> tuple[tuple[int, int], ...]:
    """The nodes (start, level) into which a tree joins the leaves [first, last)."""
    tree: Tree[None] = Tree(lambda left, right: None)  # noqa: ARG005  # only the shape matters
    for leaf in range(first, last):
        tree.add(leaf, 0, None)
    return tuple((start, level) for start, level, _ in tree.nodes)


def gradient_tree() -> Tree[Gradients]:
    """A tree of gradient sets; sums are accumulated into the left operand."""
    return Tree(_add_in_place)


def _add_in_place(left: Gradients, right: Gradients) -> Gradients:
    # Element by element as with `add_`, in a few kernels for all tensors.
    torch._foreach_add_([local(one) for one in left], [local(one) for one in right])
    return left


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def take_gradients(parameters: Iterable[torch.nn.Parameter]) -> Gradients:
    """Detach the gradients from their parameters; a parameter without one gets zeros."""
    gradients: Gradients = []
    for parameter in parameters:
        gradients.append(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        parameter.grad = None
    return gradients


def give_gradients(parameters: Iterable[torch.nn.Parameter], gradients: Gradients) -> None:
    """Attach gradients to their parameters."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def seed_stream(seed: int, step: int, micro: int) -> None:
    """Start the random stream of one micro batch, on every device of this process."""
    torch.manual_seed(stream_seed(seed, step, micro))


# ---- ranks with whole gradients


def reduce_nodes(tree: Tree[Gradients], ranges: Sequence[range], like: Gradients) -> Gradients:
    """The sum over the leaves of all ranks, on every rank.

    Args:
        tree: This rank's leaves, added; empty if its range is.
        ranges: Every rank's leaves, in the order of the ranks.
        like: Tensors of the gradients' shapes and types, for a rank without leaves.
    """
    mine = [value for _, _, value in tree.nodes]
    held = [aligned_nodes(leaves.start, leaves.stop) for leaves in ranges]
    out = mine[0] if mine else [torch.empty_like(gradient) for gradient in like]
    for bucket in _buckets(like):
        flat = _reduce_bucket([[value[i] for i in bucket] for value in mine], held, [like[i] for i in bucket])
        parts = flat.split([like[i].numel() for i in bucket])
        for i, part in zip(bucket, parts, strict=True):
            out[i].copy_(part.view_as(out[i]))
    return out


def _buckets(tensors: Sequence[torch.Tensor], largest: int = _BUCKET_ELEMENTS) -> list[list[int]]:
    """Indices of consecutive tensors of one type, with at most `largest` elements (or a single tensor)."""
    buckets: list[list[int]] = []
    elements = 0
    for i, tensor in enumerate(tensors):
        same = bool(buckets) and tensors[buckets[-1][0]].dtype == tensor.dtype
        if not same or elements + tensor.numel() > largest:
            buckets.append([])
            elements = 0
        buckets[-1].append(i)
        elements += tensor.numel()
    return buckets


def _reduce_bucket(mine: list[Gradients], held: list[tuple[tuple[int, int], ...]], like: Gradients) -> torch.Tensor:
    world = len(held)
    elements = sum(tensor.numel() for tensor in like)
    size = -(-elements // world)
    received: dict[tuple[int, int], torch.Tensor] = {}
    for turn in range(max(map(len, held))):
        sent = like[0].new_zeros(size * world)
        if turn < len(mine):
            torch.cat([tensor.reshape(-1) for tensor in mine[turn]], out=sent[:elements])
        slices = torch.empty_like(sent)
        dist.all_to_all_single(slices, sent)
        for nodes, piece in zip(held, slices.view(world, size), strict=True):
            if turn < len(nodes):
                received[nodes[turn]] = piece
    tree: Tree[torch.Tensor] = Tree(torch.add)
    for start, level in sorted(received):
        tree.add(start, level, received[start, level])
    whole = like[0].new_empty(size * world)
    dist.all_gather_into_tensor(whole, tree.total().contiguous())
    return whole[:elements]


# ---- ranks with shards


class CanonicalReduceScatter:
    """FSDP2's reduce-scatter with one order of additions: the ranks' leaves are neighbours and form one node.

    Handed to `FSDPModule.set_custom_reduce_scatter`. Holds for a power of two of ranks; rank r computes leaf
    `turn * ranks + r`.
    """

    def __init__(self) -> None:
        self.leaves: int | None = None
        """How many ranks, from the first on, have a leaf in this turn; the others only participate. None: all."""

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A new buffer for every call."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,  # noqa: ARG002  # FSDP is told to sum
        async_op: bool = False,  # noqa: FBT001, ARG002  # FSDP's signature; it never asks for it
    ) -> None:
        """Sum the leaves' slices in the order of the tree."""
        slices = torch.empty_like(input_tensor)
        dist.all_to_all_single(slices, input_tensor, group=group)
        tree: Tree[torch.Tensor] = Tree(torch.add)
        for leaf, piece in enumerate(slices.view(group.size(), -1)[: self.leaves]):
            tree.add(leaf, 0, piece)
        output_tensor.copy_(tree.total())


def sharded_norm(gradients: Sequence[DTensor]) -> torch.Tensor:
    """The norm of row-sharded gradients, the same for every number of ranks.

    Rows are never split: each row's sum of squares is computed on its rank, all are gathered and added on every rank in
    the order of rows and parameters. In double precision, so that a kernel's summation order within a row, which may
    depend on the number of rows, does not show.
    """
    mesh = gradients[0].device_mesh
    shares = [-(-gradient.shape[0] // mesh.size()) for gradient in gradients]
    own = gradients[0].to_local().new_zeros(sum(shares), dtype=torch.float64)
    for gradient, place in zip(gradients, own.split(shares), strict=True):
        part = gradient.to_local()
        squares = part.double().square()
        place[: len(part)] = squares.flatten(1).sum(1) if squares.dim() > 1 else squares
    everywhere = own.new_empty(mesh.size() * len(own))
    dist.all_gather_into_tensor(everywhere, own, group=mesh.get_group())
    by_gradient = everywhere.view(mesh.size(), -1).split(shares, dim=1)
    rows = [part.reshape(-1)[: len(gradient)] for gradient, part in zip(gradients, by_gradient, strict=True)]
    return torch.cat(rows).sum().sqrt().float()


def whole_norm(gradients: Sequence[DTensor]) -> torch.Tensor:
    """The norm of gradients whose rows are on several ranks: the bits that `get_total_norm` gives for whole gradients.

    Its kernel adds the squares of a tensor in an order of its own, so each gradient is gathered on one rank, in turn,
    and its norm is computed there; the norms are shared and combined on every rank. Each rank sends its shard of every
    gradient once more: only `train.exact` asks for it.
    """
    mesh = gradients[0].device_mesh
    rank, world = mesh.get_local_rank(), mesh.size()
    dtype = functools.reduce(torch.promote_types, (gradient.dtype for gradient in gradients))
    norms = gradients[0].to_local().new_zeros(len(gradients), dtype=dtype)
    for bucket in _buckets(gradients, _BUCKET_ELEMENTS * world):
        owned = [[i for i in bucket if i % world == owner] for owner in range(world)]
        wholes = _gathered_whole([[gradients[i] for i in some] for some in owned], rank, mesh.get_group())
        for i, norm in zip(owned[rank], torch._foreach_norm(wholes) if wholes else [], strict=True):
            norms[i] = norm
    dist.all_reduce(norms, group=mesh.get_group())  # zero on all ranks but one: nothing is rounded
    return torch.linalg.vector_norm(norms)


def _gathered_whole(owned: list[list[DTensor]], rank: int, group: dist.ProcessGroup) -> Gradients:
    """The gradients assigned to this rank, whole and flat; `owned` lists them by rank."""
    world, everything = len(owned), [one for some in owned for one in some]
    shares = [[-(-one.shape[0] // world) * (one.numel() // one.shape[0]) for one in some] for some in owned]
    sizes = [sum(some) for some in shares]
    sent = everything[0].to_local().new_zeros(sum(sizes))
    places = sent.split([share for some in shares for share in some])
    for one, place in zip(everything, places, strict=True):
        part = one.to_local().reshape(-1)
        place[: len(part)] = part
    received = sent.new_empty(world * sizes[rank])
    dist.all_to_all_single(received, sent, [sizes[rank]] * world, sizes, group=group)
    pieces = received.view(world, sizes[rank]).split(shares[rank], dim=1)
    return [piece.reshape(-1)[: one.numel()] for one, piece in zip(owned[rank], pieces, strict=True)]


def clip_shards(gradients: Sequence[DTensor], norm: torch.Tensor, largest: float) -> None:
    """Scale gradients down to the largest norm, like `clip_grads_with_norm_` for whole ones."""
    scale = torch.clamp(largest / (norm + 1e-6), max=1.0)
    torch._foreach_mul_([gradient.to_local() for gradient in gradients], scale)
