"""Which native options a plan's figures hold for: every option is counted, changes no figure, or is named as missing.

A test holds the sets to `known_options.json`; an option that nobody looked at is named. So are options of an adapter
that no merged model can be made of.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from stoker.config.native import known_options
from stoker.config.run import Run, Shape

COUNTED: dict[str, dict[str, tuple[Any, ...]]] = {
    "trainer": {
        "torch_compile_backend": ("inductor", None),
        "torch_compile_mode": ("default", None),
        "gradient_checkpointing_kwargs": ({"use_reentrant": False}, None),
        "label_smoothing_factor": (0, 0.0),
        "skip_memory_metrics": (True,),
        "tf32": (False, None),
        "debug": ("", None),
        "liger_kernel_config": (None,),
    },
    "lora": {
        "bias": ("none",),
        **dict.fromkeys(("use_dora", "lora_bias", "use_bdlora", "ensure_weight_tying"), (False, None)),
        **dict.fromkeys(("rank_pattern", "layers_to_transform", "layers_pattern", "exclude_modules"), ({}, [], None)),
        **dict.fromkeys(("layer_replication", "target_parameters", "trainable_token_indices"), ({}, [], None)),
        **dict.fromkeys(("alora_invocation_tokens", "kasa_config"), ({}, [], None)),
    },
    "quantization": {
        "bnb_4bit_use_double_quant": (True, False),
        "llm_int8_skip_modules": ([], None),
        "bnb_4bit_compute_dtype": (),
        "bnb_4bit_quant_storage": ("uint8",),
    },
    "fsdp": {
        "offload_policy": ("cpu", None),
        "reshard_after_forward": (True, None),
        **dict.fromkeys(("param_dtype", "reduce_dtype", "output_dtype"), (None,)),
    },
    "model": {
        **dict.fromkeys(("tp_plan", "tp_size", "device_mesh", "distributed_config"), (None,)),
        **dict.fromkeys(("experts_implementation", "fusion_config", "kernel_config"), (None,)),
        "use_kernels": (False, None),
    },
}
"""Options that change memory or speed, with the values that the figures are for."""

NEUTRAL: dict[str, frozenset[str]] = {
    "trainer": frozenset(
        (
            *("adam_beta1", "adam_beta2", "adam_epsilon", "lr_scheduler_kwargs", "dataloader_prefetch_factor"),
            *("log_level", "logging_first_step", "logging_steps", "project", "report_to"),
            "neftune_noise_alpha",  # a tensor that is gone long before the peak
            "optim_args",  # `plan.optimizers` counts the moments that they add
            "optim_target_modules",  # of optimizers that are refused
            "use_liger_kernel",  # its loss is counted; `plan.native_steps` names the rest of it
        )
    ),
    "lora": frozenset(
        (
            *("alpha_pattern", "auto_mapping", "fan_in_fan_out", "init_lora_weights", "peft_version", "revision"),
            "use_rslora",
            "modules_to_save",  # `plan.native_steps` names what is neither embedding nor output layer
        )
    ),
    # What bitsandbytes does in 8 bits, and where layers are left in main memory, which `device_map` decides.
    "quantization": frozenset(
        ("bnb_4bit_quant_type", "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight", "llm_int8_threshold")
    ),
    "fsdp": frozenset(),
    # What is loaded from where; `max_memory` and the folders belong to `device_map`, which is Stoker's.
    "model": frozenset(
        (
            *("adapter_kwargs", "adapter_name", "disable_mmap", "force_download", "generation_config"),
            *("ignore_mismatched_sizes", "key_mapping", "local_files_only", "max_memory", "offload_buffers"),
            *("offload_folder", "output_loading_info", "proxies", "revision", "state_dict", "subfolder"),
            *("tqdm_class", "variant"),
        )
    ),
}
"""Options that change neither memory nor speed, or that are counted elsewhere."""

MERGED = frozenset(
    (
        *("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "lora_bias", "fan_in_fan_out"),
        *("target_modules", "target_parameters", "exclude_modules", "layers_to_transform", "layers_pattern"),
        "modules_to_save",
        *("lora_dropout", "inference_mode", "task_type", "peft_version", "auto_mapping"),
        *("base_model_name_or_path", "revision", "runtime_config"),
    )
)
"""Options of an adapter that PEFT's layers merge exactly, or that do not concern the weights."""

_MERGED_VALUES: dict[str, tuple[Any, ...]] = {
    **COUNTED["lora"],
    "init_lora_weights": (True, False, "gaussian", "orthogonal"),  # these leave the base's weights as they are
    "peft_type": ("LORA",),
}
"""Values with which another option rules out no merge."""

_NEUTRAL_OF_SHAPES = frozenset(
    (
        *("architectures", "bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id", "problem_type"),
        *("initializer_range", "layer_norm_epsilon", "rms_norm_eps", "rope_parameters", "return_dict"),
        *("scale_attn_by_inverse_layer_idx", "scale_attn_weights", "summary_activation", "summary_first_dropout"),
        *("summary_proj_to_labels", "summary_type", "summary_use_proj", "transformers_version", "is_encoder_decoder"),
    )
)
_NEUTRAL_OF_DEEPSPEED = frozenset(
    (
        *("steps_per_print", "dump_state", "zero_allow_untested_optimizer", "zero_optimization.stage"),
        *("zero_optimization.reduce_bucket_size", "zero_optimization.ignore_unused_parameters"),
        *("zero_optimization.stage3_gather_16bit_weights_on_model_save", "zero_optimization.contiguous_gradients"),
        *("zero_optimization.offload_optimizer", "zero_optimization.offload_param"),
        *("zero_optimization.elastic_checkpoint", "tensorboard", "wandb", "comet", "csv_monitor", "checkpoint"),
    )
)
"""Of DeepSpeed's: what is counted, or only reports and saves."""


def not_counted(run: Run, blocks: tuple[str, ...]) -> list[str]:
    """Options of these blocks that change memory or speed and that the figures do not know, by their full names."""
    found = []
    for block in blocks:
        if block == "deepspeed":
            found += [f"native.deepspeed.{name}" for name in _deepspeed(run.native.deepspeed)]
        elif block == "model" and isinstance(run.model, Shape):
            found += [f"native.model.{name}" for name in run.native.model if name not in _NEUTRAL_OF_SHAPES]
        else:
            found += [f"native.{block}.{name}" for name in _named(block, getattr(run.native, block))]
    return found


def not_merged(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an adapter with which it cannot be merged into its base exactly."""
    off: tuple[Any, ...] = (None, False, [], {})
    return {
        name: value
        for name, value in options.items()
        if name not in MERGED and value not in _MERGED_VALUES.get(name, off)
    }


def undecided(block: str, owned: dict[str, str]) -> set[str]:
    """Options of a block that are in no set, or in two."""
    free = set(known_options()[block]) - set(owned)
    return free ^ (set(COUNTED[block]) ^ NEUTRAL[block])


def _named(block: str, options: dict[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if name not in NEUTRAL[block] and value not in COUNTED[block].get(name, ()):
            yield name


def _deepspeed(options: Any) -> Iterator[str]:
    """DeepSpeed's options by their paths; `auto` is what the Trainer fills in."""
    for name, value in options.items() if isinstance(options, dict) else ():
        if name == "zero_optimization" and isinstance(value, dict):
            paths = {f"{name}.{inner}": one for inner, one in value.items()}
        else:
            paths = {name: value}
        yield from (path for path, one in paths.items() if path not in _NEUTRAL_OF_DEEPSPEED and one != "auto")
