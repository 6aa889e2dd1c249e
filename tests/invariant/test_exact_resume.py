"""Row 5 of the issue: stopped or killed at any step boundary, the run goes on to the same bits."""

from pathlib import Path

import paired_run
import pytest
import tiny_run
from resumed_run import resumes_exactly, text

from stoker.rundir import events

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize(("method", "points"), [("full", (9, 16)), ("lora", (13, 20)), ("qlora", (3, 22))])
def test_resume_is_bit_exact(tmp_path: Path, method: str, points: tuple[int, int]) -> None:
    """One kill and one stop each; twenty points: tests/nightly/engine/test_resume_anywhere.py."""
    resumes_exactly(tmp_path, method, points)


def test_a_stop_commits_the_step_it_finished(tmp_path: Path, base_model: Path) -> None:
    rows = tiny_run.random_rows(61, seed=5, longest=64)
    run_dir = tiny_run.make_run(tmp_path / "run", text(base_model, "lora"), rows, rows[:4])
    assert tiny_run.train(run_dir, stop_after=7) == 75
    assert tiny_run.train(run_dir, stop_after=9) == 75
    attempts = [e["resumed_step"] for e in events.read(run_dir.events_file) if e["event"] == "attempt"]
    assert attempts == [0, 7]


@pytest.mark.parametrize("objective", ["sft", "reward"])
def test_rows_with_the_padding_token_resume_to_the_same_bits(tmp_path: Path, base_model: Path, objective: str) -> None:
    """The Trainer names it in the configuration; a model that is loaded with it has no gradient for its embedding."""
    rows = paired_run.rows_of(objective, 40, 5) if objective == "reward" else tiny_run.random_rows(40, 5, 32)
    for segment in (segment for row in rows for segment in row):
        segment[0] = ~0  # the padding token, asked and not answered
    words = paired_run.text(base_model, steps=9, objective=objective).replace("every: 5 steps", "every: 3 steps")
    whole, killed = (tiny_run.make_run(tmp_path / name, words, rows) for name in ("whole", "killed"))
    assert tiny_run.train(whole) == 0, tiny_run.said(whole)
    assert tiny_run.train(killed, kill_after=5) == -9
    assert tiny_run.train(killed) == 0, tiny_run.said(killed)
    assert tiny_run.weights_sha(killed.final) == tiny_run.weights_sha(whole.final)


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
