"""Judged answers from their rows to micro batches: labels, masks, and the answers of other rows to their prompts."""

from pathlib import Path

import numpy as np
import prepare_case
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prepare_case import Case

from stoker.engine.dataset import ROWS, Arrangement, Mismatched, PreparedSplit, make_item
from stoker.engine.objective import DESIRED, JudgedAnswers
from stoker.engine.parallel import ALONE, Ranks
from stoker.errors import StokerError

pytestmark = pytest.mark.filterwarnings("default")

WORDS = {"train": {"objective": "kto"}}
KTO = JudgedAnswers(beta=0.1, desirable=1.0, undesirable=1.0)


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    prepare_case.make_tokenizer(tmp_path / "tokenizer")
    return Case(tmp_path, monkeypatch)


def judged(number: int) -> dict[str, object]:
    return {"prompt": f"How many? {number}", "completion": f"{number} of them", "label": number % 3 != 0}


def test_labels_and_answers_are_kept(case: Case) -> None:
    found = case.prepare([judged(number) for number in range(12)], data={"eval": "25%"}, **WORDS)
    seen = []
    for name in ("train", "eval"):
        split = PreparedSplit(found.run_dir.data / name, getattr(found.report, name))
        for index, (segment,) in enumerate(found.rows(name)):
            runs = found.runs(segment)
            number = int(runs[0][0].partition("How many? ")[2].partition("<")[0])
            assert [text for text, trained in runs if trained] == [f"{number} of them<|im_end|>"]
            assert split.is_desired(index) == (number % 3 != 0)
            assert split.trained_tokens(index) == int((segment >= 0).sum())
            seen.append(number)
    assert sorted(seen) == list(range(12))


def test_a_small_share_holds_two_judged_rows_so_that_answers_can_be_exchanged(case: Case) -> None:
    for count, share in ((4, "5%"), (10, "5%"), (20, "5%"), (60, "5%")):
        rows = [judged(number) for number in range(count)]
        found = case.prepare(rows, name=f"run{count}", data={"eval": share}, **WORDS)
        held = max(2, count // 20)
        assert (len(found.rows()), len(found.rows("eval"))) == (count - held, held)
        split = PreparedSplit(found.run_dir.data / "eval", found.report.eval)  # type: ignore[arg-type]  # it has eval
        exchanged = Mismatched(split, 128)
        own, other = ([rows.row(index)[0].tolist() for index in range(held)] for rows in (split, exchanged))
        assert all(one != another for one, another in zip(own, other, strict=True))


@pytest.mark.parametrize(("train", "held"), [(1, None), (3, "5%"), (1, 2), (2, 1)])
def test_a_split_of_one_judged_row_is_refused(case: Case, train: int, held: str | int | None) -> None:
    data = {"eval": held} if isinstance(held, str) else {"eval": "held.jsonl"} if held else {}
    if isinstance(held, int):
        prepare_case.write_jsonl(case.folder / "held.jsonl", [judged(50 + number) for number in range(held)])
    with pytest.raises(StokerError) as caught:
        case.prepare([judged(number) for number in range(train)], data=data, **WORDS)
    assert caught.value.code == "STK378"


def test_rows_without_a_label_are_named(case: Case) -> None:
    (problem,) = case.errors([judged(1), {"prompt": "a", "completion": "b", "label": 1}], **WORDS)
    assert problem.startswith("train.jsonl:2: ")
    assert "`label`" in problem


def test_judged_rows_are_not_trained_as_good_answers(case: Case) -> None:
    problems = case.errors([judged(0), judged(1)], train={"objective": "sft"})
    assert len(problems) == 1
    assert "2 rows" in problems[0]
    assert "`label`" in problems[0]


# ---- micro batches


class Rows(PreparedSplit):
    """Judged rows in memory: the prompt's tokens are those of its number, the answer's are 100 more."""

    def __init__(self, lengths: list[tuple[int, int]]) -> None:
        self._rows = [
            [np.concatenate([np.full(asked, ~number), np.full(said, 100 + number)]).astype(np.int32)]
            for number, (asked, said) in enumerate(lengths)
        ]

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> list[np.ndarray]:
        return self._rows[index]

    def trained_tokens(self, index: int) -> int:
        return int((self._rows[index][0] >= 0).sum())

    def is_desired(self, index: int) -> bool:
        return index % 2 == 0


LENGTHS = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=14)


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 4), st.integers(1, 3))
def test_every_row_is_there_once_with_its_label_and_once_with_another_answer(
    lengths: list[tuple[int, int]], micro: int, world: int
) -> None:
    split, longest = Rows(lengths), max(map(sum, lengths))
    arrangement = Arrangement("grouped", micro, longest, flatten=False, pad=99, objective=KTO)
    own: list[int] = []
    other: list[int] = []
    for rank in range(world):
        item = make_item(split, [*range(len(lengths))], arrangement, 0, Ranks(rank, world) if world > 1 else ALONE)
        assert item.mismatched is not None
        assert item.mismatched.mismatched is None
        for batch in item.micro_batches[: len(item.numbers)]:
            numbers = batch[ROWS][:, 0].tolist()
            assert batch["input_ids"][:, 0].tolist() == numbers
            assert batch[DESIRED][:, 0].tolist() == [int(number % 2 == 0) for number in numbers]
            own += numbers
        for batch in item.mismatched.micro_batches[: len(item.mismatched.numbers)]:
            numbers = batch[ROWS][:, 0].tolist()
            assert batch["input_ids"][:, 0].tolist() == numbers
            assert DESIRED not in batch
            assert batch["input_ids"].shape[1] <= longest
            said = [set(row[row >= 100].tolist()) - {-100} for row in batch["labels"]]
            assert all(len(one) == 1 for one in said)
            if len(lengths) > 1:
                assert all(one != {100 + number} for one, number in zip(said, numbers, strict=True))
            other += numbers
    assert sorted(own) == sorted(other) == [*range(len(lengths))]


def test_the_other_answer_is_neither_a_neighbour_s_nor_from_the_other_half() -> None:
    split = Rows([(2, 2)] * 100)
    found = [int(Mismatched(split, 4).row(index)[0][-1]) - 100 for index in range(100)]
    assert sorted(found) == [*range(100)]
    apart = {(one - index) % 100 for index, one in enumerate(found)}
    assert len(apart) == 1
    assert not apart & {0, 1, 2, 49, 50, 51, 98, 99}


def test_the_loss_of_a_step_does_not_depend_on_how_it_is_cut() -> None:
    torch.manual_seed(0)
    log_probs, known = torch.randn(8), torch.randn(8, 1)
    desired, divergence = torch.tensor([[1], [0], [1], [1], [0], [0], [1], [0]]), torch.tensor(0.3)

    def loss(rows: slice) -> torch.Tensor:
        inputs = {"reference": known[rows], DESIRED: desired[rows], "divergence": divergence}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("stoker.engine.objective.answer_log_probs", lambda *_: (log_probs[rows], None))
            return JudgedAnswers(0.5, 2.0, 0.7).loss(None, inputs, torch.tensor(8), lambda: None).loss

    whole = loss(slice(0, 8))
    assert whole == pytest.approx(float(loss(slice(0, 3)) + loss(slice(3, 8))), abs=1e-6)
    moved = 0.5 * (log_probs - known[:, 0] - 0.3)
    wanted = torch.where(desired[:, 0] > 0, 2.0 * (1 - moved.sigmoid()), 0.7 * moved.sigmoid()).mean()
    assert whole == pytest.approx(float(wanted), abs=1e-6)
