"""LLaMA-Factory's YAML as a run file.

Their defaults are those of their argument classes and of transformers' `TrainingArguments`: learning rate 5e-5, linear
schedule without warm-up, 3 epochs, 8 sequences per device, LoRA of rank 8 on all linear layers, no packing.
"""

from stoker.config import objectives
from stoker.errors import StokerError
from stoker.migrate import dataset_sources as sources
from stoker.migrate import hyperparameters as shared
from stoker.migrate.draft import Decided, Draft, Left, Own, PassedOn, Rule, percent

NAME = "LLaMA-Factory"
SIGNS = ("model_name_or_path", "stage", "finetuning_type", "dataset", "template", "cutoff_len", "dataset_dir")
"""`model_name_or_path` and one more of these make a file theirs."""

_OTHER_USES = ("do_predict", "do_eval", "export_dir", "infer_backend")
_STAGES = {"sft": "sft", "pt": "pretrain", "dpo": "dpo", "kto": "kto", "rm": "reward"}
_PAIR_LOSSES = {"sigmoid": "dpo", "orpo": "orpo", "simpo": "simpo"}
"""What `stage: dpo` trains, by `pref_loss`."""
_ADDED = {"pref_ftx": 0.0, "pref_bco_weight": 0.0, "dpo_label_smoothing": 0.0, "ld_alpha": 1.0}
"""What may be added to a loss over pairs, and the value that adds nothing."""
_BITS = "quantization_bit"

_SWANLAB = {
    "swanlab_project": "SWANLAB_PROJECT",
    "swanlab_mode": "SWANLAB_MODE",
    "swanlab_logdir": "SWANLAB_LOG_DIR",
}
"""Keys that are variables of the callback of transformers."""

_RULES: dict[str, Rule] = {
    "do_train": Own("migrate.own.command"),
    "do_eval": Own("migrate.own.command"),
    "do_predict": Left("migrate.left.predict"),
    "predict_with_generate": Left("migrate.left.predict"),
    # files and logs
    **dict.fromkeys(("output_dir", "overwrite_output_dir", "overwrite_cache", "plot_loss", "logging_dir"), Own()),
    **dict.fromkeys(("save_only_model", "tokenized_path", "cache_dir", "include_num_input_tokens_seen"), Own()),
    **dict.fromkeys(("include_effective_tokens_per_second", "print_param_status", "offload_folder"), Own()),
    **dict.fromkeys(("media_dir", "export_dir", "export_size", "export_device", "export_legacy_format"), Own()),
    "resume_from_checkpoint": Own("migrate.own.resume"),
    **dict.fromkeys(
        ("preprocessing_num_workers", "preprocessing_batch_size", "buffer_size"), Own("migrate.own.prepare")
    ),
    "logging_steps": PassedOn("trainer", "logging_steps"),
    "neftune_noise_alpha": PassedOn("trainer", "neftune_noise_alpha", (None, 0, 0.0)),
    "label_smoothing_factor": PassedOn("trainer", "label_smoothing_factor", (None, 0, 0.0)),
    # the machine
    **dict.fromkeys(("flash_attn",), Decided("where.attention")),
    **dict.fromkeys(
        ("disable_gradient_checkpointing", "gradient_checkpointing"), Decided("where.gradient_checkpointing")
    ),
    **dict.fromkeys(("use_unsloth_gc", "use_reentrant_gc"), Decided("where.gradient_checkpointing")),
    **dict.fromkeys(("enable_liger_kernel", "use_unsloth", "use_v1_kernels"), Decided("where.kernels")),
    **dict.fromkeys(("deepspeed", "fsdp", "fsdp_config", "ddp_find_unused_parameters"), Decided("where.strategy")),
    **dict.fromkeys(("low_cpu_mem_usage", "quantization_device_map", "ddp_timeout"), Decided("plan")),
    "bf16": Decided("where.precision"),
    "per_device_eval_batch_size": Decided("where.micro"),
    "dataloader_num_workers": Decided("where.workers"),
    # secrets
    **dict.fromkeys(("hf_hub_token", "ms_hub_token", "om_hub_token", "hub_token"), Left("migrate.left.secret")),
    **dict.fromkeys(
        ("swanlab_api_key", "swanlab_lark_secret", "swanlab_lark_webhook_url"), Left("migrate.left.secret")
    ),
    # adapters
    "use_rslora": PassedOn("lora", "use_rslora"),
    "use_dora": PassedOn("lora", "use_dora"),
    "pissa_init": Left("migrate.left.rebased"),
    "pissa_iter": Own("migrate.own.no_effect"),
    "pissa_convert": Left("migrate.left.rebased"),
    "loraplus_lr_ratio": Left(),
    "loraplus_lr_embedding": Own("migrate.own.no_effect"),
    "adapter_name_or_path": Left("migrate.left.adapter"),
    "adapter_folder": Left("migrate.left.adapter"),
    "create_new_adapter": Left("migrate.left.adapter"),
    # data
    "train_on_prompt": Left("migrate.left.prompt_loss"),
    "mask_history": Left("migrate.left.history"),
    "ignore_pad_token_for_loss": Left(off=(None, True)),
    "streaming": Own("migrate.own.prepare"),
    "mix_strategy": Left("migrate.left.mixing", off=(None, "concat")),
    "interleave_probs": Left("migrate.left.mixing"),
    "max_samples": Left("migrate.left.max_samples"),
    "tool_format": Left("migrate.left.template"),
    "enable_thinking": Left("migrate.left.template"),
    "default_system": Left("migrate.left.system"),
    "disable_shuffling": Left("migrate.left.order"),
    "group_by_length": Left("migrate.left.order"),
    "eval_on_each_dataset": Left("migrate.left.eval_sets"),
    "compute_accuracy": Own("migrate.own.no_metric"),
    "early_stopping_steps": Left(),
    # the model
    "trust_remote_code": Left("migrate.left.remote_code"),
    "model_revision": PassedOn("model", "revision", (None, "main")),
    "use_fast_tokenizer": Left(off=(None, True)),
    **dict.fromkeys(("resize_vocab", "add_tokens", "add_special_tokens", "new_special_tokens_config"), Left()),
    **dict.fromkeys(("split_special_tokens", "rope_scaling", "shift_attn", "mixture_of_depths"), Left()),
    **dict.fromkeys(("moe_aux_loss_coef", "upcast_layernorm", "upcast_lmhead_output", "train_from_scratch"), Left()),
    **dict.fromkeys(("use_llama_pro", "use_dft_loss", "use_mca", "fp8", "fp8_enable_fsdp_float8_all_gather"), Left()),
    "init_special_tokens": Own("migrate.own.no_effect"),
    "fp8_backend": Own("migrate.own.no_effect"),
    "pure_bf16": Left("migrate.left.pure_bf16"),
    # optimizers of their own
    **dict.fromkeys(
        ("use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_muon"), Left("migrate.left.their_optimizer")
    ),
    **dict.fromkeys(("freeze_vision_tower", "freeze_multi_modal_projector"), Own("migrate.own.no_effect")),
    "freeze_language_model": Left(),
    # trackers
    "use_swanlab": Left(),
    "swanlab_workspace": Own("migrate.own.tracker"),
    "swanlab_run_name": Own("migrate.own.named"),
    # inference, in the same file
    **dict.fromkeys(
        ("infer_backend", "infer_dtype", "use_kv_cache", "temperature", "top_p"), Own("migrate.own.command")
    ),
    **dict.fromkeys(("max_new_tokens", "eval_num_beams"), Own("migrate.own.command")),
    # multi-modal limits
    **dict.fromkeys(("image_max_pixels", "image_min_pixels", "video_max_pixels"), Left("migrate.left.media")),
    **dict.fromkeys(("video_min_pixels", "video_fps", "video_maxlen"), Left("migrate.left.media")),
    # Ray
    **dict.fromkeys(("ray_run_name", "ray_storage_path", "ray_num_workers", "placement_strategy"), Own()),
    "resources_per_worker": Own(),
}
_DETAILS = (
    *("galore_", "apollo_", "badam_", "freeze_trainable_", "freeze_extra_", "oft_", "module_dropout"),
    *("pref_", "ppo_", "dpo_", "kto_", "simpo_", "ld_alpha", "ref_model", "reward_model", "export_quantization_"),
)
"""Beginnings of keys that say how something is done that another key asks for."""

_HANDLED = (
    *("model_name_or_path", "stage", "finetuning_type", "dataset", "eval_dataset", "dataset_dir", "template"),
    *("cutoff_len", "val_size", "packing", "neat_packing", "lora_rank", "lora_alpha", "lora_dropout", "lora_target"),
    *("additional_target", _BITS, "quantization_type", "quantization_method", "double_quantization"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps", "warmup_ratio"),
    *(*_SWANLAB, "evaluation_strategy", "freeze_trainable_layers", "freeze_trainable_modules"),
    *("pref_loss", "pref_beta", "simpo_gamma", "kto_chosen_weight", "kto_rejected_weight", "ref_model", *_ADDED),
)
KNOWN = (*_HANDLED, *_RULES)
"""Every key that is looked at here."""


def translate(draft: Draft) -> None:
    """Read their file into the draft."""
    _refuse(draft)
    objective = _objective(draft)
    draft.carry("model_name_or_path", "model", sources.placed(draft, draft.text("model_name_or_path")))
    _data(draft, objective)
    _tune(draft, objective)
    draft.carry("stage", "train.objective", objective)
    if objectives.facts(objective).by_row:
        _preference(draft, objective)
    shared.length_of_training(draft, "num_train_epochs", 3)
    shared.batch(draft, "per_device_train_batch_size", 8)
    shared.figures(draft, 5e-5)
    shared.schedule(draft, "lr_scheduler_type", "linear")
    shared.warmup(draft, 0)
    shared.optimizer(draft, "optim")
    shared.eval_interval(draft, "no", has_eval="data.eval" in draft.written)
    shared.saves(draft)
    shared.trackers(draft)
    if draft.truth("use_swanlab"):
        shared.also_tracked(draft, "use_swanlab", "swanlab")
    for key, variable in _SWANLAB.items():
        draft.own(key, "migrate.own.variable", variable=variable)
    shared.run_name(draft, "run_name")
    _precision(draft)
    draft.apply(_RULES)
    details = [key for key in draft.theirs.values if key.startswith(_DETAILS)]
    draft.apply(dict.fromkeys(details, Own("migrate.own.no_effect")))
    draft.finish(KNOWN, trainer_options=True)


def _refuse(draft: Draft) -> None:
    """What Stoker does not train is refused before anything is written."""
    stage, method = draft.text("stage", "sft"), draft.text("finetuning_type", "lora")
    if stage not in _STAGES:
        raise StokerError("STK182", draft.theirs.where(("stage",)), asked=f"stage: {stage}", dialect=NAME)
    loss = draft.text("pref_loss", "sigmoid")
    if stage == "dpo" and loss not in _PAIR_LOSSES:
        raise StokerError("STK182", draft.theirs.where(("pref_loss",)), asked=f"pref_loss: {loss}", dialect=NAME)
    if method not in ("lora", "full"):
        raise StokerError("STK185", draft.theirs.where(("finetuning_type",)), asked=f"finetuning_type: {method}")
    other = next((key for key in _OTHER_USES if draft.has(key) and draft.value(key) is not False), "")
    if other and not draft.truth("do_train"):
        raise StokerError("STK183", draft.theirs.where((other,)), key=other)
    if not draft.names("dataset"):
        raise StokerError("STK186", draft.theirs.name, key="dataset")


def _objective(draft: Draft) -> str:
    objective = _STAGES[draft.text("stage", "sft")]
    return _PAIR_LOSSES[draft.text("pref_loss", "sigmoid")] if objective == "dpo" else objective


def _preference(draft: Draft, objective: str) -> None:
    """Options of a loss over pairs, or over judged answers; a reward model has none."""
    if objective in ("dpo", "orpo", "simpo"):
        draft.carried("pref_loss", "train.objective")
    if objective != "reward":
        draft.carry("pref_beta", f"train.{objective}.beta", draft.number("pref_beta", 0.1))
        if draft.has("ref_model"):
            draft.left("ref_model", "migrate.left.reference")
    if objective == "simpo":
        draft.carry("simpo_gamma", "train.simpo.gamma", draft.number("simpo_gamma", 0.5))
    if objective == "kto":
        draft.carry("kto_chosen_weight", "train.kto.desirable_weight", draft.number("kto_chosen_weight", 1.0))
        draft.carry("kto_rejected_weight", "train.kto.undesirable_weight", draft.number("kto_rejected_weight", 1.0))
    for key, nothing in _ADDED.items() if objective not in ("kto", "reward") else ():
        if draft.number(key, nothing) != nothing:
            draft.left(key, "migrate.left.preference", asked=f"{key}: {draft.text(key)}", objective=objective)


def _data(draft: Draft, objective: str) -> None:
    _sources(draft)
    draft.carry("cutoff_len", "data.length", draft.whole("cutoff_len", 2048))
    draft.left("template", "migrate.left.template")
    if objectives.facts(objective).by_row:
        draft.write("data.pack", value=False)
        for key in ("packing", "neat_packing"):
            draft.own(key, "migrate.own.row_by_row")
        return
    if draft.truth("neat_packing"):
        draft.carry("neat_packing", "data.pack", value=True)
        draft.carried("packing", "data.pack")
    else:
        packs = draft.truth("packing", default=objective == "pretrain")
        draft.carry("packing", "data.pack", packs)
        draft.equal("neat_packing")
    if draft.written["data.pack"].value and not draft.truth("neat_packing"):
        draft.remark("packing", "migrate.remark.attention")


def _sources(draft: Draft) -> None:
    train = sources.by_names(draft, "dataset", draft.names("dataset"))
    share = draft.number("val_size", 0)
    if draft.names("eval_dataset"):
        held_out = sources.by_names(draft, "eval_dataset", draft.names("eval_dataset"))
        sources.write_with_eval(draft, "dataset", train, "eval_dataset", held_out)
    else:
        sources.write(draft, "dataset", train)
        if 0 < share < 1:
            draft.carry("val_size", "data.eval", percent(share))
        elif share:
            draft.left("val_size", "migrate.left.val_rows", rows=int(share))
    draft.equal("val_size")
    draft.equal("eval_dataset")


def _tune(draft: Draft, objective: str) -> None:
    bits, method = draft.whole(_BITS, 0), draft.text("finetuning_type", "lora")
    draft.carry("finetuning_type", "tune.method", "qlora" if (method, bits) == ("lora", 4) else method)
    if method == "full":
        for key in ("lora_rank", "lora_alpha", "lora_dropout", "lora_target", "additional_target", _BITS):
            draft.own(key, "migrate.own.no_effect")
        for key in ("quantization_type", "quantization_method", "double_quantization"):
            draft.own(key, "migrate.own.no_effect")
        return
    rank = draft.whole("lora_rank", 8)
    draft.carry("lora_rank", "tune.rank", rank)
    draft.carry("lora_alpha", "tune.alpha", draft.number("lora_alpha", 2 * rank))
    if objective == "reward" and draft.number("lora_dropout", 0.0):
        draft.left("lora_dropout", "migrate.left.dropout")  # their trainer of it is transformers' own, not TRL's
    shared.dropout(draft, objective)
    targets = draft.names("lora_target") or ["all"]
    draft.carry("lora_target", "tune.targets", "all-linear" if targets == ["all"] else targets)
    if draft.has("additional_target"):
        draft.carry("additional_target", "native.lora.modules_to_save", draft.names("additional_target"))
    _quantized(draft, bits)


def _quantized(draft: Draft, bits: int) -> None:
    if bits == 4:
        draft.carried(_BITS, "tune.method")
        if draft.text("quantization_type", "nf4") != "nf4":
            draft.pass_on("quantization_type", "quantization", "bnb_4bit_quant_type")
        if not draft.truth("double_quantization", default=True):
            draft.pass_on("double_quantization", "quantization", "bnb_4bit_use_double_quant")
    elif bits:
        draft.left(_BITS, "migrate.left.bits", bits=bits)
    method = draft.text("quantization_method", "bnb").lower()
    if bits and method not in ("bnb", "bitsandbytes"):
        draft.left("quantization_method", "migrate.left.quantizer", method=method)
    for key in ("quantization_type", "double_quantization", "quantization_method", _BITS):
        draft.equal(key)


def _precision(draft: Draft) -> None:
    if draft.truth("fp16"):
        draft.carry("fp16", "where.precision", "fp16")
    else:
        draft.equal("fp16")
