"""Prompts from their rows to what is trained: rendered up to the answer, with the row's columns, never cut."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import prepare_case
import pytest
import torch
from prepare_case import Case

from stoker.engine import answer_figures, callbacks, rollouts, sampler
from stoker.engine.dataset import PreparedSplit
from stoker.errors import StokerError
from stoker.rewards import scorer

pytestmark = pytest.mark.filterwarnings("default")

WORDS = {"train": {"objective": "grpo", "grpo": {"max_new_tokens": 32, "rewards": [{"exact": {"column": "answer"}}]}}}


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    prepare_case.make_tokenizer(tmp_path / "tokenizer")
    return Case(tmp_path, monkeypatch)


def test_a_prompt_ends_where_the_assistant_speaks_and_its_columns_are_beside_it(case: Case) -> None:
    rows = [{"prompt": f"How many? {number}", "answer": number, "note": "七"} for number in range(20)]
    prepare_case.write_jsonl(case.folder / "train.jsonl", rows)
    found = case.prepare(data={"train": {"path": "train.jsonl", "weight": 2}, "eval": "25%"}, **WORDS)
    held = found.report.eval
    assert held is not None
    for name, split, copies in (("train", found.report.train, 2), ("eval", held, 1)):
        read = PreparedSplit(found.run_dir.data / name, split)
        known = [read.columns(number) for number in range(len(read))]
        for number, one in enumerate(known):
            ((text, trained),) = found.runs(read.row(number)[0])
            assert not trained
            assert text.endswith(f"{one['row']['prompt']}<|im_end|>\n<|im_start|>assistant\n")
            assert one["row"] in rows
            assert one["prompt"] == one["row"]["prompt"]
        assert {known.count(one) for one in known} == {copies}
    assert held.sequences + found.report.train.sequences // 2 == 20


def test_a_prompt_that_leaves_no_room_for_the_answer_is_named(case: Case) -> None:
    (problem,) = case.errors([{"prompt": "short", "answer": 1}, {"prompt": "long " * 40, "answer": 1}], **WORDS)
    assert problem.startswith("train.jsonl:2: ")
    assert "96" in problem  # of 128


def test_failed_rewards_are_told_in_an_evaluation_and_alone_are_none() -> None:
    made = [sampler.Generated(np.array([1, 2], np.int32), np.zeros(2, np.float32), ended=True)] * 2

    def mean(*errors: str | None) -> dict[str, float]:
        scores = [scorer.Score(0.0 if error else -1.0, {}, error) for error in errors]
        return rollouts._mean_reward([([0, 1], made)], lambda *_: scores)

    assert "failed" not in mean(None, None)
    assert (mean(None, "f: no")["failed"], mean(None, "f: no")["reward"]) == (0.5, -0.5)
    with pytest.raises(StokerError) as caught:
        mean("f: no", "f: no")
    assert (caught.value.code, caught.value.fields["reason"]) == ("STK447", "f: no")


def test_draws_belong_to_an_answer_alone() -> None:
    one = sampler.draws(1, 2, 3, 4, 8)
    assert np.array_equal(one, sampler.draws(1, 2, 3, 4, 16)[:8])
    others = [sampler.draws(*numbers, 8) for numbers in ((2, 2, 3, 4), (1, 3, 3, 4), (1, 2, 4, 4), (1, 2, 3, 5))]
    assert not any(np.array_equal(one, other) for other in others)


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    likely = torch.tensor([0.5, 0.0, 0.3, 0.2])
    numbers = torch.from_numpy(sampler.draws(0, 0, 0, 0, 20_000))[:, None]
    drawn = sampler._drawn_tokens(likely.log().expand(len(numbers), -1), numbers)
    shares = torch.bincount(drawn[:, 0], minlength=4) / len(numbers)
    assert torch.allclose(shares, likely, atol=0.02)
    assert shares[1] == 0


@pytest.mark.parametrize("reward", [0.1, 3.3, 100.1, 10000.1])
@pytest.mark.parametrize("scale", ["none", "group", "batch"])
def test_answers_of_the_same_worth_are_not_pushed_anywhere(reward: float, scale: str) -> None:
    assert answer_figures.advantages([reward] * 24, 12, scale).abs().max() < 1e-6


@pytest.mark.parametrize(("objective", "steps"), [("grpo", 1), ("distill", 1), ("sft", 10)])
def test_no_answers_are_made_before_the_last_step_was_looked_at(objective: str, steps: int) -> None:
    run = SimpleNamespace(train=SimpleNamespace(objective=objective))
    assert callbacks.flush_every(run, "cuda") == steps


def test_advantages_compare_within_a_group() -> None:
    found = answer_figures.advantages([1.0, 0.0, 5.0, 5.0], 2, "none")
    assert found.tolist() == [0.5, -0.5, 0.0, 0.0]
    scaled = answer_figures.advantages([1.0, 0.0, 5.0, 5.0], 2, "group")
    assert scaled.tolist() == pytest.approx([0.7070, -0.7070, 0.0, 0.0], abs=1e-3)
