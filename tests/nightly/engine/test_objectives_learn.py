"""Preference and reward training learn what they are to learn, and nothing from shuffled labels or rewards."""

from pathlib import Path

import asked_run
import numpy as np
import paired_run
import pytest
import tiny_run

from stoker.rundir import events

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.make_base_model(tmp_path_factory.mktemp("models") / "base")


@pytest.mark.parametrize("objective", ["simpo", "orpo", "kto", "reward"])
def test_held_out_pairs_are_told_apart_and_with_shuffled_labels_they_are_not(
    tmp_path: Path, base_model: Path, objective: str
) -> None:
    accuracy = paired_run.accuracy_learned(tmp_path, base_model, objective)
    assert accuracy["right"] > 0.9
    # What orpo adds, the loss of the chosen answers, makes some words likelier than others, whoever they belong to.
    assert (0.15 if objective == "orpo" else 0.3) < accuracy["shuffled"] < 0.7


def test_rewarded_words_become_likelier_and_with_shuffled_rewards_they_do_not(tmp_path: Path, base_model: Path) -> None:
    found = {}
    for reward in ("even", "shuffled"):
        text = asked_run.text(base_model, steps=60, reward=reward).replace("1e-3", "5e-3")
        run_dir = asked_run.trained(tmp_path / reward, text, asked_run.prompts(40, seed=6))
        steps = events.steps(run_dir.events_file)
        found[reward] = np.mean([steps[step]["figures"]["reward.even"] for step in range(56, 61)])
    assert found["even"] > 0.9
    assert 0.3 < found["shuffled"] < 0.7
