"""Row 3 of the issue: the same maths as the bare engine, on the same prepared rows."""

from pathlib import Path
from typing import Any

import bare
import numpy as np
import pytest
import tiny_run

pytestmark = pytest.mark.filterwarnings("default")

STEPS = 50
BATCH = 8
LORA = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.0}


def run_text(base: Path, method: str, micro: int, dropout: float) -> str:
    adapter = f", rank: 4, dropout: {dropout}" if method != "full" else ""
    return f"""
model: {base}
data: {{train: rows.jsonl, length: 64}}
tune: {{method: {method}{adapter}}}
train: {{batch: {BATCH}, steps: {STEPS}, epochs: 9, learning_rate: 1e-3, warmup: 5, weight_decay: 0.01}}
where: {{micro: {micro}, arrange: rows}}
"""


def ours(tmp_path: Path, base: Path, method: str, micro: int, dropout: float, segments: int) -> tuple[Any, list]:
    rows = tiny_run.random_rows(BATCH * 12, seed=3, longest=64, segments=segments)
    run_dir = tiny_run.make_run(tmp_path, run_text(base, method, micro, dropout), rows)
    assert tiny_run.train(run_dir) == 0, (run_dir.path / "child.log").read_text()
    return run_dir, rows


def theirs(run_dir: Any, base: Path, method: str, micro: int, dropout: float) -> list[float]:
    rows = bare.read_rows(run_dir.data / "train")
    ordered = [rows[i] for ids in tiny_run.sequences(run_dir).values() for i in ids]
    model = bare.build_model(base, method, {**LORA, "lora_dropout": dropout}, seed=42)
    return bare.losses(
        model,
        ordered,
        run_dir.path / "bare",
        micro,
        BATCH // micro,
        seed=42,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=5,
        weight_decay=0.01,
        optim="adamw_torch",
    )


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.parametrize("segments", [1, 3])
def test_losses_are_bit_identical_without_accumulation(
    tmp_path: Path, base_model: Path, method: str, segments: int
) -> None:
    run_dir, _ = ours(tmp_path, base_model, method, BATCH, 0.0, segments)
    expected = theirs(run_dir, base_model, method, BATCH, 0.0)
    found = [float.fromhex(h) for h in tiny_run.losses(run_dir).values()]
    assert len(found) == STEPS
    assert [x.hex() for x in found] == [x.hex() for x in expected]
    assert found[-1] < found[0]


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
