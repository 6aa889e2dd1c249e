"""The one place where our words become upstream's: `Run` and decisions to the engines' own option names.

Spelling on the left is upstream's, exactly. The user's `native:` blocks override; config/native.py has
already refused every name that is set here.
"""

from dataclasses import dataclass
from typing import Any

from stoker.config import values
from stoker.config.run import Run, Shape
from stoker.plan import optimizers, strategy
from stoker.plan.plan import BatchSplit, EngineOptions, StepCounts

_FAMILIES: dict[str, dict[str, str]] = {
    "gpt2": {
        "layers": "n_layer",
        "width": "n_embd",
        "heads": "n_head",
        "ffn": "n_inner",
        "length": "n_positions",
        "dropout": "attn_pdrop",
    },
}
_STATES_HEAD_DIM = ("qwen3",)
"""Families whose configuration states the head size instead of width / heads."""
_FAMILY_DEFAULT = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "length": "max_position_embeddings",
    "dropout": "attention_dropout",
}


_LIGER = {
    "use_liger_kernel": True,
    # The loss stays ours.
    "liger_kernel_config": {
        **dict.fromkeys(("rope", "rms_norm", "swiglu"), True),
        **dict.fromkeys(("cross_entropy", "fused_linear_cross_entropy"), False),
    },
}


@dataclass(frozen=True)
class Decisions:
    """The plan's decisions that upstream options depend on."""

    device: str
    batch: BatchSplit
    steps: StepCounts
    precision: str
    attention: str
    kernels: str
    gradient_checkpointing: bool
    offload_activations: bool
    workers: int
    vocab: int
    ffn: int
    strategy: str


def warmup_steps(run: Run, total: int) -> int:
    """`train.warmup` in steps."""
    warmup = run.train.warmup
    return warmup if isinstance(warmup, int) else round(values.share(warmup) * total)


def options(run: Run, decisions: Decisions) -> EngineOptions:
    """All options for the engines."""
    share = decisions.batch.micro * decisions.batch.accumulation
    trainer = {**_trainer(run, decisions), **run.native.trainer}
    if decisions.offload_activations:
        trainer["gradient_checkpointing_kwargs"] = {**trainer["gradient_checkpointing_kwargs"], "offload": True}
    return EngineOptions(
        trainer=trainer,
        model={**_model(run, decisions), **run.native.model},
        lora={**_lora(run), **run.native.lora} if run.tune.method != "full" else {},
        quantization={**_quantization(decisions), **run.native.quantization} if run.tune.method == "qlora" else {},
        fsdp=run.native.fsdp if decisions.strategy == "fsdp2" else {},
        deepspeed=strategy.deepspeed(run, decisions.strategy, decisions.precision, share, decisions.batch.devices),
    )


def _trainer(run: Run, decisions: Decisions) -> dict[str, Any]:
    batch, steps, cuda = decisions.batch, decisions.steps, decisions.device == "cuda"
    return {
        # The Trainer sees one item per optimizer step; micro batches are walked inside it (docs/adr/0006).
        "per_device_train_batch_size": batch.micro * batch.accumulation,
        "gradient_accumulation_steps": 1,
        "per_device_eval_batch_size": batch.micro,
        "max_steps": steps.total,
        "learning_rate": run.train.learning_rate,
        "lr_scheduler_type": run.train.schedule,
        "warmup_steps": steps.warmup,
        "weight_decay": run.train.weight_decay,
        "max_grad_norm": run.train.clip,
        "optim": optimizers.trainer_name(run, decisions.device),
        "seed": run.train.seed,
        # Weights in bf16 need no autocast.
        "bf16": decisions.precision == "bf16" and not optimizers.rounds(run),
        "fp16": decisions.precision == "fp16",
        "gradient_checkpointing": decisions.gradient_checkpointing,
        "gradient_checkpointing_kwargs": {"use_reentrant": False} if decisions.gradient_checkpointing else None,
        "torch_compile": run.where.compile == "on",
        "dataloader_num_workers": decisions.workers,
        "dataloader_pin_memory": cuda,
        "use_cpu": decisions.device == "cpu",
        "logging_steps": 10,
        "logging_nan_inf_filter": False,
        "report_to": ["tensorboard"],
        "disable_tqdm": True,
        # Our callbacks decide when to evaluate and save; our sampler where to resume.
        "eval_strategy": "no",
        "save_strategy": "no",
        "ignore_data_skip": True,
        "remove_unused_columns": False,
        "average_tokens_across_devices": False,
        "ddp_find_unused_parameters": False,
        **(_LIGER if decisions.kernels == "liger" else {}),
    }


def _model(run: Run, decisions: Decisions) -> dict[str, Any]:
    if not isinstance(run.model, Shape):
        dtype = "float32"
        if run.tune.method != "full" or optimizers.rounds(run):
            dtype = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[decisions.precision]
        return {"attn_implementation": decisions.attention, "dtype": dtype}
    shape = run.model
    names = _FAMILIES.get(shape.shape, _FAMILY_DEFAULT)
    stated = {
        "layers": shape.layers,
        "width": shape.width,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads or shape.heads,
        "ffn": decisions.ffn,
        "length": run.data.length,
        "dropout": shape.dropout,
    }
    return {
        "model_type": shape.shape,
        **{name: stated[word] for word, name in names.items()},
        "vocab_size": decisions.vocab,
        "tie_word_embeddings": shape.tied,
        **({"head_dim": shape.width // shape.heads} if shape.shape in _STATES_HEAD_DIM else {}),
        "attn_implementation": decisions.attention,
        **({"dtype": "bfloat16"} if optimizers.rounds(run) else {}),
    }


def _lora(run: Run) -> dict[str, Any]:
    tune = run.tune
    assert tune.method != "full"
    return {
        "r": tune.rank,
        "lora_alpha": tune.alpha or 2 * tune.rank,
        "lora_dropout": tune.dropout,
        "target_modules": tune.targets,
        "task_type": "SEQ_CLS" if run.train.scores else "CAUSAL_LM",
    }


def _quantization(decisions: Decisions) -> dict[str, Any]:
    compute = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[decisions.precision]
    return {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": compute,
        # FSDP shards floats in every version; some versions replicate uint8 on every device.
        **({"bnb_4bit_quant_storage": compute} if decisions.strategy == "fsdp2" else {}),
    }
