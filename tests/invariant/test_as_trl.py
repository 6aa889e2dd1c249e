"""Losses and gradients of every preference objective are those of TRL's trainer on the same rows, step by step.

What must be equal for that is said where it is set: TRL takes its means over micro batches, Stoker over a step.
"""

from pathlib import Path
from typing import Any

import paired_run
import pytest
import tiny_run
import trl_run

from stoker.rundir import events
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.filterwarnings("default")

STEPS = trl_run.STEPS
METHODS = pytest.mark.parametrize("method", ["full", "lora"])


def trained(folder: Path, base: Path, objective: str, method: str, rows: list[Any], more: str = "") -> RunDir:
    text = paired_run.text(base, steps=STEPS, method=method, objective=objective, more=more)
    run_dir = tiny_run.make_run(folder, text, rows)
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    return run_dir


def assert_equal(run_dir: RunDir, theirs: list[dict[str, float]], **named: str) -> None:
    """Each step's loss, norm and figures within 1e-6, relative to what is larger than 1; `named`: theirs by ours.

    A divergence is a difference of sums of log-probabilities some hundred times as large, so it rounds earlier.
    """
    ours = events.steps(run_dir.events_file)
    assert len(ours) == len(theirs) == STEPS
    for step, wanted in zip(ours.values(), theirs, strict=True):
        found = {"loss": step["loss"], "grad_norm": step["grad_norm"], **{own: step["figures"][own] for own in named}}
        for own, other in {"loss": "loss", "grad_norm": "grad_norm", **named}.items():
            within = 1e-5 if own == "divergence" else 1e-6
            assert found[own] == pytest.approx(wanted[other], rel=1e-6, abs=within), own
    losses = [step["loss"] for step in ours.values()]
    assert sum(losses[-8:]) < sum(losses[:8])  # the same rows, an epoch or two later


def whole_steps(seed: int, **options: Any) -> list[Any]:
    """Pairs without a short step, which TRL would fill."""
    return paired_run.pairs(8 * paired_run.BATCH, seed=seed, **options)


REWARDS = {"margin": "rewards/margins", "accuracy": "rewards/accuracies"}


@METHODS
def test_dpo(tmp_path: Path, base_model: Path, method: str) -> None:
    """TRL has a reference model of its own, and computes it anew in every step."""
    import trl

    run_dir = trained(tmp_path, base_model, "dpo", method, whole_steps(1))
    given = {
        "model": trl_run.model(base_model, method),
        "ref_model": trl_run.model(base_model, "full") if method == "full" else None,
    }
    rows = [trl_run.as_pair(row) for row in trl_run.rows_in_order(run_dir)]
    kind = trl_run.untouched(trl.DPOTrainer, "_prepare_dataset")
    theirs = trl_run.logs(kind, trl.DPOConfig, given, rows, run_dir, beta=0.1, max_length=None)
    assert_equal(run_dir, theirs, **REWARDS)


@METHODS
def test_simpo(tmp_path: Path, base_model: Path, method: str) -> None:
    """In TRL it is a kind of `CPOTrainer`, without that one's loss of the chosen answer."""
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    run_dir = trained(tmp_path, base_model, "simpo", method, whole_steps(2), ", simpo: {beta: 0.5, gamma: 0.2}")
    rows = [trl_run.as_padded_pair(row) for row in trl_run.rows_in_order(run_dir)]
    kind = trl_run.untouched(CPOTrainer, "tokenize_row")
    options = {"loss_type": "simpo", "cpo_alpha": 0.0, "beta": 0.5, "simpo_gamma": 0.2, "max_length": 64}
    given = {"model": trl_run.model(base_model, method)}
    assert_equal(run_dir, trl_run.logs(kind, CPOConfig, given, rows, run_dir, **options), **REWARDS)


@METHODS
def test_orpo(tmp_path: Path, base_model: Path, method: str) -> None:
    """TRL's loss of the chosen answer is a mean over all tokens of a micro batch, prompts included.

    So it is given one pair at a time, and prompts of one token, which nothing predicts.
    """
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    run_dir = trained(tmp_path, base_model, "orpo", method, whole_steps(3, asked=1), ", orpo: {beta: 0.3}")
    rows = [trl_run.as_padded_pair(row) for row in trl_run.rows_in_order(run_dir)]
    kind = trl_run.untouched(ORPOTrainer, "tokenize_row")
    one_by_one = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": paired_run.BATCH}
    given = {"model": trl_run.model(base_model, method)}
    theirs = trl_run.logs(kind, ORPOConfig, given, rows, run_dir, beta=0.3, max_length=64, **one_by_one)
    assert_equal(run_dir, theirs, **REWARDS, answer_loss="nll_loss")


@METHODS
def test_reward(tmp_path: Path, base_model: Path, method: str) -> None:
    import trl

    run_dir = trained(tmp_path, base_model, "reward", method, whole_steps(4))
    rows = [trl_run.as_scored_pair(row) for row in trl_run.rows_in_order(run_dir)]
    kind = trl_run.untouched(trl.RewardTrainer, "_prepare_dataset")
    given = {"model": trl_run.scoring_model(base_model, method)}
    theirs = trl_run.logs(kind, trl.RewardConfig, given, rows, run_dir, max_length=None)
    assert_equal(run_dir, theirs, accuracy="accuracy", margin="margin")


@METHODS
def test_kto(tmp_path: Path, base_model: Path, method: str) -> None:
    """TRL's divergence is that of a micro batch, so a step is one; ours is that of a step, here of two micro batches.

    Answers that belong to other prompts are those of ours: TRL takes those of the row before, in batches of the set.
    """
    import trl

    rows = paired_run.judged(8 * paired_run.BATCH, seed=5)
    more = ", kto: {beta: 0.5, desirable_weight: 1.5, undesirable_weight: 0.7}"
    run_dir = trained(tmp_path, base_model, "kto", method, rows, more)
    given = {
        "model": trl_run.model(base_model, method),
        "ref_model": trl_run.model(base_model, "full") if method == "full" else None,
    }
    kind = trl_run.untouched(trl.KTOTrainer, "_prepare_dataset")
    options = {"beta": 0.5, "desirable_weight": 1.5, "undesirable_weight": 0.7, "max_length": None}
    theirs = trl_run.logs(kind, trl.KTOConfig, given, trl_run.as_judged(run_dir), run_dir, **options)
    assert_equal(run_dir, theirs, divergence="kl")
    assert max(step["kl"] for step in theirs) > 0.01
