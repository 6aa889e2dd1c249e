"""A tiny training on answers of its own: prompts of random words, and a reward for answers of even words."""

from pathlib import Path
from typing import Any

import numpy as np
import tiny_run

from stoker.engine import rollout_files
from stoker.engine.rollout_files import Rollout
from stoker.rundir.layout import RunDir

GROUP, PROMPTS = 4, 4
BATCH = GROUP * PROMPTS
LONGEST = 8
REWARDS = """
import random

def even(completions, **columns):
    return [share(completion) for completion in completions]

def shuffled(completions, **columns):
    scores = even(completions)
    random.Random(str(completions)).shuffle(scores)
    return scores

def share(completion):
    words = [int(word[1:]) for word in completion.split() if word[1:].isdigit()]
    return sum(word % 2 == 0 for word in words) / max(1, len(words))
"""


def prompts(count: int, seed: int) -> list[list[np.ndarray]]:
    drawn = np.random.default_rng(seed)
    return [[~drawn.integers(3, tiny_run.VOCAB, int(drawn.integers(2, 7))).astype(np.int32)] for _ in range(count)]


def text(
    base: Path,
    *,
    steps: int,
    method: str = "full",
    options: str = "",
    reward: str = "even",
    more: str = "",
    where: str = "",
    save: str = "3 steps",
) -> str:
    adapter = ", rank: 4" if method != "full" else ""
    others = {"even": "shuffled", "shuffled": "even"}
    scored = [
        f"{{function: 'rewards.py:{name}', isolation: none, weight: {weight}}}"
        for name, weight in ((reward, 1), (others[reward], 0))
    ]
    grpo = f"group: {GROUP}, max_new_tokens: {LONGEST}, rewards: [{', '.join(scored)}]{options}"
    return f"""
model: {base}
data: {{train: rows.jsonl, length: 16, pack: false{", eval: 20%" if "eval_every" in more else ""}}}
tune: {{method: {method}{adapter}}}
train:
  {{objective: grpo, batch: {BATCH}, steps: {steps}, learning_rate: 1e-3, warmup: 0, clip: 0, grpo: {{{grpo}}}{more}}}
save: {{every: {save}}}
where: {{micro: 4, gpus: 0{where}}}
"""


def made(folder: Path, text: str, rows: list[Any], held: list[Any] = ()) -> RunDir:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rewards.py").write_text(REWARDS)
    return tiny_run.make_run(folder, text, rows, held)


def trained(folder: Path, text: str, rows: list[Any], held: list[Any] = ()) -> RunDir:
    run_dir = made(folder, text, rows, held)
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    return run_dir


def rollouts(run_dir: RunDir) -> list[Rollout]:
    """The committed answers of every step, in order."""
    found = sorted(rollout_files.folder(run_dir).glob("*.safetensors"))
    return [rollout_files._rollout(rollout_files.safetensors.numpy.load(path.read_bytes())) for path in found]
