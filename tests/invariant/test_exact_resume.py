"""Row 5 of the issue: stopped or killed at any step boundary, the run goes on to the same bits."""

import random
from pathlib import Path

import pytest
import tiny_run

from stoker.rundir import events

pytestmark = pytest.mark.filterwarnings("default")

TOTAL = 24  # 61 rows at batch 8: 8 steps an epoch, the last one short
POINTS = {"full": 7, "lora": 7, "qlora": 6}
"""20 random points in all."""


def text(base: Path, method: str) -> str:
    adapter = ", rank: 4, dropout: 0.1" if method != "full" else ""
    return f"""
model: {base}
data: {{train: rows.jsonl, eval: rows.jsonl, length: 64, pack: true}}
tune: {{method: {method}{adapter}}}
train: {{batch: 8, epochs: 3, learning_rate: 1e-3, warmup: 5, eval_every: 6 steps}}
save: {{every: 5 steps, keep: 2, best: eval_loss}}
where: {{micro: 2}}
"""


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_resume_is_bit_exact(tmp_path: Path, method: str) -> None:
    base = tiny_run.make_base_model(tmp_path / "base", dropout=0.1)
    rows = tiny_run.random_rows(61, seed=5, longest=64, segments=3)
    held_out = tiny_run.random_rows(7, seed=6, longest=64, segments=3)

    def make(name: str) -> tiny_run.RunDir:
        return tiny_run.make_run(tmp_path / name, text(base, method), rows, held_out)

    whole = make("whole")
    assert tiny_run.train(whole) == 0, (whole.path / "child.log").read_text()
    expected, sha = tiny_run.losses(whole), tiny_run.weights_sha(whole.final)
    evals = [e["eval_loss"].hex() for e in events.read(whole.events_file) if e["event"] == "eval"]
    generator = random.Random(method)
    for point in generator.sample(range(1, TOTAL), POINTS[method]):
        killed = make(f"at-{point}")
        if point % 2:
            assert tiny_run.train(killed, kill_after=point) == -9
        else:
            assert tiny_run.train(killed, stop_after=point) == 75
        assert tiny_run.train(killed) == 0, (killed.path / "child.log").read_text()
        assert tiny_run.losses(killed) == expected, f"{method} at step {point}"
        assert tiny_run.weights_sha(killed.final) == sha
        last = {e["step"]: e["eval_loss"].hex() for e in events.read(killed.events_file) if e["event"] == "eval"}
        assert list(last.values()) == evals
        tiers = [e["tier"] for e in events.read(killed.events_file) if e["event"] == "attempt"]
        assert set(tiers) == {"EXACT"}


def test_a_stop_commits_the_step_it_finished(tmp_path: Path, base_model: Path) -> None:
    rows = tiny_run.random_rows(61, seed=5, longest=64)
    run_dir = tiny_run.make_run(tmp_path / "run", text(base_model, "lora"), rows, rows[:4])
    assert tiny_run.train(run_dir, stop_after=7) == 75
    assert tiny_run.train(run_dir, stop_after=9) == 75
    attempts = [e["resumed_step"] for e in events.read(run_dir.events_file) if e["event"] == "attempt"]
    assert attempts == [0, 7]


def test_without_the_optimizer_state_the_losses_differ(tmp_path: Path, base_model: Path) -> None:
    """Negative control: a resume that forgets one thing is caught."""
    rows = tiny_run.random_rows(61, seed=5, longest=64, segments=3)
    whole = tiny_run.make_run(tmp_path / "whole", text(base_model, "lora"), rows, rows[:4])
    assert tiny_run.train(whole) == 0
    killed = tiny_run.make_run(tmp_path / "killed", text(base_model, "lora"), rows, rows[:4])
    assert tiny_run.train(killed, kill_after=12) == -9

    from stoker.engine import checkpoint

    kept = checkpoint.TrainingState.load_optimizer
    checkpoint.TrainingState.load_optimizer = lambda *_: None  # in this process; the forked child inherits it
    try:
        assert tiny_run.train(killed) == 0
    finally:
        checkpoint.TrainingState.load_optimizer = kept
    assert tiny_run.losses(killed) != tiny_run.losses(whole)
