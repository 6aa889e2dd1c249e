"""A tiny training on answers, of which some use the words to prefer: pairs, or single ones with a label."""

from pathlib import Path

import numpy as np
import tiny_run

from stoker.rundir import events

BATCH = 8


def pairs(count: int, seed: int, *, shuffled: bool = False, asked: int = 0) -> list[list[np.ndarray]]:
    """Chosen answers are of even words, rejected ones of odd words; shuffled: in every second pair it is the reverse.

    Prompts have `asked` words, else two to eight.
    """
    drawn = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        prompt = drawn.integers(3, tiny_run.VOCAB, asked or int(drawn.integers(2, 9)))
        even, odd = (_answer(drawn, rest) for rest in (0, 1))
        answers = [odd, even] if shuffled and number % 2 else [even, odd]
        rows.append([np.concatenate([~prompt, answer]).astype(np.int32) for answer in answers])
    return rows


def judged(count: int, seed: int, *, shuffled: bool = False) -> list[list[np.ndarray]]:
    """One answer of each pair, good or bad by lot."""
    drawn = np.random.default_rng(seed + 1)
    return [
        pair[:1] if drawn.random() < 0.5 else tiny_run.Undesired(pair[1:])
        for pair in pairs(count, seed, shuffled=shuffled)
    ]


def rows_of(objective: str, count: int, seed: int, *, shuffled: bool = False) -> list[list[np.ndarray]]:
    """Rows as an objective takes them."""
    make = judged if objective == "kto" else pairs
    return make(count, seed, shuffled=shuffled)


def _answer(drawn: np.random.Generator, rest: int) -> np.ndarray:
    return drawn.integers(2, (tiny_run.VOCAB - 1) // 2, int(drawn.integers(3, 15))) * 2 + rest


def text(
    base: Path, *, steps: int, method: str = "full", objective: str = "dpo", more: str = "", where: str = ""
) -> str:
    adapter = ", rank: 4" if method != "full" else ""
    return f"""
model: {base}
data: {{train: rows.jsonl, length: 32, pack: false{", eval: 20%" if "eval_every" in more else ""}}}
tune: {{method: {method}{adapter}}}
train: {{objective: {objective}, batch: {BATCH}, steps: {steps}, learning_rate: 1e-3, warmup: 0, clip: 0{more}}}
save: {{every: 5 steps}}
where: {{micro: 4, gpus: 0{where}}}
"""


def accuracy_learned(folder: Path, base: Path, objective: str) -> dict[str, float]:
    """On held-out pairs, after some steps on rows that are right and on shuffled ones."""
    found = {}
    for name, shuffled in (("right", False), ("shuffled", True)):
        words = text(base, steps=40, objective=objective, more=", eval_every: 40 steps")
        rows = rows_of(objective, 160, seed=6, shuffled=shuffled)
        run_dir = tiny_run.make_run(folder / name, words, rows, rows_of(objective, 200, seed=7))
        assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
        last = [one for one in events.read(run_dir.events_file) if one["event"] == "eval"][-1]
        found[name] = last["figures"]["accuracy"]
    return found
