"""Row 4 of the issue: the same maths however a step is split."""

from pathlib import Path

import pytest
import tiny_run
from split_run import STEPS, require_rounding_only, text

pytestmark = pytest.mark.filterwarnings("default")


def test_micro_batch_and_arrangement_change_rounding_only(tmp_path: Path, base_model: Path) -> None:
    """An adapter on packed rows; full tuning on others: tests/nightly/engine/test_same_maths.py."""
    require_rounding_only(tmp_path, base_model, "lora", 3)


def test_every_sequence_appears_once_per_epoch_and_the_last_step_is_short(tmp_path: Path, base_model: Path) -> None:
    rows = tiny_run.random_rows(61, seed=5, longest=64)
    run_dir = tiny_run.make_run(tmp_path, text(base_model, "lora", 8, "rows"), rows)
    assert tiny_run.train(run_dir) == 0
    ids = list(tiny_run.sequences(run_dir).values())
    for epoch in range(STEPS // 8):
        of_epoch = ids[epoch * 8 : (epoch + 1) * 8]
        assert sorted(i for step in of_epoch for i in step) == list(range(61))
        assert len(of_epoch[-1]) == 5
    assert ids[:8] != ids[8:16]
