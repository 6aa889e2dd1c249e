"""A training of ours beside the bare engine's, on the same prepared rows in the same order."""

from pathlib import Path
from typing import Any

import bare
import tiny_run

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


def require_identical_losses(tmp_path: Path, base: Path, method: str, segments: int) -> None:
    """Without accumulation and dropout: every bit of every step's loss."""
    run_dir, _ = ours(tmp_path, base, method, BATCH, 0.0, segments)
    expected = theirs(run_dir, base, method, BATCH, 0.0)
    found = [float.fromhex(h) for h in tiny_run.losses(run_dir).values()]
    assert len(found) == STEPS
    assert [x.hex() for x in found] == [x.hex() for x in expected]
    assert found[-1] < found[0]
