"""axolotl's YAML as a run file.

Their defaults are those of their schema: 1 sequence per device, 1 epoch, length 512, cosine with a warm-up of 3 % (at
most 100 steps), no packing, every weight unless `adapter` says otherwise.
"""

from typing import Any

from stoker.config import native
from stoker.config.reader import KeyPath
from stoker.errors import StokerError
from stoker.facts import native_figures
from stoker.migrate import column_names
from stoker.migrate import dataset_sources as sources
from stoker.migrate import hyperparameters as shared
from stoker.migrate.draft import Decided, Draft, Left, Own, PassedOn, Rule, percent, texts

NAME = "axolotl"
SIGNS = ("base_model",)
"""The key that makes a file theirs."""

_ATTENTION = (
    *("flash_attention", "xformers_attention", "sdp_attention", "flex_attention", "eager_attention"),
    *("attn_implementation", "flex_attn_compile_kwargs", "flash_attn_cross_entropy", "flash_attn_rms_norm"),
    *("flash_attn_fuse_qkv", "flash_attn_fuse_mlp", "flash_optimum", "sage_attention"),
)
_KERNELS = (
    *("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "use_kernels", "liger_rope", "liger_rms_norm"),
    *("liger_glu_activation", "liger_swiglu", "liger_layer_norm", "liger_fused_linear_cross_entropy"),
    *("liger_cross_entropy", "unsloth_cross_entropy_loss", "unsloth_lora_mlp", "unsloth_lora_qkv", "unsloth_lora_o"),
    *("unsloth_rms_norm", "unsloth_rope", "cut_cross_entropy", "chunked_cross_entropy"),
)
_OF_PREFERENCES = (
    *("rl_beta", "orpo_alpha", "simpo_gamma", "cpo_alpha", "kto_desirable_weight", "kto_undesirable_weight"),
    *("dpo_use_weighting", "dpo_label_smoothing", "dpo_norm_loss"),
)
_TRACKERS = {
    "wandb": ("wandb_project", "wandb_entity", "wandb_name", "wandb_run_id", "wandb_watch", "wandb_mode"),
    "mlflow": ("mlflow_tracking_uri", "mlflow_experiment_name", "mlflow_run_name"),
    "comet_ml": ("comet_project_name", "comet_workspace", "comet_experiment_key"),
    "swanlab": ("swanlab_project", "swanlab_workspace", "swanlab_experiment_name", "swanlab_mode"),
}
_RULES: dict[str, Rule] = {
    # files and logs
    **dict.fromkeys(("output_dir", "dataset_prepared_path", "strict", "save_safetensors", "save_only_model"), Own()),
    **dict.fromkeys(("wandb_log_model", "hf_mlflow_log_artifacts", "push_dataset_to_hub", "profiler_steps"), Own()),
    **dict.fromkeys(("tokenizer_save_jinja_files", "include_tokens_per_second", "debug", "use_wandb"), Own()),
    "use_swanlab": Own(),
    **dict.fromkeys(("hub_model_id", "hub_strategy", "hub_revision", "hf_use_auth_token"), Own("migrate.own.store")),
    **dict.fromkeys(("resume_from_checkpoint", "auto_resume_from_checkpoints"), Own("migrate.own.resume")),
    **dict.fromkeys(("dataset_processes", "dataset_num_proc", "dataset_keep_in_memory"), Own("migrate.own.prepare")),
    **dict.fromkeys(("sample_packing_group_size", "sample_packing_bin_size"), Own("migrate.own.prepare")),
    **dict.fromkeys(
        ("eval_sample_packing", "pad_to_sequence_len", "sample_packing_eff_est"), Own("migrate.own.prepare")
    ),
    **dict.fromkeys(("total_num_tokens", "total_supervised_tokens", "batch_flattening"), Own("migrate.own.prepare")),
    **dict.fromkeys(("merge_lora", "lora_on_cpu", "merge_method"), Own("migrate.own.command")),
    **dict.fromkeys(("eval_table_size", "eval_max_new_tokens", "do_causal_lm_eval"), Own("migrate.own.no_metric")),
    **dict.fromkeys(("eval_causal_lm_metrics", "do_bench_eval", "bench_dataset"), Own("migrate.own.no_metric")),
    "use_tensorboard": Own("migrate.own.tracker"),
    "logging_steps": PassedOn("trainer", "logging_steps"),
    # the machine
    **dict.fromkeys(_ATTENTION, Decided("where.attention")),
    **dict.fromkeys(_KERNELS, Decided("where.kernels")),
    **dict.fromkeys(
        ("gradient_checkpointing", "gradient_checkpointing_kwargs"), Decided("where.gradient_checkpointing")
    ),
    **dict.fromkeys(("activation_offloading", "layer_offloading"), Decided("where.gradient_checkpointing")),
    **dict.fromkeys(
        ("deepspeed", "fsdp", "fsdp_config", "fsdp_version", "fsdp_final_state_dict_type"), Decided("where.strategy")
    ),
    **dict.fromkeys(
        ("qlora_sharded_model_loading", "ddp", "dp_shard_size", "dp_replicate_size"), Decided("where.strategy")
    ),
    **dict.fromkeys(("eval_batch_size", "auto_find_batch_size"), Decided("where.micro")),
    **dict.fromkeys(("bf16", "bfloat16", "tf32"), Decided("where.precision")),
    **dict.fromkeys(("torch_compile", "torch_compile_backend", "torch_compile_mode"), Decided("where.compile")),
    **dict.fromkeys(
        ("dataloader_num_workers", "dataloader_pin_memory", "dataloader_prefetch_factor"), Decided("where.workers")
    ),
    **dict.fromkeys(
        ("device", "device_map", "world_size", "local_rank", "max_memory", "gpu_memory_limit"), Decided("plan")
    ),
    **dict.fromkeys(
        ("low_cpu_mem_usage", "ddp_timeout", "ddp_bucket_cap_mb", "ddp_broadcast_buffers"), Decided("plan")
    ),
    **dict.fromkeys(("ddp_find_unused_parameters", "gc_steps", "experimental_skip_move_to_device"), Decided("plan")),
    **dict.fromkeys(("multipack_real_batches", "remove_unused_columns", "accelerator_config"), Decided("plan")),
    # the model
    "revision_of_model": PassedOn("model", "revision"),
    "trust_remote_code": Left("migrate.left.remote_code"),
    **dict.fromkeys(("model_type", "tokenizer_type", "processor_type", "cls_model_config"), Own("migrate.own.classes")),
    **dict.fromkeys(("is_falcon_derived_model", "is_llama_derived_model"), Own("migrate.own.classes")),
    **dict.fromkeys(("is_mistral_derived_model", "is_qwen_derived_model"), Own("migrate.own.classes")),
    **dict.fromkeys(("base_model_config", "tokenizer_use_mistral_common", "special_tokens", "tokens"), Left()),
    **dict.fromkeys(("added_tokens_overrides", "resize_token_embeddings_to_32x", "eot_tokens", "plugins"), Left()),
    **dict.fromkeys(("unfrozen_parameters", "overrides_of_model_config", "overrides_of_model_kwargs"), Left()),
    **dict.fromkeys(("mean_resizing_embeddings", "shrink_embeddings", "embeddings_skip_upcast"), Left()),
    **dict.fromkeys(("fix_untrained_tokens", "use_pose", "relora", "relora_steps", "lisa_n_layers"), Left()),
    **dict.fromkeys(
        ("qat", "fp8", "gptq", "s2_attention", "sequence_parallel_degree", "context_parallel_size"), Left()
    ),
    **dict.fromkeys(("tensor_parallel_size", "torchdistx_path", "model_quantization_config"), Left()),
    "tokenizer_use_fast": Left(off=(None, True)),
    "tokenizer_legacy": Left(),
    **dict.fromkeys(("float16", "float32"), Left("migrate.left.pure_16")),
    # adapters
    "peft_use_rslora": PassedOn("lora", "use_rslora"),
    "peft_use_dora": PassedOn("lora", "use_dora"),
    "lora_fan_in_fan_out": PassedOn("lora", "fan_in_fan_out"),
    "lora_modules_to_save": PassedOn("lora", "modules_to_save", (None, [])),
    "lora_target_parameters": PassedOn("lora", "target_parameters", (None, [])),
    "peft_layers_to_transform": PassedOn("lora", "layers_to_transform"),
    "peft_layers_pattern": PassedOn("lora", "layers_pattern"),
    "peft_layer_replication": PassedOn("lora", "layer_replication"),
    "peft_trainable_token_indices": PassedOn("lora", "trainable_token_indices"),
    "peft_init_lora_weights": Left("migrate.left.rebased", off=(None, True)),
    "peft_autocast_adapter_dtype": Left(off=(None, True)),
    "peft": Left("migrate.left.rebased", off=(None, {})),
    "lora_model_dir": Left("migrate.left.adapter", off=(None, "")),
    "loraplus_lr_ratio": Left(),
    "loraplus_lr_embedding": Own("migrate.own.no_effect"),
    # the optimizer
    **{name: PassedOn("trainer", name, (None,)) for name in ("adam_beta1", "adam_beta2", "adam_epsilon")},
    **dict.fromkeys(("adam_beta3", "adam_epsilon2", "embedding_lr", "embedding_lr_scale", "lr_groups"), Left()),
    **dict.fromkeys(
        ("lr_quadratic_warmup", "cosine_min_lr_ratio", "cosine_constant_lr_ratio", "lr_div_factor"), Left()
    ),
    "optim_args": PassedOn("trainer", "optim_args", (None,)),
    "optim_target_modules": Left(),
    "neftune_noise_alpha": PassedOn("trainer", "neftune_noise_alpha", (None, 0)),
    "noisy_embedding_alpha": PassedOn("trainer", "neftune_noise_alpha", (None, 0)),
    **dict.fromkeys(("loss_watchdog_threshold", "loss_watchdog_patience"), Own("migrate.own.spike")),
    # data
    "train_on_inputs": Left("migrate.left.prompt_loss"),
    "group_by_length": Left("migrate.left.order"),
    "shuffle_merged_datasets": Left("migrate.left.order", off=(None, True)),
    "curriculum_sampling": Left("migrate.left.order"),
    "sample_packing_sequentially": Left("migrate.left.order"),
    "default_system_message": Left("migrate.left.system"),
    "chat_template": Left("migrate.left.template"),
    "chat_template_jinja": Left("migrate.left.template"),
    "dataset_exact_deduplication": Left(),
    "excess_length_strategy": Left("migrate.left.excess", off=("truncate",)),
    **dict.fromkeys(("min_sample_len", "dataset_shard_num", "dataset_shard_idx", "skip_prepare_dataset"), Left()),
    "early_stopping_patience": Left(),
    "dataloader_drop_last": Left("migrate.left.order"),
    "max_prompt_len": Own("migrate.own.no_effect"),
    "precompute_ref_log_probs": Own("migrate.own.no_effect"),
    **dict.fromkeys(_OF_PREFERENCES, Own("migrate.own.no_effect")),
    **{name: Own("migrate.own.tracker") for names in _TRACKERS.values() for name in names},
}
_OBJECTIVES = ("dpo", "simpo", "orpo", "kto")
"""What `rl` may be here."""
_ANSWERS = "answers"
"""The kind of rows that compare or judge answers."""
_PATTERN = set("\\*+?|()[]{}^$")
"""Characters that no module's name has."""
_LARGEST_WARMUP = 100
"""Steps of the warm-up where none is asked for: 3 % of all, at most these."""
_ROW_KEYS = ("path", "type", "data_files", "ds_type", "split", "name", "field", "field_messages", "field_instruction")
_MESSAGE_KEYS = (
    *("message_field_role", "message_field_content", "message_property_mappings", "roles"),
    *("chat_template", "chat_template_jinja", "conversation"),
)
_HANDLED = (
    *("base_model", "tokenizer_config", "rl", "reward_model", "process_reward_model", "datasets", "test_datasets"),
    *("pretraining_dataset", "val_set_size", "sequence_len", "sample_packing", "adapter", "load_in_4bit"),
    *("load_in_8bit", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_linear"),
    *("bnb_config_kwargs", "micro_batch_size", "gradient_accumulation_steps", "batch_size", "num_epochs"),
    *("max_steps", "learning_rate", "weight_decay", "max_grad_norm", "seed", "lr_scheduler", "lr_scheduler_kwargs"),
    *("warmup_steps", "warmup_ratio", "optimizer", "eval_strategy", "evaluation_strategy", "eval_steps"),
    *("evals_per_epoch", "save_strategy", "save_steps", "saves_per_epoch", "save_total_limit"),
    *("load_best_model_at_end", "metric_for_best_model", "greater_is_better", "report_to", "fp16"),
)
KNOWN = (*_HANDLED, *_RULES)
"""Every key that is looked at here."""


def translate(draft: Draft) -> None:
    """Read their file into the draft."""
    _refuse(draft)
    draft.carry("base_model", "model", sources.placed(draft, draft.text("base_model")))
    if draft.has("tokenizer_config"):
        draft.carry("tokenizer_config", "tokenizer", sources.placed(draft, draft.text("tokenizer_config")))
    asked = _asked(draft)
    objective = _data(draft, asked)
    _too_long(draft, objective)
    _tune(draft, objective)
    if asked:
        key = "rl" if draft.value("rl") else "reward_model"
        draft.carry(key, "train.objective", asked)
        if key == "rl":
            draft.left("reward_model", "migrate.left.reward_model", objective=asked)
        _preference(draft, asked)
    else:
        draft.write("train.objective", objective, "migrate.from.datasets")
    shared.length_of_training(draft, "num_epochs", 1)
    _batch(draft)
    shared.figures(draft, None)
    shared.schedule(draft, "lr_scheduler", "cosine")
    _warmup(draft)
    shared.optimizer(draft, "optimizer")
    _intervals(draft)
    shared.trackers(draft)
    _named_trackers(draft)
    if draft.truth("fp16"):
        draft.carry("fp16", "where.precision", "fp16")
    draft.equal("fp16")
    draft.apply(_RULES)
    _not_merged(draft)
    draft.finish(KNOWN, trainer_options=False)


def _refuse(draft: Draft) -> None:
    """What Stoker does not train is refused before anything is written."""
    for key in ("rl", "process_reward_model"):
        if draft.value(key) not in (None, False, *(_OBJECTIVES if key == "rl" else ())):
            raise StokerError("STK182", draft.theirs.where((key,)), asked=f"{key}: {draft.text(key)}", dialect=NAME)
        if draft.value(key) in (None, False):
            draft.equal(key)
    if not draft.truth("reward_model"):
        draft.equal("reward_model")
    adapter = draft.text("adapter")
    if adapter not in ("", "lora", "qlora"):
        raise StokerError("STK185", draft.theirs.where(("adapter",)), asked=f"adapter: {adapter}")
    if not draft.has("datasets") and not draft.has("pretraining_dataset"):
        raise StokerError("STK186", draft.theirs.name, key="datasets")


def _asked(draft: Draft) -> str:
    """The objective that `rl` or `reward_model` names; empty where the datasets say what is trained."""
    if draft.value("rl") not in (None, False):
        return draft.text("rl")
    return "reward" if draft.truth("reward_model") else ""


def _preference(draft: Draft, objective: str) -> None:
    """Options of a loss over pairs, or over judged answers; a reward model has none."""
    if objective == "orpo":
        strength = draft.number("orpo_alpha", draft.number("rl_beta", 0.1))
        draft.carry("orpo_alpha" if draft.has("orpo_alpha") else "rl_beta", "train.orpo.beta", strength)
        draft.remark("rl", "migrate.remark.answers")
    elif objective != "reward":
        draft.carry("rl_beta", f"train.{objective}.beta", draft.number("rl_beta", 0.1))
    if objective == "simpo":
        draft.carry("simpo_gamma", "train.simpo.gamma", draft.number("simpo_gamma", 0.5))
        if draft.number("cpo_alpha", 1.0):
            draft.left("cpo_alpha", "migrate.remark.chosen_loss")
            draft.remark("cpo_alpha", "migrate.remark.chosen_loss")
    if objective == "kto":
        for kind in ("desirable_weight", "undesirable_weight"):
            draft.carry(f"kto_{kind}", f"train.kto.{kind}", draft.number(f"kto_{kind}", 1.0))
    for key in ("dpo_use_weighting", "dpo_label_smoothing", "dpo_norm_loss"):
        if draft.value(key) not in (None, False, 0):
            draft.left(key, "migrate.left.preference", asked=f"{key}: {draft.text(key)}", objective=objective)


# ---- data


def _data(draft: Draft, asked: str) -> str:
    """The data section; what is trained: what is asked, else `sft`, or `pretrain` where every row is plain text."""
    # Theirs reads one of the two: by `rl` the first, else the second where it is there.
    keys = ("datasets", "pretraining_dataset") if draft.value("rl") else ("pretraining_dataset", "datasets")
    key, other = keys if draft.value(keys[0]) else reversed(keys)
    draft.left(other, "migrate.left.unread", read=key)
    kinds: set[str] = {_ANSWERS} if asked else set()
    train = [_source(draft, path, kinds) for path in _entries(draft, key)]
    share = draft.number("val_set_size", 0)
    if draft.has("test_datasets"):
        held_out = [_source(draft, path, {_ANSWERS} if asked else set()) for path in _entries(draft, "test_datasets")]
        sources.write_with_eval(draft, key, train, "test_datasets", held_out)
    else:
        sources.write(draft, key, train)
        if 0 < share < 1:
            draft.carry("val_set_size", "data.eval", percent(share))
        elif share:
            draft.left("val_set_size", "migrate.left.val_rows", rows=int(share))
    draft.equal("val_set_size")
    draft.carry("sequence_len", "data.length", draft.whole("sequence_len", 512))
    if asked:
        draft.write("data.pack", value=False)
        draft.own("sample_packing", "migrate.own.row_by_row")
        return asked
    draft.carry("sample_packing", "data.pack", draft.truth("sample_packing", default=key == "pretraining_dataset"))
    return "pretrain" if kinds == {"text"} else "sft"


def _too_long(draft: Draft, objective: str) -> None:
    """They drop a row that is too long, unless told otherwise; running text is cut into pieces by both."""
    key = "excess_length_strategy"
    if objective == "pretrain":
        draft.own(key, "migrate.own.no_effect")
    elif key not in draft.theirs.values:
        draft.remark(key, "migrate.left.excess")


def _entries(draft: Draft, key: str) -> list[KeyPath]:
    """Key paths of the entries of a list of datasets; a single mapping counts as one."""
    value = draft.value(key)
    if isinstance(value, list) and all(isinstance(one, dict) for one in value) and value:
        return [(key, number) for number in range(len(value))]
    if isinstance(value, dict):
        return [(key,)]
    raise draft.unreadable(key)


def _source(draft: Draft, at: KeyPath, kinds: set[str]) -> dict[str, Any]:
    entry: Any = draft.theirs.values
    for part in at:
        entry = entry[part]
    path = str(entry.get("path", ""))
    files = entry.get("data_files") or []
    files = files if isinstance(files, list) else [files]
    is_file_kind = path in ("json", "csv", "text", "parquet")
    local = is_file_kind or sources.looks_local(draft, path)
    if "://" in path:
        draft.remark((*at, "path"), "migrate.left.address", address=path)
    elif local:
        path = sources.placed(draft, str(files[0]) if files and is_file_kind else path)
    else:
        path = f"hub:{path}"
    if files and (len(files) > 1 or not is_file_kind):
        draft.remark((*at, "data_files"), "migrate.left.files", count=len(files))
    extras: dict[str, Any] = {}
    columns = _type(draft, at, entry, kinds)
    if columns and not sources.is_running_text(path):
        extras["columns"] = columns
    for theirs, ours in (("name", "config"), ("split", "split")):
        given = entry.get(theirs)
        if local and "[" in str(given):
            draft.left((*at, theirs), "migrate.left.slice", asked=given)
        elif given and not local and not (theirs == "split" and given == "train"):
            extras[ours] = str(given)
    for key in ("path", "data_files", "split", "name"):
        draft.carried((*at, key), "data.train")
    draft.own((*at, "ds_type"), "migrate.own.suffix")
    draft.unknown_inside(at, (*_ROW_KEYS, *_MESSAGE_KEYS))
    return {"path": path, **extras}


def _type(draft: Draft, at: KeyPath, entry: dict[str, Any], kinds: set[str]) -> dict[str, Any]:
    """How rows become prompts, by name or by a format of the user's own; columns that the run file names."""
    columns: dict[str, Any] = {}
    kind = entry.get("type", "pretrain" if at[0] == "pretraining_dataset" else "")
    name = kind.partition(":")[0].partition(".")[0] if isinstance(kind, str) else ""
    if _ANSWERS in kinds:  # recognised by the keys of the rows
        draft.left((*at, "type"), "migrate.left.layout", asked=kind if isinstance(kind, str) else "{...}")
        for key in entry:
            if key.startswith(("field_", "message_")):
                draft.left((*at, key), "migrate.left.columns", columns=f"`{entry[key]}`")
    elif name in ("completion", "pretrain"):
        kinds.add("text")
        # Named even where it is `text`: rows may have a prompt and an answer, too, and those would go first.
        columns = {"text": str(entry.get("field") or entry.get("text_column") or "text")}
        for key in ("field", "text_column"):
            draft.carried((*at, key), "data.train")
        draft.carried((*at, "type"), "train.objective")
    elif name in ("chat_template", "sharegpt"):
        kinds.add("chat")
        columns = _conversation(draft, at, entry, "conversations" if name == "sharegpt" else "messages")
    else:
        kinds.add("rows")
        shown = kind if isinstance(kind, str) else "{...}"
        draft.left((*at, "type"), "migrate.left.layout", asked=shown)
    for key in ("field", "text_column", "trust_remote_code", "skip"):
        draft.own((*at, key), "migrate.own.no_effect")
    return columns


def _conversation(draft: Draft, at: KeyPath, entry: dict[str, Any], usual: str) -> dict[str, Any]:
    mapped = "message_property_mappings"
    names = texts(entry.get(mapped), draft.theirs.where((*at, mapped)), mapped)
    role, content = (str(entry.get(f"message_field_{key}") or names.get(key, "")) for key in ("role", "content"))
    columns = column_names.conversation(str(entry.get("field_messages") or usual), role, content)
    for key in ("field_messages", "message_field_role", "message_field_content", mapped):
        draft.carried((*at, key), "data.train")
    draft.carried((*at, "type"), "data.format")
    for key in ("chat_template", "chat_template_jinja", "conversation"):
        draft.left((*at, key), "migrate.left.template")
    if entry.get("roles_to_train") in (None, ["assistant"], ["gpt"], ["assistant", "gpt"]):
        draft.carried((*at, "roles_to_train"), "train.objective")
    if entry.get("train_on_eos") in (None, "turn"):
        draft.carried((*at, "train_on_eos"), "train.objective")
    for key in ("roles", "roles_to_train", "train_on_eos", "message_field_training", "drop_system_message"):
        draft.left((*at, key), "migrate.left.turns")
    return columns


# ---- what is trained


def _tune(draft: Draft, objective: str) -> None:
    adapter = draft.text("adapter")
    four, eight = draft.truth("load_in_4bit"), draft.truth("load_in_8bit")
    lora_keys = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_linear")
    if not adapter:
        draft.carry("adapter", "tune.method", "full")
        for key in (*lora_keys, "load_in_4bit", "load_in_8bit", "bnb_config_kwargs", "adapter"):
            draft.own(key, "migrate.own.no_effect")
        return
    draft.carry("adapter", "tune.method", "qlora" if four or adapter == "qlora" else "lora")
    if four:
        draft.carried("load_in_4bit", "tune.method")
    if eight:
        draft.left("load_in_8bit", "migrate.left.bits", bits=8)
    draft.equal("load_in_4bit")
    draft.equal("load_in_8bit")
    draft.carry("lora_r", "tune.rank", draft.whole("lora_r", 8))
    draft.carry("lora_alpha", "tune.alpha", draft.number("lora_alpha", 8))
    shared.dropout(draft, objective)
    _targets(draft)
    options = draft.value("bnb_config_kwargs") or {}
    known = set(native.known_options()["quantization"]) - set(native.OWNED["quantization"])
    if isinstance(options, dict) and set(options) <= known and four:
        for name, value in options.items():
            draft.write(f"native.quantization.{name}", value, "migrate.from.none")
        draft.carried("bnb_config_kwargs", "native.quantization")
    draft.left("bnb_config_kwargs")


def _targets(draft: Draft) -> None:
    """All linear layers, named ones, or, where neither is said, PEFT's choice for the family.

    A text is a regular expression to PEFT; ours are names.
    """
    named, asked = draft.names("lora_target_modules"), draft.value("lora_target_modules")
    if draft.truth("lora_target_linear") or named == ["all-linear"]:
        source = "lora_target_linear" if draft.truth("lora_target_linear") else "lora_target_modules"
        draft.carry(source, "tune.targets", "all-linear")
        draft.carried("lora_target_modules", "tune.targets")
    elif isinstance(asked, str) and _PATTERN & set(asked):
        draft.write("tune.targets", "all-linear")
        draft.left("lora_target_modules", "migrate.left.pattern", asked=asked)
    elif named:
        draft.carry("lora_target_modules", "tune.targets", named)
    else:
        draft.write("tune.targets", ["q_proj", "v_proj"], "migrate.from.peft")
        draft.remark("lora_target_modules", "migrate.remark.peft_targets")
    draft.equal("lora_target_modules")
    draft.equal("lora_target_linear")


def _batch(draft: Draft) -> None:
    """`batch_size` is one device's: micro batch times accumulation."""
    accumulation = None
    if draft.has("batch_size") and not draft.has("gradient_accumulation_steps"):
        accumulation = max(1, draft.whole("batch_size", 1) // draft.whole("micro_batch_size", 1))
        draft.carried("batch_size", "train.batch")
    shared.batch(draft, "micro_batch_size", 1, accumulation)
    draft.own("batch_size", "migrate.own.no_effect")


def _warmup(draft: Draft) -> None:
    """Where none is asked for, it is limited, which matters in a long training; how long it is may not be known."""
    steps = draft.whole("max_steps", -1)
    is_asked = draft.has("warmup_steps") or draft.has("warmup_ratio")
    is_cut = steps * 3 > _LARGEST_WARMUP * 100
    shared.warmup(draft, _LARGEST_WARMUP if is_cut else "3%")
    if not is_asked and steps < 1:
        draft.remark("warmup_ratio", "migrate.remark.warmup", most=_LARGEST_WARMUP)


def _intervals(draft: Draft) -> None:
    """Evals and saves; several in an epoch have no counterpart in steps before rows are counted."""
    when = "steps" if draft.has("eval_steps") else "epoch"
    shared.eval_interval(draft, when, has_eval="data.eval" in draft.written)
    for key in ("evals_per_epoch", "saves_per_epoch"):
        draft.own(key, "migrate.own.interval", written="epoch" if key == "evals_per_epoch" else "auto")
    shared.saves(draft)


def _named_trackers(draft: Draft) -> None:
    """A tracker whose project is named is used, without a key that says so."""
    named = [tracker for tracker, keys in _TRACKERS.items() if draft.value(keys[0])]
    used = [tracker for tracker in named if not shared.is_offline(draft, tracker)]
    for tracker in named:
        shared.leave_offline(draft, f"{tracker}_mode", tracker)
    if draft.truth("use_swanlab") and not named:
        shared.also_tracked(draft, "use_swanlab", "swanlab")
    if used and "native.trainer.report_to" not in draft.written:
        draft.write(
            "native.trainer.report_to",
            used,
            "migrate.from.key",
            key=_TRACKERS[used[0]][0],
            line=draft.theirs.lines[(_TRACKERS[used[0]][0],)],
        )


def _not_merged(draft: Draft) -> None:
    """Say of an option of the adapter that no merged model can be made of it."""
    for ours, one in draft.written.items():
        block, _, name = ours.rpartition(".")
        if block == "native.lora" and native_figures.not_merged({name: one.value}):
            draft.remark(one.fields["key"], "migrate.remark.not_merged")
