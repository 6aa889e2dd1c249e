"""Row 4 of the issue: the same maths however a step is split."""

from pathlib import Path

import numpy as np
import pytest
import tiny_run

pytestmark = pytest.mark.filterwarnings("default")

STEPS = 50


def text(base: Path, method: str, micro: int, arrange: str) -> str:
    return f"""
model: {base}
data: {{train: rows.jsonl, length: 64}}
tune: {{method: {method}}}
train: {{batch: 8, steps: {STEPS}, epochs: 9, learning_rate: 1e-3, warmup: 5}}
where: {{micro: {micro}, arrange: {arrange}}}
"""


@pytest.mark.parametrize(("method", "segments"), [("full", 1), ("lora", 3)])
def test_micro_batch_and_arrangement_change_rounding_only(
    tmp_path: Path, base_model: Path, method: str, segments: int
) -> None:
    rows = tiny_run.random_rows(
        61, seed=5, longest=64, segments=segments
    )  # 61 rows: the last step of an epoch is short
    runs = {}
    for micro, arrange in [(8, "rows"), (4, "rows"), (1, "rows"), (8, "grouped"), (2, "grouped")]:
        run_dir = tiny_run.make_run(tmp_path / f"{micro}{arrange}", text(base_model, method, micro, arrange), rows)
        assert tiny_run.train(run_dir) == 0, (run_dir.path / "child.log").read_text()
        runs[micro, arrange] = run_dir
    reference = runs[8, "rows"]
    expected = np.array([float.fromhex(h) for h in tiny_run.losses(reference).values()])
    for run_dir in runs.values():
        assert tiny_run.sequences(run_dir) == tiny_run.sequences(reference)
        found = np.array([float.fromhex(h) for h in tiny_run.losses(run_dir).values()])
        relative = (found - expected) / expected
        assert np.abs(relative).max() <= 1e-5
        assert abs(relative.mean()) <= 1e-6


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
