"""What a careful user writes without Stoker: tokenise, mask, pack by best fit, train a LoRA with `Trainer`.

The yardstick of `overhead.py --only start`. Prints `first step` when the first optimizer step is done.
"""

import bisect
import json
import sys
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

LENGTH = 1024


def encode(tokenizer: Any, path: Path) -> list[tuple[list[int], list[int]]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    prompts = tokenizer([row["prompt"] for row in rows])["input_ids"]
    answers = tokenizer([row["completion"] for row in rows])["input_ids"]
    out = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = (prompt + answer + [tokenizer.eos_token_id])[:LENGTH]
        out.append((ids, ([-100] * len(prompt) + ids[len(prompt) :])[:LENGTH]))
    return out


def pack(rows: list[tuple[list[int], list[int]]]) -> list[list[int]]:
    free: list[tuple[int, int]] = []
    packs: list[list[int]] = []
    for index in sorted(range(len(rows)), key=lambda i: -len(rows[i][0])):
        size = len(rows[index][0])
        at = bisect.bisect_left(free, (size, -1))
        if at == len(free):
            packs.append([index])
            bisect.insort(free, (LENGTH - size, len(packs) - 1))
        else:
            room, place = free.pop(at)
            packs[place].append(index)
            bisect.insort(free, (room - size, place))
    return packs


class Say(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        print("first step", flush=True)


def main() -> None:
    folder = Path(sys.argv[1])
    tokenizer = AutoTokenizer.from_pretrained(folder / "base")
    rows = encode(tokenizer, folder / "rows.jsonl")
    packs = pack(rows)

    def collate(batch: list[list[int]]) -> dict[str, torch.Tensor]:
        (indices,) = batch
        ids = [t for i in indices for t in rows[i][0]]
        labels = [t for i in indices for t in [-100, *rows[i][1][1:]]]
        positions = [p for i in indices for p in range(len(rows[i][0]))]
        return {
            "input_ids": torch.tensor([ids]),
            "labels": torch.tensor([labels]),
            "position_ids": torch.tensor([positions]),
        }

    model = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    model.config.use_cache = False
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
    arguments = TrainingArguments(
        output_dir=str(folder / "bare-out"),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=4,
        max_steps=6,
        learning_rate=1e-4,
        use_cpu=True,
        report_to=["tensorboard"],
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    Trainer(model=model, args=arguments, train_dataset=packs, data_collator=collate, callbacks=[Say()]).train()


if __name__ == "__main__":
    main()
