"""Pairs of answers from their rows to micro batches: masks, splits, and that the two are never parted."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import prepare_case
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prepare_case import Case, Prepared

from stoker.engine import reference
from stoker.engine.dataset import ROWS, Arrangement, PreparedSplit, make_item
from stoker.engine.objective import DirectPreference
from stoker.engine.parallel import ALONE, Ranks
from stoker.errors import StokerError

pytestmark = pytest.mark.filterwarnings("default")

WORDS = {"train": {"objective": "dpo"}}
DPO = DirectPreference(beta=0.1)


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    prepare_case.make_tokenizer(tmp_path / "tokenizer")
    return Case(tmp_path, monkeypatch)


def numbered(number: int) -> dict[str, str]:
    return {"prompt": f"How many? {number}", "chosen": f"{number}", "rejected": f"{number} or {number + 1}"}


def test_of_a_pair_both_answers_are_trained_and_nothing_else(case: Case) -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    row = {"prompt": chat, **{key: [{"role": "assistant", "content": key}] for key in ("chosen", "rejected")}}
    found = case.prepare([row], **WORDS)
    ((chosen, rejected),) = found.rows()
    for segment, answer in ((chosen, "chosen"), (rejected, "rejected")):
        runs = found.runs(segment)
        assert [text for text, trained in runs if trained] == [f"{answer}<|im_end|>"]
        assert runs[0][0].endswith("c<|im_end|>\n<|im_start|>assistant\n")
    assert found.report.train.longest == 2 * max(len(chosen), len(rejected))
    assert (found.report.train.sequences, found.report.train.segments) == (1, 2)


def test_pairs_stay_together_in_the_eval_split_and_with_weights(case: Case) -> None:
    prepare_case.write_jsonl(case.folder / "train.jsonl", [numbered(n) for n in range(40)])
    found = case.prepare(data={"train": {"path": "train.jsonl", "weight": 2}, "eval": "25%"}, **WORDS)
    for split, copies in (("train", 2), ("eval", 1)):
        rows = found.rows(split)
        assert {len(row) for row in rows} == {2}
        prompts = [_prompts(found, row) for row in rows]
        assert all(len(set(pair)) == 1 for pair in prompts)
        assert {prompts.count(one) for one in prompts} == {copies}
    assert len(found.rows("eval")) + len(found.rows("train")) // 2 == 40


def _prompts(found: Prepared, row: list[np.ndarray]) -> tuple[str, ...]:
    return tuple(found.runs(segment)[0][0] for segment in row)


def test_a_pair_that_is_cut_before_its_answers_differ_is_a_bad_row(case: Case) -> None:
    long = {"prompt": "a", "chosen": "x " * 100 + "y", "rejected": "x " * 100 + "z"}
    (problem,) = case.errors([numbered(1), long], data={"length": 48}, **WORDS)
    assert problem.startswith("train.jsonl:2: ")
    assert "the same" in problem
    assert case.prepare([numbered(1), long], data={"length": 256}, **WORDS).report.truncated_rows == 0


def test_rows_without_pairs_are_named(case: Case) -> None:
    with pytest.raises(StokerError) as caught:
        case.prepare([{"prompt": "a", "completion": "b"}], **WORDS)
    assert (caught.value.code, caught.value.where) == ("STK376", "train.jsonl:1")
    assert "`chosen`" in caught.value.what


def test_a_fork_of_weights_has_nothing_to_be_compared_with() -> None:
    arrangement = Arrangement("grouped", 1, 8, flatten=False, pad=0, objective=DPO)
    opened: Any = SimpleNamespace(words={"forked_from.run": "before", "forked_from.weights_only": True})
    with pytest.raises(StokerError) as caught:
        reference.known(opened, arrangement, lambda: False)
    assert (caught.value.code, caught.value.fields["run"]) == ("STK443", "before")


# ---- micro batches


class Rows(PreparedSplit):
    """Pairs in memory: the first token of each names its row."""

    def __init__(self, lengths: list[tuple[int, int]]) -> None:
        self._rows = [[np.full(size, row, np.int32) for size in sizes] for row, sizes in enumerate(lengths)]

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> list[np.ndarray]:
        return self._rows[index]

    def trained_tokens(self, index: int) -> int:
        return sum(map(len, self._rows[index]))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(2, 30), st.integers(2, 30)), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_every_pair_is_in_one_micro_batch_with_its_number(
    lengths: list[tuple[int, int]], micro: int, world: int
) -> None:
    split = Rows(lengths)
    longest = 2 * max(map(max, lengths))
    arrangement = Arrangement("grouped", micro, longest, flatten=False, pad=99, objective=DPO)
    order = [*range(len(lengths))][::-1]
    seen = []
    for rank in range(world):
        item = make_item(split, order, arrangement, 0, Ranks(rank, world) if world > 1 else ALONE)
        assert item.divisor == len(lengths)
        for batch in item.micro_batches[: len(item.numbers)]:
            named = batch[ROWS][:, 0].tolist()
            first, second = batch["input_ids"][::2, 0], batch["input_ids"][1::2, 0]
            assert torch.equal(first, second)
            assert first.tolist() == named
            assert batch["input_ids"].numel() <= max(micro * longest, 2 * longest)
            assert "position_ids" not in batch
            seen += named
    assert sorted(seen) == sorted(order)
