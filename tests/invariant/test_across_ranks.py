"""However many processes train, and whether they hold the whole model or shards: one training.

Methods in their other precision, more ranks and DeepSpeed: tests/nightly/engine/test_ranks.py; fifty steps without the
canonical order: test_fifty_steps.py there.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny_run
from ranked_run import make, require_one_training, require_one_training_over_moves, trained
from safetensors.torch import load_file
from tiny_run import said

from stoker.rundir import events

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.make_base_model(tmp_path_factory.mktemp("models") / "base", dropout=0.1)


@pytest.mark.parametrize(("method", "precision"), [("full", "bf16"), ("qlora", "bf16")])
def test_one_sha_with_ddp_and_fsdp2_on_one_two_and_four_ranks(
    tmp_path: Path, base: Path, method: str, precision: str
) -> None:
    require_one_training(tmp_path, base, method, precision)


def test_shards_that_fill_no_vector_of_the_processor(tmp_path: Path) -> None:
    """Vectors of 72 over four ranks are 18 long: what an optimizer does at the end of a shard must not show."""
    base = tiny_run.make_base_model(tmp_path / "base", width=72)
    shas = set()
    for count in (1, 2, 4):
        where = f"micro: 1, arrange: rows, strategy: fsdp2, processes: {count}"
        shas.add(tiny_run.weights_sha(trained(tmp_path / str(count), base, "full", where).final))
    assert len(shas) == 1


def test_groups_of_uneven_number_and_ranks_that_are_no_power_of_two(tmp_path: Path, base: Path) -> None:
    """Grouped by length a step has few and uneven micro batches: some ranks have none of their own."""
    shas = set()
    for strategy, count in [("auto", 1), ("ddp", 4), ("fsdp2", 4)]:
        where = f"micro: 1, arrange: grouped, strategy: {strategy}, processes: {count}"
        run_dir = trained(tmp_path / f"{strategy}-{count}", base, "lora", where)
        counts = {step["micro_batches"] for step in events.steps(run_dir.events_file).values()}
        assert len(counts) > 1
        shas.add(tiny_run.weights_sha(run_dir.final))
    for count in (1, 3):
        run_dir = trained(
            tmp_path / f"nine-{count}", base, "lora", f"micro: 1, processes: {count}", "batch: 9, exact: true"
        )
        shas.add(tiny_run.weights_sha(run_dir.final))
    assert len(shas) == 2  # one of batch 8, one of batch 9


def test_plain_reduction_gives_different_shas(tmp_path: Path, base: Path) -> None:
    """Negative control: without the canonical order the number of ranks shows in the bits."""
    shas = set()
    for count in (1, 2, 4):
        where = f"micro: 1, arrange: rows, strategy: ddp, processes: {count}"
        shas.add(
            tiny_run.weights_sha(trained(tmp_path / str(count), base, "full", where, "batch: 8, exact: false").final)
        )
    assert len(shas) == 3


@pytest.mark.parametrize(
    ("method", "attempts"),
    [("lora", [("ddp", 2), ("auto", 1), ("ddp", 4)]), ("full", [("fsdp2", 2), ("fsdp2", 4)])],
)
def test_killed_and_continued_on_another_number_of_ranks(
    tmp_path: Path, base: Path, method: str, attempts: Sequence[tuple[str, int]]
) -> None:
    require_one_training_over_moves(tmp_path, base, method, attempts)


def test_more_ranks_than_rows(tmp_path: Path, base: Path) -> None:
    """Rank 2 on four processes: two of them hold no row of an adapter."""
    text = "micro: 1, arrange: rows, strategy: fsdp2, processes: 4"
    wide = trained(tmp_path / "wide", base, "thin", text)
    alone = trained(tmp_path / "alone", base, "thin", text.replace("processes: 4", "processes: 1"))
    assert tiny_run.weights_sha(wide.final) == tiny_run.weights_sha(alone.final)


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_the_adapter_of_shards_is_whole(tmp_path: Path, base: Path, method: str) -> None:
    """Put together from four ranks: every tensor there, of full shape, none empty."""
    where = "micro: 1, strategy: {}, processes: {}"
    sharded = trained(tmp_path / "sharded", base, method, where.format("fsdp2", 4))
    alone = trained(tmp_path / "alone", base, method, where.format("auto", 1))
    tensors, expected = (load_file(run.final / "adapter_model.safetensors") for run in (sharded, alone))
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        name: tensor.shape for name, tensor in expected.items()
    }
    assert len(tensors) == 2 * 7 * 2  # A and B of seven linear layers in two blocks
    assert all(tensor.abs().max() > 0 for tensor in tensors.values())


def test_what_does_not_run_as_planned_stops(tmp_path: Path, base: Path) -> None:
    """The trap: accelerate makes DDP of FSDP on a CPU, says nothing and ends with 0. Here the types are compared."""
    import json

    run_dir = make(tmp_path / "run", base, "lora", "micro: 1, strategy: ddp, processes: 2")
    plan = json.loads(run_dir.plan_file.read_text())
    from stoker.engine import fsdp

    shard = fsdp.shard
    plan["strategy"] = "fsdp2"
    run_dir.plan_file.write_text(json.dumps(plan))
    fsdp.shard = lambda model, plan: None  # in the forked children: sharding does nothing
    try:
        assert tiny_run.train(run_dir) not in (0, 75)
    finally:
        fsdp.shard = shard
    assert "STK418" in said(run_dir)


def test_a_weight_that_is_not_shared_out_stops_the_run(tmp_path: Path, base: Path) -> None:
    """Negative control: a parameter that every rank holds in full is found by its local bytes."""
    from stoker.engine import fsdp

    run_dir = make(tmp_path / "run", base, "qlora", "micro: 1, strategy: fsdp2, processes: 2")
    whole = fsdp.fully_shard

    def leaves_one_out(module: object, **options: object) -> object:
        left_out = {parameter for name, parameter in module.named_parameters() if "q_proj.base" in name}
        return whole(module, ignored_params=left_out, **options)

    fsdp.fully_shard = leaves_one_out  # in the forked children
    try:
        assert tiny_run.train(run_dir) not in (0, 75)
    finally:
        fsdp.fully_shard = whole
    assert "STK417" in said(run_dir)
    assert "q_proj.base_layer.weight" in said(run_dir)
