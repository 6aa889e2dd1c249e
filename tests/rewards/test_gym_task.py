"""Rows of a task of reasoning-gym, and the reward that its own rule gives, in the sandbox."""

import json
import subprocess
import sys
from pathlib import Path

from stoker.config.rewards import Reward
from stoker.rewards import scorer

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks/grpo_task.py"


def test_a_task_gives_three_disjoint_sets_and_a_reward_that_knows_right_from_wrong(tmp_path: Path) -> None:
    words = [sys.executable, str(SCRIPT), str(tmp_path), "--train", "20", "--eval", "10", "--sft", "10"]
    subprocess.run(words, check=True, capture_output=True)
    sets = {
        name: [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        for name in ("train", "eval", "sft")
    }
    prompts = [row["prompt"] for rows in sets.values() for row in rows]
    assert len(prompts) == len(set(prompts)) == 40
    assert set(sets["sft"][0]) == {"prompt", "completion"}
    right = [scorer.Sample(row["prompt"], f"Let me see.\n{row['answer']}", row) for row in sets["train"]]
    wrong = [scorer.Sample(row["prompt"], f"{row['answer']}1", row) for row in sets["train"]]
    reward = Reward.model_validate({"function": "gym_rewards.py:solved", "timeout": "2m"})
    with scorer.opened([reward], tmp_path) as score:
        assert [one.value for one in score(right)] == [1] * 20
        assert max(one.value for one in score(wrong)) < 1
