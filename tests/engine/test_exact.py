"""The canonical gradient tree."""

import os
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("default")


def reference(leaves: list) -> object:
    """The tree by its definition: complete nodes by level, leftovers folded from the right."""
    import torch

    def node(first: int, size: int) -> torch.Tensor:
        if size == 1:
            return leaves[first].clone()
        return node(first, size // 2) + node(first + size // 2, size // 2)

    parts, first = [], 0
    while first < len(leaves):
        size = 1 << ((len(leaves) - first).bit_length() - 1)
        parts.append(node(first, size))
        first += size
    total = parts.pop()
    while parts:
        total = parts.pop() + total
    return total


@pytest.mark.parametrize("count", range(1, 18))
def test_the_tree_is_the_one_defined(count: int) -> None:
    import torch

    from stoker.engine.exact import gradient_tree

    torch.manual_seed(count)
    leaves = [torch.randn(1000) * 10.0 ** torch.randint(-3, 4, (1000,)) for _ in range(count)]
    tree = gradient_tree()
    for number, leaf in enumerate(leaves):
        tree.add(number, 0, [leaf.clone()])
    (found,) = tree.total()
    assert torch.equal(found, reference(leaves))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13, 16, 31])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_nodes_of_any_ranges_join_to_the_same_tree(count: int, ranks: int) -> None:
    """What the ranks have added for themselves are nodes of the one tree, whoever had which range."""
    import torch

    from stoker.engine.exact import Tree, aligned_nodes
    from stoker.engine.parallel import Ranks

    torch.manual_seed(count)
    leaves = [torch.randn(1000) * 10.0 ** torch.randint(-3, 4, (1000,)) for _ in range(count)]
    joined: Tree[torch.Tensor] = Tree(torch.add)
    for rank in range(ranks):
        own: Tree[torch.Tensor] = Tree(torch.add)
        leaves_of = Ranks(rank, ranks).ranges(count)[rank]
        for number in leaves_of:
            own.add(number, 0, leaves[number])
        assert tuple(node[:2] for node in own.nodes) == aligned_nodes(leaves_of.start, leaves_of.stop)
        for node in own.nodes:
            joined.add(*node)
    assert torch.equal(joined.total(), reference(leaves))


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [1, 3, 8, 21])
def test_turns_of_neighbouring_leaves_are_nodes_of_the_same_tree(count: int, ranks: int) -> None:
    """As shards are reduced: each turn adds one leaf of every rank and is itself a node, short or not."""
    import torch

    from stoker.engine.exact import Tree

    torch.manual_seed(count)
    leaves = [torch.randn(1000) * 10.0 ** torch.randint(-3, 4, (1000,)) for _ in range(count)]
    whole: Tree[torch.Tensor] = Tree(torch.add)
    for first in range(0, count, ranks):
        turn: Tree[torch.Tensor] = Tree(torch.add)
        for number, leaf in enumerate(leaves[first : first + ranks]):
            turn.add(number, 0, leaf)
        whole.add(first, ranks.bit_length() - 1, turn.total())
    assert torch.equal(whole.total(), reference(leaves))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("count", [1, 2, 5, 8])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_leaf_is_computed_by_exactly_one_rank(world: int, count: int, *, interleaved: bool) -> None:
    from stoker.engine.parallel import Ranks

    ranks = [Ranks(rank, world, interleaved=interleaved) for rank in range(world)]
    assert sorted(leaf for one in ranks for leaf in one.leaves(count)) == list(range(count))
    assert all(len(one.leaves(count)) <= one.turns(count) for one in ranks)
    if interleaved:
        assert len({one.turns(count) for one in ranks}) == 1


def test_plain_accumulation_has_other_bits() -> None:
    """Negative control: order matters, so the test above can fail."""
    import torch

    torch.manual_seed(0)
    leaves = [torch.randn(1000) * 10.0 ** torch.randint(-3, 4, (1000,)) for _ in range(8)]
    plain = leaves[0].clone()
    for leaf in leaves[1:]:
        plain += leaf
    assert not torch.equal(plain, reference(leaves))


def test_at_most_log2_plus_one_gradient_sets_are_held() -> None:
    import torch

    from stoker.engine.exact import gradient_tree

    tree = gradient_tree()
    for count in range(1, 65):
        tree.add(count - 1, 0, [torch.ones(1)])
        assert len(tree.nodes) == bin(count).count("1") <= 7


def test_streams_depend_on_place_only() -> None:
    import torch

    from stoker.engine.exact import seed_stream

    def draw(step: int, micro: int) -> list[float]:
        seed_stream(42, step, micro)
        return torch.rand(3).tolist()

    first = draw(5, 1)
    draw(6, 0)
    assert draw(5, 1) == first
    assert draw(5, 2) != first
    assert draw(6, 1) != first


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_norm_of_shards_is_that_of_whole_gradients(world: int) -> None:
    """To the bit, also of more ranks than rows or gradients. Control: a sum in double precision rounds otherwise."""
    import tiny_run
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    from stoker.engine import exact
    from stoker.engine.exact import sharded_norm, whole_norm

    torch.manual_seed(1)
    draws = [[torch.randn(shape) for shape in ((97, 64), (64,), (3, 50))][: 1 + n % 3] for n in range(32)]

    def by_rows(draw: list[torch.Tensor]) -> torch.Tensor:
        squares = [one.double().square() for one in draw]
        rows = [one.flatten(1).sum(1) if one.dim() > 1 else one for one in squares]
        return torch.cat(rows).sum().sqrt().float()

    def work(rank: int) -> int:
        store = dist.FileStore(f"{os.environ['STOKER_RENDEZVOUS']}/store", world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        mesh = init_device_mesh("cpu", (world,))
        shards = [[distribute_tensor(one, mesh, [Shard(0)]) for one in draw] for draw in draws]
        if [sharded_norm(some) for some in shards] != [by_rows(draw) for draw in draws]:
            return 4
        wanted = [torch.nn.utils.get_total_norm(draw) for draw in draws]
        if [whole_norm(some) for some in shards] != wanted:
            return 3
        exact._BUCKET_ELEMENTS = 1  # a bucket for each gradient: most ranks then gather nothing
        return 0 if [whole_norm(some) for some in shards] == wanted else 5

    assert tiny_run.in_ranks(world, work) == [0] * world
    assert [by_rows(draw) for draw in draws] != [torch.nn.utils.get_total_norm(draw) for draw in draws]


def test_sets_are_added_in_one_operation_with_the_bits_of_one_by_one() -> None:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from stoker.engine.exact import gradient_tree

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(str(func))
            return func(*args, **(kwargs or {}))

    calls: list[str] = []
    shapes, types = [(3, 5), (7,), (0, 4), (2, 2)], [torch.float32, torch.bfloat16, torch.float32, torch.float16]
    left, right = ([torch.randn(shape).to(kind) for shape, kind in zip(shapes, types, strict=True)] for _ in range(2))
    expected = [one.clone().add_(other) for one, other in zip(left, right, strict=True)]
    tree = gradient_tree()
    with Seen():
        tree.add(0, 0, left)
        tree.add(1, 0, right)
    assert len(calls) == 1
    assert all(map(torch.equal, tree.total(), expected))
