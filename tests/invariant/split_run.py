"""One training by micro batches of several sizes and arrangements."""

from pathlib import Path

import numpy as np
import tiny_run

STEPS = 50


def text(base: Path, method: str, micro: int, arrange: str) -> str:
    return f"""
model: {base}
data: {{train: rows.jsonl, length: 64}}
tune: {{method: {method}}}
train: {{batch: 8, steps: {STEPS}, epochs: 9, learning_rate: 1e-3, warmup: 5}}
where: {{micro: {micro}, arrange: {arrange}}}
"""


def require_rounding_only(tmp_path: Path, base: Path, method: str, segments: int) -> None:
    """The same sequences at every step, and losses that differ by rounding, to neither side."""
    rows = tiny_run.random_rows(
        61, seed=5, longest=64, segments=segments
    )  # 61 rows: the last step of an epoch is short
    runs = {}
    for micro, arrange in [(8, "rows"), (4, "rows"), (1, "rows"), (8, "grouped"), (2, "grouped")]:
        run_dir = tiny_run.make_run(tmp_path / f"{micro}{arrange}", text(base, method, micro, arrange), rows)
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
