"""Rows for `grpo` from a task of reasoning-gym: prompts to train on, held-out ones, and answered ones to start from.

Sums of two small numbers by default, which a model of some millions of weights can learn. Writes train.jsonl,
eval.jsonl and sft.jsonl, none of whose prompts is in another of them, and gym_rewards.py, whose `solved` scores by the
task's own rule.
Usage: python benchmarks/grpo_task.py FOLDER [--task NAME] [--train N] [--eval N] [--sft N] [--seed N]
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import reasoning_gym

EASY: dict[str, dict[str, Any]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    "letter_counting": {"min_words": 2, "max_words": 4},
    "spell_backward": {"min_word_len": 3, "max_word_len": 4},
}
"""Tasks with settings that make them small; any other task of reasoning-gym has its own."""
MOST = 1_000_000
MOST_IN_A_ROW = 1_000
"""So many questions that were asked before, and the task has no more."""

REWARDS = '''"""The reward of reasoning-gym's tasks: what `score_answer` says of the last line that was written."""

import functools

import reasoning_gym

judge = functools.cache(reasoning_gym.get_score_answer_fn)  # a task may read a list of words for it


def solved(completions, task, entry, **kwargs):
    return [
        judge(name)(text.strip().splitlines()[-1] if text.strip() else "", one)
        for text, name, one in zip(completions, task, entry)
    ]
'''


def main() -> int:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--task", default="chain_sum")
    parser.add_argument("--train", type=int, default=2_000)
    parser.add_argument("--eval", type=int, default=200)
    parser.add_argument("--sft", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    entries = questions(asked.task, asked.seed)
    # The held-out ones first: they stay the same when there are more of the others.
    for name, count in (("eval", asked.eval), ("sft", asked.sft), ("train", asked.train)):
        rows = [row(asked.task, entry, answered=name == "sft") for entry, _ in zip(entries, range(count), strict=False)]
        if len(rows) < count:
            print(f"{asked.task}: no more than {len(rows)} other questions for {name}", file=sys.stderr)
            return 1
        lines = (json.dumps(one, ensure_ascii=False, default=str) + "\n" for one in rows)
        (asked.folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    (asked.folder / "gym_rewards.py").write_text(REWARDS, encoding="utf-8")
    return 0


def questions(task: str, seed: int) -> Iterator[dict[str, Any]]:
    """Entries of a task, each question once."""
    seen: set[str] = set()
    repeated = 0
    dataset = reasoning_gym.create_dataset(task, size=MOST, seed=seed, **EASY.get(task, {}))
    for entry in dataset:
        repeated = repeated + 1 if entry["question"] in seen else 0
        if repeated > MOST_IN_A_ROW:
            return
        if not repeated:
            seen.add(entry["question"])
            yield entry


def row(task: str, entry: dict[str, Any], *, answered: bool) -> dict[str, Any]:
    """A row: with its answer as the completion, or with what scores one."""
    if answered:
        return {"prompt": entry["question"], "completion": entry["answer"]}
    return {"prompt": entry["question"], "answer": entry["answer"], "task": task, "entry": entry}


if __name__ == "__main__":
    sys.exit(main())
