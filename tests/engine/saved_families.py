"""Tiny random models with experts or a vision tower, saved as their publishers would, for training and merging."""

from pathlib import Path
from typing import Any

import tiny_run
import torch
from transformers import AutoConfig

from stoker.engine import models

_TEXT = {
    "vocab_size": tiny_run.VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
_SHARED = {**_ROUTED, "num_experts": 4, "shared_expert_intermediate_size": 24}
_GROUPED = {**_ROUTED, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
_GROUPED |= {"first_k_dense_replace": 1}
_LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32}
_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_expand": 2}
_CHUNKED = {"intermediate_size_mlp": 64, "num_local_experts": 4, "num_experts_per_tok": 1, "attention_chunk_size": 64}
_SEEN = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_BLOCKS = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 32,
    "patch_size": 4,
    "num_position_embeddings": 16,
}


def _rope(sections: list[int], **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections, **more}}


EXPERTS: dict[str, dict[str, Any]] = {
    "mixtral": {**_TEXT, **_LOCAL},
    "qwen2_moe": {**_TEXT, **_SHARED},
    "qwen3_moe": {**_TEXT, **_ROUTED, "num_experts": 4},
    "gpt_oss": {**_TEXT, **_LOCAL, **_SLIDING},
    "deepseek_v3": {**{k: v for k, v in _TEXT.items() if k != "head_dim"}, **_GROUPED, **_LATENT},
    "glm4_moe": {**_TEXT, **_GROUPED},
    "phimoe": {**_TEXT, **_LOCAL},
    "granitemoehybrid": {
        **_TEXT,
        **_LOCAL,
        **_MAMBA,
        "shared_intermediate_size": 24,
        "layer_types": ["mamba", "attention"],
    },
    "qwen3_next": {**_TEXT, **_SHARED, **_LINEAR},
    "llama4_text": {**_TEXT, **_CHUNKED, "interleave_moe_layer_step": 2},
}
"""Mixtures of experts, as text models."""
TOWERS: dict[str, dict[str, Any]] = {
    "qwen3_vl": {
        "text_config": {**_TEXT, **_rope([4, 2, 2])},
        "vision_config": {**_BLOCKS, "deepstack_visual_indexes": [0]},
    },
    "qwen3_5": {
        "text_config": {**_TEXT, **_LINEAR, **_rope([1, 1, 0], partial_rotary_factor=0.25)},
        "vision_config": _BLOCKS,
    },
    "qwen3_5_moe": {
        "text_config": {**_TEXT, **_SHARED, **_LINEAR, **_rope([1, 1, 0], partial_rotary_factor=0.25)},
        "vision_config": _BLOCKS,
    },
    "gemma3": {
        "text_config": {**_TEXT, **_SLIDING},
        "vision_config": _SEEN,
        "mm_tokens_per_image": 4,
        "image_token_index": 5,
        "boi_token_index": 6,
        "eoi_token_index": 7,
    },
    "gemma4": {
        "text_config": {
            **_TEXT,
            **_SLIDING,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": tiny_run.VOCAB,
            "num_kv_shared_layers": 0,
            "global_head_dim": 16,
        },
        "vision_config": {
            **_SEEN,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "patch_size": 4,
            "position_embedding_size": 64,
        },
        "image_token_id": 5,
        "boi_token_id": 6,
        "eoi_token_id": 7,
        "audio_config": None,
    },
    "mistral3": {
        "text_config": {**_TEXT, "model_type": "mistral"},
        "vision_config": {**_SEEN, "model_type": "pixtral", "head_dim": 16},
        "image_token_index": 5,
    },
    "llama4": {
        "text_config": {**_TEXT, **_CHUNKED, "interleave_moe_layer_step": 1},
        "vision_config": {**_SEEN, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32},
    },
}
"""Language models next to a vision tower."""


WHERE = {"gpt_oss": "{attention: eager}"}
"""Of a run file: transformers has no other attention for this family on a CPU."""


def make_base(folder: Path, family: str) -> Path:
    """A random model as its publisher would save it."""
    torch.manual_seed(3)
    config = AutoConfig.for_model(family, **{**EXPERTS, **TOWERS}[family])
    model = models.auto_class(config).from_config(config)
    for parameter in model.parameters():  # also those that are made as zeros or ones
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder
