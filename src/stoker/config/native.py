"""Who owns which option: the `native:` blocks are checked here, by name, on the laptop.

`OWNED` names, for each receiving object, the options that a word of the run file (or the plan) decides.
The rest must exist in `known_options.json`, generated from the tested engines by `tools/known_options.py`.
"""

import functools
import json
from importlib import resources
from typing import Any

from stoker.config.reader import Document
from stoker.errors import StokerError, closest

PLAN = "plan"
"""Decided by the plan from the hardware; there is no word to write."""
SERVE = "serve"
"""Decided by `stoker serve`: what is served, where it listens, who may ask, and what could run foreign code."""
JOB = "job"
"""Decided by the job's script: its output, its end-of-time signal, its command and its environment."""
CHAIN = "chain"
"""Decided by the chain of kernels: name, code and predecessor of each."""
STAGES = "stages"
"""Decided by the stages of `data.pipeline`: what runs after what, on how many tasks, and where its marks are."""
UNPREPARED = "unprepared"
"""Needs more than a run gives it: a pass over the data before training, another package, other adapters."""
UNSAVED = "unsaved"
"""Keeps state beside the trained weights, which a checkpoint does not have: no resume could be exact."""
REBASED = "rebased"
"""Changes the base's weights before training: the adapter fits no base that anybody else has, and is not merged."""
REFUSED = {
    PLAN: "STK112",
    SERVE: "STK122",
    JOB: "STK138",
    CHAIN: "STK139",
    STAGES: "STK166",
    UNPREPARED: "STK144",
    UNSAVED: "STK145",
    REBASED: "STK146",
}
"""The error for an option that no word of the run file sets."""

_SERVED = (
    # What is served, and that it is what was trained.
    "model",
    "revision",
    "code_revision",
    "hf_config_path",
    "tokenizer",
    "tokenizer_revision",
    "tokenizer_mode",
    "skip_tokenizer_init",
    "served_model_name",
    "dtype",
    "load_format",
    "config_format",
    "chat_template",
    "generation_config",
    "enable_lora",
    "lora_modules",
    "max_lora_rank",
    "lora_target_modules",
    "runner",
    "convert",
    "tokens_only",
    # Where it listens and who may ask: loopback, one port, a token.
    "host",
    "port",
    "uds",
    "api_key",
    "hf_token",
    "middleware",
    "config",
    "headless",
    "grpc",
    "grpc_port",
    "api_server_count",
    "ssl_keyfile",
    "ssl_certfile",
    "ssl_ca_certs",
    "ssl_cert_reqs",
    "ssl_ciphers",
    "enable_ssl_refresh",
    "kv_events_config",
    # One machine, its GPUs by the plan.
    "tensor_parallel_size",
    "device_ids",
    "distributed_executor_backend",
    "nnodes",
    "node_rank",
    "master_addr",
    "master_port",
    "data_parallel_address",
    "data_parallel_backend",
    "data_parallel_external_lb",
    "data_parallel_hybrid_lb",
    "data_parallel_multi_port_external_lb",
    "data_parallel_rank",
    "data_parallel_rpc_port",
    "data_parallel_size_local",
    "data_parallel_start_rank",
    "data_parallel_supervisor_port",
    # What could load and run code from elsewhere.
    "trust_remote_code",
    "tool_parser_plugin",
    "reasoning_parser_plugin",
    "io_processor_plugin",
    "logits_processors",
    "worker_cls",
    "worker_extension_cls",
    "scheduler_cls",
    "model_class_overrides",
    "tool_server",
    "kv_transfer_config",
    "ec_transfer_config",
    "log_config_file",
    "logging_config",
)

_SUBMITTED = (
    # The signal before a job's time limit, and how the next job continues.
    "signal",
    "requeue",
    "no_requeue",
    "array",
    "wait",
    # What it runs, where, with what environment; where its words go.
    "wrap",
    "input",
    "error",
    "open_mode",
    "chdir",
    "export",
    "export_file",
    "get_user_env",
    "uid",
    "gid",
    "parsable",
    "quiet",
    "verbose",
    "test_only",
    "help",
    "usage",
    "version",
    "ignore_pbs",
    # The plan says how many processes train on each machine.
    "ntasks",
    "ntasks_per_core",
    "ntasks_per_gpu",
    "ntasks_per_node",
    "ntasks_per_socket",
)

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
        "torch_compile": "where.compile",
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
        "dataloader_drop_last": PLAN,
        "dataloader_pin_memory": PLAN,
        "remove_unused_columns": PLAN,
        "ignore_data_skip": PLAN,
        "logging_nan_inf_filter": PLAN,
        "save_only_model": PLAN,
        "enable_jit_checkpoint": PLAN,
        "resume_from_checkpoint": PLAN,
        "restore_callback_states_from_checkpoint": PLAN,
        "average_tokens_across_devices": PLAN,
        "use_cache": PLAN,
        "local_rank": PLAN,
        "do_train": PLAN,
        "do_eval": PLAN,
        "do_predict": PLAN,
        "push_to_hub": "save.store",
        "hub_model_id": "save.store",
        "hub_strategy": "save.store",
        "hub_private_repo": "save.store",
        "hub_always_push": "save.store",
        "hub_revision": "save.store",
        "hub_token": PLAN,
        # The Trainer's own evaluation loop is not used: the eval loss is the mean over all trained tokens.
        "eval_on_start": PLAN,
        "eval_delay": PLAN,
        "eval_accumulation_steps": PLAN,
        "eval_do_concat_batches": PLAN,
        "eval_use_gather_object": PLAN,
        "batch_eval_metrics": PLAN,
        "bf16_full_eval": PLAN,
        "fp16_full_eval": PLAN,
        "include_for_metrics": PLAN,
        "prediction_loss_only": PLAN,
        # Nor are its loader and its training step: an item is a whole step, counted where it is made.
        "include_num_input_tokens_seen": PLAN,
        "dataloader_persistent_workers": PLAN,
        "dataloader_in_order": PLAN,
        "dataloader_multiprocessing_context": PLAN,
        "accelerator_config": PLAN,
        "label_names": PLAN,
        "length_column_name": PLAN,
        "torch_empty_cache_steps": PLAN,
        "logging_strategy": PLAN,
        "disable_tqdm": PLAN,
        "trackio_bucket_id": PLAN,
        "trackio_space_id": PLAN,
        "trackio_static_space_id": PLAN,
        # How devices work together: `where.strategy`; details in blocks of their own.
        "deepspeed": "native.deepspeed",
        "fsdp": "where.strategy",
        "fsdp_config": "native.fsdp",
        "parallelism_config": PLAN,
        "ddp_backend": PLAN,
        "ddp_broadcast_buffers": PLAN,
        "ddp_bucket_cap_mb": PLAN,
        "ddp_find_unused_parameters": PLAN,
        "ddp_static_graph": PLAN,
        "ddp_timeout": PLAN,
        "save_on_each_node": PLAN,
        "log_on_each_node": PLAN,
        "log_level_replica": PLAN,
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
        "output_router_logits": PLAN,
        "trust_remote_code": PLAN,
        "use_safetensors": PLAN,
        "weights_only": PLAN,
        "token": PLAN,
        "allow_all_kernels": PLAN,
        "code_revision": PLAN,
        "gguf_file": PLAN,
        "cache_dir": PLAN,
        "config": PLAN,
    },
    "lora": {
        "r": "tune.rank",
        "lora_alpha": "tune.alpha",
        "lora_dropout": "tune.dropout",
        "target_modules": "tune.targets",
        "task_type": "train.objective",
        "peft_type": "tune.method",
        "inference_mode": PLAN,
        "base_model_name_or_path": "model",
        **dict.fromkeys(("eva_config", "corda_config", "lora_ga_config", "loftq_config"), UNPREPARED),
        **dict.fromkeys(("megatron_config", "megatron_core", "use_qalora", "qalora_group_size"), UNPREPARED),
        **dict.fromkeys(("arrow_config", "runtime_config"), UNPREPARED),
        **dict.fromkeys(("monteclora_config", "velora_config"), UNSAVED),
    },
    "quantization": {"load_in_4bit": "tune.method", "load_in_8bit": "tune.method"},
    "fsdp": dict.fromkeys(
        ("module", "mesh", "mp_policy", "shard_placement_fn", "ignored_params", "cast_forward_inputs", "dp_mesh_dims"),
        PLAN,
    ),
    "vllm": dict.fromkeys(_SERVED, SERVE),
    "slurm": {
        "job_name": "name",
        "output": "name",
        "time": "where.session",
        "time_min": "where.session",
        "nodes": "where.nodes",
        **dict.fromkeys(_SUBMITTED, JOB),
    },
    "kaggle": {
        "enable_gpu": "where.gpus",
        **dict.fromkeys(("id", "id_no", "title", "code_file", "language", "kernel_type", "kernel_sources"), CHAIN),
    },
    "sky": {"use_spot": "where.spot"},
    "datatrove": {
        "pipeline": "data.pipeline",
        "job_name": "name",
        **dict.fromkeys(
            ("tasks", "depends", "depends_job_id", "logging_dir", "skip_completed", "start_method"), STAGES
        ),
        **dict.fromkeys(("local_tasks", "local_rank_offset", "job_id_retriever", "job_id_position"), STAGES),
        **dict.fromkeys(("run_on_dependency_fail", "nodes_per_task", "gpus_per_task"), STAGES),
        **dict.fromkeys(("env_command", "condaenv", "venv_path", "srun_args"), STAGES),  # words of a shell
    },
}

REFUSED_VALUES: dict[tuple[str, str], dict[str, str]] = {
    ("lora", "init_lora_weights"): {
        **dict.fromkeys(("eva", "corda", "lora_ga", "loftq"), UNPREPARED),
        "mica": UNSAVED,
        **dict.fromkeys(("pissa", "olora"), REBASED),
    }
}
"""Values, by block and option, that are refused although the option is free."""

OWNED_BY_SHAPE = {
    "model_type": "model.shape",
    "num_hidden_layers": "model.layers",
    "n_layer": "model.layers",
    "hidden_size": "model.width",
    "n_embd": "model.width",
    "num_attention_heads": "model.heads",
    "n_head": "model.heads",
    "head_dim": "model.heads",
    "num_key_value_heads": "model.kv_heads",
    "intermediate_size": "model.ffn",
    "n_inner": "model.ffn",
    "vocab_size": "model.vocab",
    "tie_word_embeddings": "model.tied",
    "attention_dropout": "model.dropout",
    "attn_pdrop": "model.dropout",
    "max_position_embeddings": "data.length",
    "n_positions": "data.length",
    "attn_implementation": "where.attention",
    "dtype": "where.precision",
    "use_cache": PLAN,
}
"""Of `native.model` where the model is a shape: the options are then those of the family's configuration."""


@functools.cache
def _content() -> dict[str, dict[str, list[str]]]:
    text = resources.files("stoker.config").joinpath("known_options.json").read_text(encoding="utf-8")
    content: dict[str, dict[str, list[str]]] = json.loads(text)
    return content


def known_options() -> dict[str, list[str]]:
    """Option names per receiving object, from the tested engine versions."""
    return _content()["options"]


def check(document: Document) -> list[StokerError]:
    """All problems of the `native` blocks: owned words and names the engine does not have."""
    asked = document.values.get("native")
    problems = []
    for block, options in asked.items() if isinstance(asked, dict) else ():
        if block in OWNED and isinstance(options, dict):
            owned, known = _rules(block, document.values.get("model"))
            for name in options:
                where = document.where(("native", block, name))
                # `pissa_niter_16` is `pissa`, computed faster.
                refused = REFUSED_VALUES.get((block, name), {}).get(str(options[name]).partition("_niter_")[0])
                if name in owned:
                    problems.append(_owned(block, name, owned[name], where))
                elif refused:
                    problems.append(_owned(block, f"{name}: {options[name]}", refused, where))
                elif name not in known:
                    nearest = closest(name, known)
                    problems.append(StokerError("STK111", where, option=name, block=block, nearest=nearest))
    return problems


def step_options() -> dict[str, list[str]]:
    """Option names of each step of `data.pipeline`, from the tested datatrove."""
    return _content()["steps"]


def schedule_options(schedule: str) -> list[str]:
    """What `lr_scheduler_kwargs` may hold for a schedule."""
    return _content()["schedules"][schedule]


def _rules(block: str, model: Any) -> tuple[dict[str, str], list[str]]:
    """Owned and known names of a block; a shape's `model` block goes to the family's configuration."""
    if block == "model" and isinstance(model, dict):
        return OWNED_BY_SHAPE, _content()["shapes"].get(str(model.get("shape")), list(OWNED_BY_SHAPE))
    return OWNED[block], known_options()[block]


def _owned(block: str, name: str, owner: str, where: str) -> StokerError:
    if owner in REFUSED:
        return StokerError(REFUSED[owner], where, option=name, block=block)
    return StokerError("STK110", where, option=name, owner=owner)
