"""What ranks send for the canonical sum, counted by the kernel in a network of its own, is what the formula says."""

import os
import sys
from pathlib import Path

import pytest
import tiny_run

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root, for a network of its own"),
]

ELEMENTS = 300_000
CASES = [(2, 4), (2, 6), (4, 12), (4, 5)]
"""Ranks and micro batches; with 5 some ranks have one and some two."""


def summed(folder: Path, ranks: int, leaves: int, times: int = 4) -> float:
    """Bytes a rank sends when gradients are added up once."""
    import exactness

    def host() -> int:
        assert exactness.own_network()
        return max(tiny_run.in_ranks(ranks, work))

    def work(rank: int) -> int:
        import torch
        import torch.distributed as dist

        from stoker.engine import exact
        from stoker.engine.parallel import Ranks

        store = Path(os.environ["STOKER_RENDEZVOUS"]) / "store"
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
        place, before = Ranks(rank, ranks), 0
        for time in range(times + 1):
            tree = exact.gradient_tree()
            for leaf in place.leaves(leaves):
                tree.add(leaf, 0, [torch.full((ELEMENTS,), float(leaf))])
            (found,) = exact.reduce_nodes(tree, place.ranges(leaves), [torch.empty(ELEMENTS)])
            assert found.eq(sum(range(leaves))).all()
            dist.barrier()
            before = before if time else exactness.sent_bytes()  # the first connects
        if rank == 0:
            (folder / "sent").write_text(str(exactness.sent_bytes() - before))
        dist.barrier()
        return 0

    assert tiny_run.in_child(host) == 0
    return int((folder / "sent").read_text()) / ranks / times


@pytest.mark.parametrize(("ranks", "leaves"), CASES)
def test_the_kernel_counts_what_the_formula_says(
    tmp_path: Path, ranks: int, leaves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import exactness

    expected = exactness.exact_bytes([ELEMENTS], leaves, ranks)
    assert summed(tmp_path, ranks, leaves) == pytest.approx(expected, rel=0.03)


def test_even_shares_send_no_more_than_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import exactness

    for ranks in (2, 4, 8):
        assert exactness.exact_bytes([ELEMENTS], 8 * ranks, ranks) == exactness.plain_bytes(ELEMENTS, ranks)
    assert exactness.exact_bytes([ELEMENTS], 6, 2) == 1.5 * exactness.plain_bytes(ELEMENTS, 2)
