"""Runs of several real processes with gloo: with dropout, sequences packed and of uneven length, and a last step of an
epoch that is short."""

from collections.abc import Sequence
from pathlib import Path

import tiny_run
from tiny_run import said

from stoker.rundir import events
from stoker.rundir.layout import RunDir

TUNE = {
    "full": "{method: full}",
    "lora": "{method: lora, rank: 4, dropout: 0.1}",
    "thin": "{method: lora, rank: 2}",
    "qlora": "{method: qlora, rank: 4, dropout: 0.1}",
}
EXACT = "batch: 8, exact: true"
ROWS = tiny_run.random_rows(37, seed=1, longest=48, segments=2)  # at batch 8: 5 steps, the last of 5 sequences
HELD_OUT = tiny_run.random_rows(9, seed=2, longest=48, segments=2)


def make(folder: Path, base: Path, method: str, where: str, train: str = EXACT) -> RunDir:
    text = f"""
model: {base}
data: {{train: rows.jsonl, eval: rows.jsonl, length: 48, pack: true}}
tune: {TUNE[method]}
train: {{learning_rate: 1e-2, warmup: 0, {train}}}
save: {{every: 2 steps, keep: 2}}
where: {{gpus: 0, {where}}}
"""
    return tiny_run.make_run(folder, text, ROWS, HELD_OUT)


def trained(folder: Path, base: Path, method: str, where: str, train: str = EXACT) -> RunDir:
    run_dir = make(folder, base, method, where, train)
    assert tiny_run.train(run_dir) == 0, said(run_dir)
    return run_dir


def require_one_training(folder: Path, base: Path, method: str, precision: str) -> None:
    """One SHA, one trajectory of losses, over `ddp` and `fsdp2` on 1, 2 and 4 ranks."""
    shas, losses, evals = {}, set(), set()
    for strategy in ("ddp", "fsdp2"):
        for count in (1, 2, 4):
            where = f"micro: 1, arrange: rows, precision: {precision}, strategy: {strategy}, processes: {count}"
            run_dir = trained(folder / f"{strategy}-{count}", base, method, where)
            shas[strategy, count] = tiny_run.weights_sha(run_dir.final)
            losses.add(tuple(tiny_run.losses(run_dir).values()))
            evals.add(tuple(eval_losses(run_dir)))
    assert len(set(shas.values())) == 1, shas
    assert len(losses) == 1
    assert len(evals) == 1


def require_one_training_over_moves(folder: Path, base: Path, method: str, attempts: Sequence[tuple[str, int]]) -> None:
    """Killed, and continued by another strategy or number of ranks: every bit of one that was left alone."""
    where = "micro: 1, arrange: rows, strategy: {}, processes: {}"
    strategy = attempts[0][0]
    whole = trained(folder / "whole", base, method, where.format(strategy, 2))
    for number, (strategy, count) in enumerate(attempts, start=1):
        moved = make(folder / "moved", base, method, where.format(strategy, count))
        if number < len(attempts):
            assert tiny_run.train(moved, kill_after=2 * number + 1) == -9, said(moved)
        else:
            assert tiny_run.train(moved) == 0, said(moved)
    assert tiny_run.losses(moved) == tiny_run.losses(whole)
    assert tiny_run.weights_sha(moved.final) == tiny_run.weights_sha(whole.final)
    tiers = [event["tier"] for event in events.read(moved.events_file) if event["event"] == "attempt"]
    assert set(tiers) == {"EXACT"}


def eval_losses(run_dir: RunDir) -> list[str]:
    return [event["eval_loss"].hex() for event in events.read(run_dir.events_file) if event["event"] == "eval"]
