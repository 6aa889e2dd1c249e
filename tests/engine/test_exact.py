"""The canonical gradient tree."""

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]


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

    from stoker.engine.exact import GradientTree

    torch.manual_seed(count)
    leaves = [torch.randn(1000) * 10.0 ** torch.randint(-3, 4, (1000,)) for _ in range(count)]
    tree = GradientTree()
    for leaf in leaves:
        tree.add([leaf.clone(), None])
    found, nothing = tree.total()
    assert nothing is None
    assert torch.equal(found, reference(leaves))


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

    from stoker.engine.exact import GradientTree

    tree = GradientTree()
    for count in range(1, 65):
        tree.add([torch.ones(1)])
        assert len(tree._pending) == bin(count).count("1") <= 7


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
