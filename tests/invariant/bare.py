"""The yardstick: a plain `transformers.Trainer` script over the same prepared rows, without a line of the engine.

It reads the prepared set with numpy alone, takes rows in a given order, pads on the right, and lets the Trainer do the
rest. `keyed` seeds dropout per micro batch as Stoker does, through the Trainer's own callbacks.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments


def read_rows(split: Path) -> list[list[np.ndarray]]:
    shard = split / "shard-00000"
    tokens = np.fromfile(shard / "tokens.bin", "<i4")
    segments = np.fromfile(shard / "segments.bin", "<i8")
    rows = np.fromfile(shard / "rows.bin", "<i8")
    return [[tokens[segments[s] : segments[s + 1]] for s in range(rows[r], rows[r + 1])] for r in range(len(rows) - 1)]


def collate(rows: list[list[np.ndarray]]) -> dict[str, torch.Tensor]:
    width = max(sum(len(s) for s in row) for row in rows)
    ids = torch.zeros((len(rows), width), dtype=torch.long)
    labels = torch.full((len(rows), width), -100)
    positions = torch.zeros((len(rows), width), dtype=torch.long)
    for r, row in enumerate(rows):
        flat = torch.from_numpy(np.concatenate(row).astype(np.int64))
        ids[r, : len(flat)] = torch.where(flat < 0, ~flat, flat)
        labels[r, : len(flat)] = torch.where(flat < 0, torch.tensor(-100), flat)
        place = torch.cat([torch.arange(len(s)) for s in row] + [torch.arange(width - len(flat))])
        positions[r] = place
    batch = {"input_ids": ids, "labels": labels}
    if any(len(row) > 1 for row in rows):
        batch["position_ids"] = positions
    return batch


def collate_masked(rows: list[list[np.ndarray]]) -> dict[str, torch.Tensor]:
    """As most collators do it: with an attention mask over the padding."""
    batch = collate(rows)
    lengths = torch.tensor([sum(len(s) for s in row) for row in rows])
    mask = torch.arange(batch["input_ids"].shape[1])[None] < lengths[:, None]
    return {**batch, "attention_mask": mask.long()}


class Keyed(TrainerCallback):
    """Seeds each micro batch's random stream by (seed, step, number)."""

    def __init__(self, seed: int) -> None:
        self.seed, self.number = seed, 0

    def _set(self, step: int) -> None:
        text = f"rng/1/{self.seed}/{step}/{self.number}"
        torch.manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.number = 0
        self._set(state.global_step)

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.number += 1
        self._set(state.global_step)


class InOrder(Trainer):
    """Rows in the order of the list."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def build_model(base: Path | str, method: str, lora: dict[str, Any], seed: int, **given: Any) -> Any:
    """A model with its adapter; `given`: how it is loaded, else in fp32."""
    torch.manual_seed(seed)
    options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "sdpa", **given}
    if method == "qlora":
        from transformers import BitsAndBytesConfig

        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=options["dtype"],
        )
    model = AutoModelForCausalLM.from_pretrained(base, **options)
    model.config.use_cache = False
    if method == "full":
        return model
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    if method == "qlora":
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    torch.manual_seed(seed)
    return get_peft_model(model, LoraConfig(**{"target_modules": "all-linear", "task_type": "CAUSAL_LM", **lora}))


def losses(
    model: Any,
    rows: list[list[np.ndarray]],
    output: Path,
    micro: int,
    accumulation: int,
    seed: int,
    extra: Sequence[TrainerCallback] = (),
    masked: bool = False,
    **options: Any,
) -> list[float]:
    """Train over the rows in order; the loss of every step as the Trainer logs it. `masked` passes a padding mask."""
    own: dict[str, Any] = {"use_cpu": True, **options}
    arguments = TrainingArguments(
        output_dir=str(output),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        num_train_epochs=1,
        seed=seed,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=not own["use_cpu"],
        **own,
    )
    trainer = InOrder(
        model=model,
        args=arguments,
        train_dataset=rows,
        data_collator=collate_masked if masked else collate,
        callbacks=[Keyed(seed), *extra],
    )
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
