"""How a step's sequences become micro batches."""

import multiprocessing
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny_run
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.filterwarnings("default")
FACTS = {"sequences": 7, "segments": 7, "tokens": 0, "trained_tokens": 0, "longest": 1, "longest_segment": 1}


def arrange(kind: str, micro: int, rows: list, *, flatten: bool = False, length: int = 64) -> list[dict]:
    from stoker.engine.dataset import Arrangement

    arrangement = Arrangement(kind, micro, length, flatten, 0)
    return [arrangement.padded(leaf) for leaf in arrangement.leaves(rows)]


def content(batches: list[dict]) -> list[tuple[int, int]]:
    """All trained (input, label) places, in any order."""
    found = []
    for batch in batches:
        ids, labels = batch["input_ids"].flatten().tolist(), batch["labels"].flatten().tolist()
        found += [(i, label) for i, label in zip(ids, labels, strict=True) if label != -100]
    return sorted(found)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(2, 16), min_size=1, max_size=4), min_size=1, max_size=12),
    micro=st.integers(1, 6),
    kind=st.sampled_from(["rows", "grouped", "flat"]),
)
def test_every_arrangement_holds_every_trained_token_once(lengths: list, micro: int, kind: str) -> None:
    generator = np.random.default_rng(0)
    rows = []
    for row in lengths:
        segments = [generator.integers(3, 97, size).astype(np.int32) for size in row]
        for segment in segments:
            segment[0] = ~segment[0]
        rows.append(segments)
    batches = arrange("grouped" if kind == "grouped" else "rows", micro, rows, flatten=kind == "flat")
    expected = sorted((int(t), int(t)) for row in rows for segment in row for t in segment if t >= 0)
    assert content(batches) == expected


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(2, 64), min_size=1, max_size=40), st.integers(1, 4))
def test_a_group_never_exceeds_its_token_budget(lengths: list[int], micro: int) -> None:
    rows = [[np.arange(size, dtype=np.int32)] for size in lengths]
    for batch in arrange("grouped", micro, rows):
        assert batch["input_ids"].numel() <= micro * 64
        assert "position_ids" not in batch
        assert "attention_mask" not in batch


def test_grouping_wastes_less_than_a_tenth_on_skewed_lengths() -> None:
    generator = np.random.default_rng(1)
    lengths = np.clip(generator.lognormal(4.7, 0.86, 200), 8, 1024).astype(int)
    rows = [[np.ones(size, dtype=np.int32)] for size in lengths]
    padded = sum(b["input_ids"].numel() for b in arrange("grouped", 4, rows, length=1024))
    assert lengths.sum() / padded > 0.9


def test_packed_rows_restart_positions_and_carry_no_mask() -> None:
    rows = [
        [np.array([~5, 6, 7], dtype=np.int32), np.array([~8, 9], dtype=np.int32)],
        [np.array([~3, 4], dtype=np.int32)],
    ]
    (batch,) = arrange("rows", 2, rows)
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1], [0, 1, 0, 1, 2]]
    assert batch["labels"].tolist() == [[-100, 6, 7, -100, 9], [-100, 4, -100, -100, -100]]
    assert set(batch) == {"input_ids", "labels", "position_ids"}
    (flat,) = arrange("rows", 2, rows, flatten=True)
    assert flat["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 1]]


@pytest.mark.parametrize(("kind", "flash"), [("rows", False), ("rows", True), ("grouped", False), ("grouped", True)])
def test_the_rehearsed_micro_batch_has_the_form_of_the_longest_one(kind: str, flash: bool) -> None:
    from stoker.engine import rehearsal

    plan = SimpleNamespace(
        attention="flash_attention_2" if flash else "sdpa", arrange=kind, batch=SimpleNamespace(micro=4)
    )
    report = SimpleNamespace(packed=False, vocab=97)
    rehearsed = rehearsal._synthetic(SimpleNamespace(plan=plan, report=report), 64)
    (longest,) = arrange(kind, 4, [[np.ones(64, dtype=np.int32)]] * 4, flatten=flash)
    ends = {name for name in rehearsed if name.startswith(("cu_seq_lens", "max_length"))}
    assert bool(ends) == ("position_ids" in longest and flash)  # how many documents there are is the data's
    shapes = {name: one.shape for name, one in rehearsed.items() if name not in ends}
    assert shapes == {name: one.shape for name, one in longest.items()}


def test_rows_are_found_across_shards(tmp_path: Path) -> None:
    from stoker.engine.dataset import PreparedSplit
    from stoker.rundir.prepared import Split

    rows = tiny_run.random_rows(7, seed=1, longest=32)
    for number, part in enumerate([rows[:3], rows[3:]]):
        tiny_run.write_split(tmp_path / f"part{number}", part)
        (tmp_path / f"part{number}" / "shard-00000").rename(tmp_path / f"shard-0000{number}")
    split = PreparedSplit(tmp_path, Split(shards=["shard-00000", "shard-00001"], files={}, **FACTS))
    assert len(split) == 7
    for index, row in enumerate(rows):
        assert [s.tolist() for s in split.row(index)] == [s.tolist() for s in row]
        assert split.trained_tokens(index) == sum(int((s >= 0).sum()) for s in row)


def test_loader_processes_are_forked_whatever_python_s_default() -> None:
    """Steps hold a process group, which cannot be pickled; Python 3.14 pickles unless told otherwise."""
    from stoker.engine.trainer import ExactSteps

    class Unpicklable(list):
        def __reduce_ex__(self, _: Any) -> Any:
            raise TypeError("cannot pickle")

    options = {"num_workers": 1, "pin_memory": False, "prefetch_factor": None}
    args = SimpleNamespace(**{f"dataloader_{name}": value for name, value in options.items()})
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("forkserver", force=True)
    try:
        loader = ExactSteps.get_train_dataloader(
            SimpleNamespace(args=args, _steps=Unpicklable([3, 4, 5]), _start_step=1)
        )
        assert list(loader) == [4, 5]
    finally:
        multiprocessing.set_start_method(before, force=True)


def test_a_step_of_many_micro_batches_comes_from_a_loader_process_with_few_file_descriptors(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader

    from stoker.engine.dataset import Arrangement, PreparedSplit, make_item, single
    from stoker.engine.parallel import ALONE
    from stoker.rundir.prepared import Split

    tiny_run.write_split(tmp_path, tiny_run.random_rows(7, seed=1, longest=32))
    split = PreparedSplit(tmp_path, Split(shards=["shard-00000"], files={}, **FACTS))
    item = make_item(split, [*range(7)] * 40, Arrangement("rows", 1, 64, False, 0), 0, ALONE)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 64, hard))
    try:
        (received,) = DataLoader([item], batch_size=1, collate_fn=single, num_workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(received.micro_batches) == 280
    assert received.divisor == item.trained_tokens
    for ours, theirs in zip(item.micro_batches, received.micro_batches, strict=True):
        assert {name: tensor.tolist() for name, tensor in ours.items()} == {n: t.tolist() for n, t in theirs.items()}
