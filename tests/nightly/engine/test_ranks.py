"""What tests/invariant/test_across_ranks.py leaves to the night: methods in their other precision, adapters that
move between shards, eight ranks, DeepSpeed's ZeRO."""

from pathlib import Path

import pytest
import tiny_families
import tiny_run
import torch
from ranked_run import make, require_one_training, require_one_training_over_moves, trained
from safetensors.torch import load_file
from tiny_run import said

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.make_base_model(tmp_path_factory.mktemp("models") / "base", dropout=0.1)


@pytest.mark.parametrize(
    ("method", "precision"), [("full", "fp32"), ("lora", "fp32"), ("lora", "bf16"), ("qlora", "fp32")]
)
def test_one_sha_with_ddp_and_fsdp2_on_one_two_and_four_ranks(
    tmp_path: Path, base: Path, method: str, precision: str
) -> None:
    require_one_training(tmp_path, base, method, precision)


def test_an_adapter_killed_and_continued_on_fewer_shards(tmp_path: Path, base: Path) -> None:
    require_one_training_over_moves(tmp_path, base, "lora", [("fsdp2", 4), ("fsdp2", 2), ("fsdp2", 1)])


def test_groups_of_uneven_number_on_up_to_eight_ranks(tmp_path: Path, base: Path) -> None:
    shas = set()
    for strategy, count in [("auto", 1), ("ddp", 2), ("ddp", 8)]:
        where = f"micro: 1, arrange: grouped, strategy: {strategy}, processes: {count}"
        shas.add(tiny_run.weights_sha(trained(tmp_path / f"{strategy}-{count}", base, "lora", where).final))
    assert len(shas) == 1


MOVES = [("ddp", 2, "zero2", 2), ("fsdp2", 2, "zero3", 2), ("zero2", 2, "ddp", 1), ("zero3", 2, "fsdp2", 2)]
COUNTS = [("zero2", 2, "zero2", 4), ("zero2", 2, "zero2", 1), ("zero3", 2, "zero3", 4)]
"""DeepSpeed's own checkpoints refuse another number of ranks; ours have none of its files in them."""


@pytest.mark.parametrize(("one", "count", "other", "others"), [*MOVES, *COUNTS])
def test_a_run_moves_between_strategies(
    tmp_path: Path, base: Path, one: str, count: int, other: str, others: int
) -> None:
    """One format for all: weights, moments, counters and rates go over, so the losses stay close."""
    train = "batch: 8, exact: false, epochs: 2, eval_every: never"
    where = "micro: 1, arrange: rows, strategy: {}, processes: {}"
    whole = trained(tmp_path / "whole", base, "full", where.format("ddp", 2), train)
    moved = make(tmp_path / "moved", base, "full", where.format(one, count), train)
    assert tiny_run.train(moved, kill_after=5) == -9, said(moved)
    moved = make(tmp_path / "moved", base, "full", where.format(other, others), train)
    assert tiny_run.train(moved) == 0, said(moved)
    expected = tiny_run.losses(whole)
    for step, loss in tiny_run.losses(moved).items():
        assert float.fromhex(loss) == pytest.approx(float.fromhex(expected[step]), rel=1e-5), step


@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_zero_goes_on_where_it_was_killed(tmp_path: Path, base: Path, strategy: str) -> None:
    where = f"micro: 2, arrange: rows, strategy: {strategy}, processes: 2"
    whole = trained(tmp_path / "whole", base, "full", where, "batch: 8, exact: auto")
    killed = make(tmp_path / "killed", base, "full", where, "batch: 8, exact: auto")
    assert tiny_run.train(killed, kill_after=3) == -9, said(killed)
    assert tiny_run.train(killed) == 0, said(killed)
    assert tiny_run.losses(killed) == tiny_run.losses(whole)
    assert tiny_run.weights_sha(killed.final) == tiny_run.weights_sha(whole.final)


def test_zero_saves_what_it_does_not_train(tmp_path: Path) -> None:
    """A vision tower is as it was, and in every checkpoint: none could be taken up again without it."""
    base = tiny_families.save(tmp_path / "base", "gemma3")
    where = "micro: 2, arrange: grouped, strategy: zero3, processes: 2"
    run_dir = make(tmp_path / "run", base, "full", where, "batch: 8, exact: false, eval_every: never")
    assert tiny_run.train(run_dir, kill_after=3) == -9, said(run_dir)
    assert tiny_run.train(run_dir) == 0, said(run_dir)
    before, after = weights(base), weights(run_dir.final)
    assert set(after) == set(before)
    tower = [name for name in before if "vision" in name]
    assert tower
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor) == (name in tower or "projector" in name), name


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")
