"""Row 3 of the issue: the same maths as the bare engine, on the same prepared rows."""

from pathlib import Path

import bare
import numpy as np
import pytest
import tiny_run
from beside_bare import LORA, ours, require_identical_losses, theirs

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize(("method", "segments"), [("full", 1), ("lora", 3), ("qlora", 3)])
def test_losses_are_bit_identical_without_accumulation(
    tmp_path: Path, base_model: Path, method: str, segments: int
) -> None:
    """Each method with the other kind of rows: tests/nightly/engine/test_same_maths.py."""
    require_identical_losses(tmp_path, base_model, method, segments)


def test_dropout_of_the_base_model_is_active(tmp_path: Path) -> None:
    """What the comparison below relies on: without it, full tuning would be compared without any randomness."""
    with_dropout, without = (
        ours(
            tmp_path / f"run-{dropout}",
            tiny_run.make_base_model(tmp_path / f"base-{dropout}", dropout=dropout),
            "full",
            2,
            0.1,
            3,
        )[0]
        for dropout in (0.1, 0.0)
    )
    assert tiny_run.losses(with_dropout) != tiny_run.losses(without)


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_losses_agree_with_accumulation_and_dropout(tmp_path: Path, method: str) -> None:
    base = tiny_run.make_base_model(tmp_path / "base", dropout=0.1)
    run_dir, _ = ours(tmp_path / "run", base, method, 2, 0.1, 3)
    expected = np.array(theirs(run_dir, base, method, 2, 0.1))
    found = np.array([float.fromhex(h) for h in tiny_run.losses(run_dir).values()])
    relative = (found - expected) / expected
    assert np.abs(relative).max() <= 1e-6
    assert abs(relative.mean()) <= 1e-7, "a one-sided shift would mean lost or doubled gradients"


def test_another_seed_gives_other_losses(tmp_path: Path, base_model: Path) -> None:
    """Negative control: the comparison can fail."""
    run_dir, _ = ours(tmp_path, base_model, "lora", 2, 0.1, 3)
    rows = bare.read_rows(run_dir.data / "train")
    ordered = [rows[i] for ids in tiny_run.sequences(run_dir).values() for i in ids]
    model = bare.build_model(base_model, "lora", {**LORA, "lora_dropout": 0.1}, seed=42)
    options = {"learning_rate": 1e-3, "lr_scheduler_type": "cosine", "warmup_steps": 5, "weight_decay": 0.01}
    expected = np.array(bare.losses(model, ordered, run_dir.path / "bare", 2, 4, seed=43, **options))
    found = np.array([float.fromhex(h) for h in tiny_run.losses(run_dir).values()])
    assert (np.abs(found - expected) / expected).max() > 1e-6
