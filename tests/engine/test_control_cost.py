"""What ranks cost each other per step beside the gradients: the same for every rank, however many there are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import counted_run
import pytest
import tiny_run
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from stoker.engine import exact
from stoker.engine.parallel import Ranks

pytestmark = pytest.mark.filterwarnings("default")

FLAG_BYTES = 8


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.make_base_model(tmp_path_factory.mktemp("base"))


def counted(folder: Path, base: Path, ranks: int) -> list[dict[str, Any]]:
    return counted_run.counted(counted_run.made(folder / f"of{ranks}", base, "ddp", ranks))


def test_a_step_takes_two_flags_and_no_file_however_many_ranks(base: Path, tmp_path: Path) -> None:
    (alone,) = counted(tmp_path, base, 1)
    assert counted_run.of(alone, "control") == counted_run.of(alone, "data") == counted_run.of(alone, "main") == {}
    for ranks in (2, 4):
        found = counted(tmp_path, base, ranks)
        for one in found:
            # Whether to save, as the first rank's clock says; whether to stop, as any rank was asked to.
            assert counted_run.of(one, "control") == {"broadcast": 1, "all_reduce": 1, "bytes": 2 * FLAG_BYTES}
            data = counted_run.of(one, "data")
            assert {key: data[key] for key in data if key.startswith("all_") and key != "all_gather"} == {
                "all_to_all_single": 1,  # the micro batches of a rank form one node of the tree
                "all_gather_into_tensor": 1,
                "all_reduce": 1,  # the losses
            }
            assert one["store_bytes"] == 0
            assert counted_run.of(one, "main") == {}
            beats = sum(counted_run.of(one, "other").values()) * (counted_run.LAST - counted_run.FIRST)
            assert beats <= 3 * (one["seconds"] + 2), "more than a heartbeat and a pulse, written and renamed, a second"


def test_the_counter_sees_what_a_rank_would_add(base: Path, tmp_path: Path) -> None:
    """The control: a rank that says one thing more, and opens one file more, is noticed."""

    def chatter(rank: int, step: int) -> None:
        dist.all_reduce(torch.zeros(3))
        (tmp_path / f"note-{rank}").write_text(f"{step}")

    run_dir = counted_run.made(tmp_path / "loud", base, "ddp", 2)
    for one in counted_run.counted(run_dir, chatter):
        assert counted_run.of(one, "data")["all_reduce"] == 2
        assert counted_run.of(one, "main")["open"] == 1


@pytest.fixture(params=[2, 64, 1024])
def world(request: pytest.FixtureRequest) -> Iterator[int]:
    """A process group of so many ranks, of which the others only seem to be there."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)
    yield request.param
    dist.destroy_process_group()


def test_calls_do_not_grow_to_a_thousand_ranks(world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = counted_run.Counts()
    for name, counting in counts.collectives().items():
        monkeypatch.setattr(dist, name, counting)
    ranks = Ranks(0, world, dist.group.WORLD)
    ranks.agree([True])
    ranks.anyone([False])
    ranks.gather(torch.zeros(4 * world))
    tree = exact.gradient_tree()
    for leaf in range(4):
        tree.add(leaf, 0, [torch.ones(1000), torch.ones(24)])
    exact.reduce_nodes(tree, ranks.ranges(4 * world), [torch.ones(1000), torch.ones(24)])
    del counts.seen["data bytes"]  # the losses of all micro batches
    made = {"broadcast": 1, "all_reduce": 2, "all_to_all_single": 1, "all_gather_into_tensor": 1}
    assert counts.seen == {f"data {name}": count for name, count in made.items()}
