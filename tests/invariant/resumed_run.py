"""A training that is killed or stopped, goes on, and must end with the bits of one that was left alone."""

from collections.abc import Iterable
from pathlib import Path

import tiny_run

from stoker.rundir import events

TOTAL = 24  # 61 rows at batch 8: 8 steps an epoch, the last one short


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


def resumes_exactly(tmp_path: Path, method: str, points: Iterable[int]) -> None:
    """One training, and one more for each step it is killed (odd) or stopped (even) after: the same bits."""
    base = tiny_run.make_base_model(tmp_path / "base", dropout=0.1)
    rows = tiny_run.random_rows(61, seed=5, longest=64, segments=3)
    held_out = tiny_run.random_rows(7, seed=6, longest=64, segments=3)

    def make(name: str) -> tiny_run.RunDir:
        return tiny_run.make_run(tmp_path / name, text(base, method), rows, held_out)

    whole = make("whole")
    assert tiny_run.train(whole) == 0, (whole.path / "child.log").read_text()
    expected, sha = tiny_run.losses(whole), tiny_run.weights_sha(whole.final)
    evals = [e["eval_loss"].hex() for e in events.read(whole.events_file) if e["event"] == "eval"]
    for point in points:
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
