"""Who owns which option: the `native:` blocks are checked here, by name, on the laptop.

`OWNED` names, for each receiving object, the options that a word of the run file (or the plan) decides.
The rest must exist in `known_options.json`, generated from the tested engines by `tools/known_options.py`.
"""

import difflib
import functools
import json
from importlib import resources
from typing import Any

from stoker.config.reader import Document
from stoker.errors import StokerError

_PLAN = "plan"
"""Decided by the plan from the hardware; there is no word to write."""

OWNED: dict[str, dict[str, str]] = {
    "trainer": {
        "output_dir": "name",
        "run_name": "name",
        "num_train_epochs": "train.epochs",
        "max_steps": "train.steps",
        "learning_rate": "train.learning_rate",
        "lr_scheduler_type": "train.schedule",
        "warmup_steps": "train.warmup",
        "weight_decay": "train.weight_decay",
        "max_grad_norm": "train.clip",
        "optim": "train.optimizer",
        "seed": "train.seed",
        "data_seed": "train.seed",
        "full_determinism": "train.deterministic",
        "per_device_train_batch_size": "train.batch",
        "gradient_accumulation_steps": "train.batch",
        "per_device_eval_batch_size": "where.micro",
        "auto_find_batch_size": "where.micro",
        "bf16": "where.precision",
        "fp16": "where.precision",
        "gradient_checkpointing": "where.gradient_checkpointing",
        "dataloader_num_workers": "where.workers",
        "use_cpu": "where.gpus",
        "eval_strategy": "train.eval_every",
        "eval_steps": "train.eval_every",
        "save_strategy": "save.every",
        "save_steps": "save.every",
        "save_total_limit": "save.keep",
        "load_best_model_at_end": "save.best",
        "metric_for_best_model": "save.best",
        "greater_is_better": "save.best",
        "train_sampling_strategy": "where.arrange",
        "dataloader_drop_last": _PLAN,
        "dataloader_pin_memory": _PLAN,
        "remove_unused_columns": _PLAN,
        "ignore_data_skip": _PLAN,
        "logging_nan_inf_filter": _PLAN,
        "save_only_model": _PLAN,
        "enable_jit_checkpoint": _PLAN,
        "resume_from_checkpoint": _PLAN,
        "restore_callback_states_from_checkpoint": _PLAN,
        "average_tokens_across_devices": _PLAN,
        "use_cache": _PLAN,
        "local_rank": _PLAN,
        "do_train": _PLAN,
        "do_eval": _PLAN,
        "do_predict": _PLAN,
        "push_to_hub": "save.store",
        "hub_token": _PLAN,
    },
    "model": {
        "pretrained_model_name_or_path": "model",
        "attn_implementation": "where.attention",
        "dtype": "where.precision",
        "torch_dtype": "where.precision",
        "quantization_config": "tune.method",
        "load_in_4bit": "tune.method",
        "load_in_8bit": "tune.method",
        "device_map": "where.gpus",
        "trust_remote_code": _PLAN,
        "token": _PLAN,
    },
    "lora": {
        "r": "tune.rank",
        "lora_alpha": "tune.alpha",
        "lora_dropout": "tune.dropout",
        "target_modules": "tune.targets",
        "task_type": "train.objective",
        "peft_type": "tune.method",
        "inference_mode": _PLAN,
        "base_model_name_or_path": "model",
    },
    "quantization": {"load_in_4bit": "tune.method", "load_in_8bit": "tune.method"},
}


@functools.cache
def known_options() -> dict[str, list[str]]:
    """Option names per receiving object, from the tested engine versions."""
    text = resources.files("stoker.config").joinpath("known_options.json").read_text(encoding="utf-8")
    options: dict[str, list[str]] = json.loads(text)["options"]
    return options


def check(native: dict[str, Any], document: Document) -> list[StokerError]:
    """All problems of the `native` blocks: owned words and names the engine does not have."""
    problems = []
    for block, options in native.items():
        known = known_options().get(block, [])
        for name in options:
            where = document.where(("native", block, name))
            owner = OWNED[block].get(name)
            if owner == _PLAN:
                problems.append(StokerError("STK112", where, option=name, block=block))
            elif owner:
                problems.append(StokerError("STK110", where, option=name, owner=owner))
            elif known and name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                nearest = near[0] if near else known[0]
                problems.append(StokerError("STK111", where, option=name, block=block, nearest=nearest))
    return problems
