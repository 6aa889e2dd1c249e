"""A small model learns a task of reasoning-gym by reward alone: `grpo` from an SFT start that solves some of it.

Words of three and four letters spelt backward (`grpo_task.py`), a Llama of some 800,000 weights with random start: a
little `sft`, then `grpo` on other words, scored by the task's own rule (the share of letters in their place) in its own
process. Held-out words are asked before and after, each sampled once at temperature 1 and once greedily. Control: the
same with the rewards of a step dealt out at random.
Usage: python benchmarks/grpo_learns.py [--folder FOLDER] [--steps N] [--out FILE]
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import smollm2

TASK, SEED = "spell_backward", 20
SFT, TRAIN, HELD_OUT = 2_000, 4_000, 300
BAR, START = 0.8, (0.1, 0.3)
ANSWER_TOKENS = 6
START_FILE = """
name: start
model: base
data: {{train: sft.jsonl, length: 96, pack: false}}
tune: {{method: full}}
train: {{batch: 64, steps: {steps}, epochs: 99, learning_rate: 2e-3, warmup: 20}}
save: {{every: 5m}}
"""
GRPO_FILE = """
name: {name}
model: run:start
data: {{train: train.jsonl, eval: eval.jsonl, length: 96, pack: false}}
tune: {{method: full}}
train:
  objective: grpo
  batch: 256
  steps: {steps}
  epochs: 99
  learning_rate: 2e-4
  warmup: 10
  schedule: constant
  eval_every: 100 steps
  grpo: {{group: 16, max_new_tokens: {tokens}, rewards: [{{function: "{function}"}}]}}
save: {{every: 5m}}
"""
SHUFFLED = """

import random


def dealt_out(completions, **columns):
    scores = solved(completions, **columns)
    random.Random("".join(completions)).shuffle(scores)
    return scores
"""


def make_base(folder: Path) -> None:
    """A random Llama, and a tokenizer of single bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    core = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")


def train(folder: Path, name: str, text: str) -> Any:
    """By the command line; the run."""
    from stoker.rundir import layout

    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    smollm2.stoker("train", str(path))
    return layout.find(name)


def score(run_dir: Any, rows: list[dict[str, Any]], *, sample: bool) -> float:
    """Mean reward of one answer to each held-out question."""
    import reasoning_gym
    import torch

    from stoker.engine import generate, models

    model, tokenizer = generate.load(run_dir)
    judge = reasoning_gym.get_score_answer_fn(TASK)
    torch.manual_seed(SEED)
    rewards = []
    with models.evaluating(model):
        for row in rows:
            prompt = generate.prompt_ids(tokenizer, [{"role": "user", "content": row["prompt"]}], plain=True)
            made = model.generate(
                input_ids=prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=ANSWER_TOKENS,
                do_sample=sample,
                temperature=1.0 if sample else None,
                top_k=0 if sample else None,
                eos_token_id=generate.stop_ids(model, tokenizer),
                pad_token_id=tokenizer.pad_token_id,
            )
            answer = tokenizer.decode(made[0, prompt.shape[1] :], skip_special_tokens=True).strip()
            rewards.append(judge(answer.splitlines()[-1] if answer else "", row["entry"]))
    return round(sum(rewards) / len(rewards), 4)


def both(run_dir: Any, rows: list[dict[str, Any]]) -> dict[str, float]:
    return {"sampled": score(run_dir, rows, sample=True), "greedy": score(run_dir, rows, sample=False)}


def curve(run_dir: Any) -> dict[str, list[Any]]:
    """Mean reward of the answers that were trained on, every 20 steps, and of each evaluation."""
    from stoker.rundir import events

    steps = events.steps(run_dir.events_file)
    evals = [one for one in events.read(run_dir.events_file) if one["event"] == "eval"]
    return {
        "training": [[n, round(one["figures"]["reward"], 4)] for n, one in sorted(steps.items()) if n % 20 in (0, 1)],
        "evaluation": [[one["step"], round(one["figures"]["reward"], 4)] for one in evals],
        "gap": [[n, one["figures"]["gap"]] for n, one in sorted(steps.items()) if n % 100 == 0],
    }


def measure(folder: Path, sft_steps: int, steps: int) -> dict[str, Any]:
    rows = [json.loads(line) for line in (folder / "eval.jsonl").read_text(encoding="utf-8").splitlines()]
    start = train(folder, "start", START_FILE.format(steps=sft_steps))
    results: dict[str, Any] = {"start": both(start, rows)}
    print(results, file=sys.stderr, flush=True)
    for name, function in (("rewarded", "solved"), ("control", "dealt_out")):
        count = steps if name == "rewarded" else max(1, steps // 4)
        words = {"name": name, "steps": count, "tokens": ANSWER_TOKENS, "function": f"gym_rewards.py:{function}"}
        run_dir = train(folder, name, GRPO_FILE.format(**words))
        results[name] = {"steps": count, **both(run_dir, rows), **curve(run_dir)}
        print(name, {key: results[name][key] for key in ("sampled", "greedy")}, file=sys.stderr, flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="keep model, data and runs here; what is finished is kept")
    parser.add_argument("--sft-steps", type=int, default=100)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["STOKER_RUNS"] = str(folder / "runs")
        if not (folder / "base").is_dir():
            counts = ("--train", str(TRAIN), "--eval", str(HELD_OUT), "--sft", str(SFT), "--seed", str(SEED))
            task = Path(__file__).with_name("grpo_task.py")
            subprocess.run([sys.executable, str(task), str(folder), "--task", TASK, *counts], check=True)
            with (folder / "gym_rewards.py").open("a", encoding="utf-8") as file:
                file.write(SHUFFLED)
            make_base(folder)
        report = {
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "versions": {name: version(name) for name in ("stoker", "torch", "transformers", "trl", "reasoning_gym")},
            "task": TASK,
            "seed": SEED,
            "questions": {"sft": SFT, "train": TRAIN, "held_out": HELD_OUT},
            "bar": {"start": START, "mean_reward": BAR},
            "results": measure(folder, options.sft_steps, options.steps),
        }
    text = json.dumps(report, indent=1) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    print(text)
    sys.exit(report["results"]["rewarded"]["sampled"] < BAR)


if __name__ == "__main__":
    main()
