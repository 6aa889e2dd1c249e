"""The trainers of TRL over the rows of one of our runs, in its order; they are given tokens, not text."""

from pathlib import Path
from typing import Any

import bare
import numpy as np
import paired_run
import tiny_run
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from stoker.engine.dataset import Mismatched, PreparedSplit
from stoker.rundir import prepared
from stoker.rundir.layout import RunDir

STEPS = 20
LORA = {"r": 4, "lora_alpha": 8}

Row = list[np.ndarray]


def rows_in_order(run_dir: RunDir) -> list[Row]:
    """The rows of a run as its steps took them."""
    rows = bare.read_rows(run_dir.data / "train")
    return [rows[number] for numbers in tiny_run.sequences(run_dir).values() for number in numbers]


def prompt_of(segment: np.ndarray) -> list[int]:
    return [int(~token) for token in segment if token < 0]


def answer_of(segment: np.ndarray) -> list[int]:
    return [int(token) for token in segment if token >= 0]


def logs(
    kind: type[Any],
    config: type[Any],
    given: dict[str, Any],
    rows: list[dict[str, Any]],
    run_dir: RunDir,
    **options: Any,
) -> list[dict[str, float]]:
    """Every step's figures of a trainer.

    Args:
        kind: The trainer's class, whose methods that make tokens of text leave rows as they are.
        config: The class of its arguments.
        given: The model, and what else the trainer takes.
        rows: What the trainer's collator takes, in order.
        run_dir: Our run.
        options: Arguments of this trainer.
    """
    from datasets import Dataset

    class InOrder(kind):  # type: ignore[misc, valid-type]  # a class that is given
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    options = {"per_device_train_batch_size": paired_run.BATCH, **options}
    trainer = InOrder(
        args=arguments(config, run_dir.path / "trl", **options),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(run_dir.data / "tokenizer"),
        **given,
    )
    trainer.train()
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def arguments(config: Any, output: Path, **options: Any) -> Any:
    """Arguments of a trainer of TRL that computes what our tiny runs compute; `options`: those of this one."""
    return config(
        output_dir=str(output),
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=0,
        weight_decay=0.0,
        max_grad_norm=0.0,
        optim="adamw_torch",
        seed=42,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **{"max_steps": STEPS, **options},
    )


def model(base: Path, method: str) -> Any:
    """The model that training starts with."""
    return bare.build_model(base, method, LORA, seed=42)


def scoring_model(base: Path, method: str) -> Any:
    """The same with one output."""
    torch.manual_seed(42)
    options = {"num_labels": 1, "dtype": torch.float32, "attn_implementation": "sdpa"}
    found = AutoModelForSequenceClassification.from_pretrained(base, **options)
    found.config.use_cache = False
    if method == "full":
        return found
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(42)
    return get_peft_model(found, LoraConfig(target_modules="all-linear", task_type="SEQ_CLS", **LORA))


# ---- what the collators take


def as_pair(row: Row) -> dict[str, Any]:
    """For `DPOTrainer`."""
    chosen, rejected = row
    ids = {"prompt_ids": prompt_of(chosen), "chosen_ids": answer_of(chosen), "rejected_ids": answer_of(rejected)}
    return {"prompt": "", **ids}


def as_padded_pair(row: Row) -> dict[str, Any]:
    """For `CPOTrainer` and `ORPOTrainer`."""
    found: dict[str, Any] = {"prompt": "", "chosen": "", "rejected": ""}
    found |= _masked("prompt", prompt_of(row[0]))
    for name, segment in zip(("chosen", "rejected"), row, strict=True):
        ids = [*prompt_of(segment), *answer_of(segment)]
        found |= {**_masked(name, ids), f"{name}_labels": [-100] * len(prompt_of(segment)) + answer_of(segment)}
    return found


def as_scored_pair(row: Row) -> dict[str, Any]:
    """For `RewardTrainer`."""
    chosen, rejected = ([*prompt_of(segment), *answer_of(segment)] for segment in row)
    return {"chosen_ids": chosen, "rejected_ids": rejected}


def as_judged(run_dir: RunDir) -> list[dict[str, Any]]:
    """For `KTOTrainer`: the rows of a run in its order, each with the answer that our divergence takes for it."""
    report = prepared.read_report(run_dir.data)
    assert report is not None
    split = PreparedSplit(run_dir.data / "train", report.train)
    other = Mismatched(split, report.train.longest)
    found = []
    for number in (number for numbers in tiny_run.sequences(run_dir).values() for number in numbers):
        (own,), (mismatched,) = split.row(number), other.row(number)
        ids = {"completion_ids": answer_of(own), "KL_completion_ids": answer_of(mismatched)}
        found.append({"prompt": "", "prompt_ids": prompt_of(own), **ids, "label": split.is_desired(number)})
    return found


def _masked(name: str, ids: list[int]) -> dict[str, list[int]]:
    return {f"{name}_input_ids": ids, f"{name}_attention_mask": [1] * len(ids)}


def untouched(kind: type[Any], method: str) -> type[Any]:
    """A trainer whose method that tokenises leaves rows as they are."""

    def as_it_is(self: Any, given: Any, *_: Any) -> Any:
        return given

    return type(kind.__name__, (kind,), {method: as_it_is})
