"""Tiny random models of the families people train, from transformers' own classes: one table for every test.

`config` is a family's configuration; `save` writes a base model as its publisher would, with a tokenizer: Stoker trains
it.
"""

import re
from pathlib import Path
from typing import Any

import prepare_case
import sentencepiece_case
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from stoker.engine import models

VOCAB = 400
"""As many as the tokenizer of `prepare_case` has, and a few that no text becomes."""

_SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "pad_token_id": 2,
    "bos_token_id": 3,
    "eos_token_id": 1,
}
_ROUTED: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_SHARED: dict[str, Any] = {**_ROUTED, "shared_expert_intermediate_size": 32}
_LOCAL: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_GROUPED: dict[str, Any] = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 32,
}
_LINEAR: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
_SLIDING: dict[str, Any] = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32}


def _every(layers: int) -> dict[str, Any]:
    """Sliding attention but for the last of so many layers."""
    kinds = [*["sliding_attention"] * (layers - 1), "full_attention"]
    return {"num_hidden_layers": layers, "layer_types": kinds, "sliding_window": 32}


_CHUNKED: dict[str, Any] = {
    "num_hidden_layers": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "intermediate_size_mlp": 96,
    "attention_chunk_size": 64,
    "interleave_moe_layer_step": 1,
}
_MAMBA: dict[str, Any] = {
    "mamba_d_ssm": 128,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
_PLAIN: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": VOCAB,
    **{name: _SMALL[name] for name in ("pad_token_id", "bos_token_id", "eos_token_id")},
}
"""Families whose heads share the width."""
_SEEN: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_BLOCKS: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 2,
    "out_hidden_size": 64,
    "patch_size": 4,
    "num_position_embeddings": 16,
}
_IMAGE_TOKENS: dict[str, Any] = {
    **{f"{name}_index": number for number, name in enumerate(("image_token", "boi_token", "eoi_token"), 5)},
    **{f"{name}_id": number for number, name in enumerate(("image_token", "boi_token", "eoi_token"), 5)},
}


def _rope(sections: list[int], **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections, **more}}


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _SMALL,
    "llama4": {
        "text_config": {**_SMALL, **_CHUNKED},
        "vision_config": {**_SEEN, "vision_output_dim": 64, "projector_input_dim": 64, "projector_output_dim": 64},
    },
    "mistral": _SMALL,
    "ministral3": _SMALL,
    "mixtral": {**_SMALL, **_LOCAL},
    "qwen2": {**_SMALL, "hidden_size": 128},
    "qwen2_moe": {**_SMALL, **_SHARED, "hidden_size": 128},
    "qwen3": _SMALL,
    "qwen3_moe": {**_SMALL, **_ROUTED, "norm_topk_prob": True},
    "qwen3_next": {**_SMALL, **_SHARED, **_LINEAR},
    "qwen3_5": {
        "text_config": {**_SMALL, **_LINEAR, **_rope([2, 1, 1], partial_rotary_factor=0.25)},
        "vision_config": _BLOCKS,
    },
    "qwen3_5_moe": {
        "text_config": {**_SMALL, **_SHARED, **_LINEAR, **_rope([2, 1, 1], partial_rotary_factor=0.25)},
        "vision_config": _BLOCKS,
    },
    "qwen3_vl": {
        "text_config": {**_SMALL, **_rope([8, 4, 4])},
        "vision_config": {**_BLOCKS, "deepstack_visual_indexes": [0]},
    },
    "gemma2": {**_SMALL, **_SLIDING, "query_pre_attn_scalar": 32},
    "gemma3": {
        "text_config": {**_SMALL, **_every(6), "query_pre_attn_scalar": 32},
        "vision_config": _SEEN,
        "mm_tokens_per_image": 4,
        **_IMAGE_TOKENS,
    },
    "gemma3n": {
        "text_config": {
            **_SMALL,
            "num_hidden_layers": 4,
            "intermediate_size": [96] * 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "activation_sparsity_pattern": [0.0] * 4,
            "vocab_size_per_layer_input": VOCAB,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 4,
        },
        "vision_config": {
            "hidden_size": 64,
            "vocab_size": 8,
            "vocab_offset": VOCAB,
            "architecture": "mobilenetv5_300m_enc",
        },
        "audio_config": {
            "hidden_size": 64,
            "vocab_size": 8,
            "vocab_offset": VOCAB + 8,
            "conf_num_hidden_layers": 1,
            "conf_num_attention_heads": 4,
        },
    },
    "gemma4": {
        "text_config": {
            **_SMALL,
            **_SLIDING,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCAB,
            "num_kv_shared_layers": 0,
            "global_head_dim": 64,
        },
        "vision_config": {
            **_SEEN,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "patch_size": 4,
            "position_embedding_size": 64,
        },
        "audio_config": None,
        **_IMAGE_TOKENS,
    },
    "gpt2": {
        **{name: _PLAIN[name] for name in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")},
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 512,
    },
    "gpt_oss": {**_SMALL, **_LOCAL, **_SLIDING},
    "deepseek_v3": {
        **{k: v for k, v in _SMALL.items() if k != "head_dim"},
        **_GROUPED,
        **_LATENT,
        "scoring_func": "sigmoid",
    },
    "glm4": {**_SMALL, "eos_token_id": [1, 7]},
    "glm4_moe": {**_SMALL, **_GROUPED, "eos_token_id": [1, 7]},
    "phi3": {**_SMALL, "hidden_size": 128, "original_max_position_embeddings": 512},
    "phimoe": {**_SMALL, **_LOCAL},
    "olmo2": {**_SMALL, "hidden_size": 128},
    "olmo3": {**_SMALL, **_every(4), "hidden_size": 128},
    "smollm3": {**_SMALL, "hidden_size": 128},
    "granite": {**_SMALL, "hidden_size": 128},
    "granitemoehybrid": {
        **_SMALL,
        **_MAMBA,
        **_LOCAL,
        "hidden_size": 64,
        "num_attention_heads": 2,
        "shared_intermediate_size": 32,
        "layer_types": ["mamba", "attention"],
    },
    "falcon_h1": {**_SMALL, **_MAMBA},
    "jamba": {
        **_SMALL,
        "num_attention_heads": 2,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_d_state": 16,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
    "lfm2": {**_SMALL, "num_attention_heads": 2, "layer_types": ["conv", "full_attention"], "block_multiple_of": 32},
    "mamba2": {
        **_PLAIN,
        "state_size": 16,
        "num_heads": 4,
        "head_dim": 32,
        "n_groups": 1,
        "chunk_size": 16,
    },
    "nemotron_h": {
        **_SMALL,
        "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "moe", "attention", "moe"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 32,
        "ssm_state_size": 16,
        "n_groups": 2,
        "chunk_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 32,
        "n_group": 1,
        "topk_group": 1,
    },
    "hunyuan_v1_dense": {**_SMALL, "eod_token_id": 1},
    "ernie4_5": _SMALL,
    "seed_oss": _SMALL,
    "minimax": {**_SMALL, **_LOCAL, "layer_types": ["linear_attention", "full_attention"], "block_size": 16},
    "kimi_linear": {
        **_SMALL,
        "num_key_value_heads": 4,
        "num_experts": 4,
        "num_experts_per_token": 2,
        "first_k_dense_replace": 1,
        "moe_router_activation_func": "sigmoid",
        "moe_intermediate_size": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "linear_attn_config": {
            "full_attn_layers": [2],
            "kda_layers": [1],
            "head_dim": 32,
            "num_heads": 4,
            "short_conv_kernel_size": 4,
        },
    },
    "bloom": {
        **{k: v for k, v in _PLAIN.items() if k != "num_hidden_layers"},
        "n_layer": 2,
        "n_head": 2,
        "seq_length": 512,
    },
    "opt": {**_PLAIN, "ffn_dim": 96, "word_embed_proj_dim": 64, "max_position_embeddings": 512},
    "falcon": {**_PLAIN, "num_kv_heads": 1},
}
"""The families of the table that Stoker shows (`stoker models`)."""
RELATIVES: dict[str, dict[str, Any]] = {
    "gemma3_text": {**_SMALL, **_every(6), "query_pre_attn_scalar": 32},
    "llama4_text": {**_SMALL, **_CHUNKED, "interleave_moe_layer_step": 2},
    "mistral3": {
        "text_config": {**_SMALL, "model_type": "mistral"},
        "vision_config": {**_SEEN, "model_type": "pixtral", "head_dim": 32},
        "image_token_index": 5,
    },
}
"""Classes next to those that are trained too."""
SERVED: dict[str, dict[str, Any]] = {
    "deepseek_v3": {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "topk_method": "noaux_tc"},
    "lfm2": {"block_dim": 64, "conv_dim": 64},
    "phimoe": {"architectures": ["PhiMoEForCausalLM"]},
}
"""What published configurations state and vLLM needs: words that transformers leaves out, sizes of its kernels."""
TOWERS = ("qwen3_vl", "qwen3_5", "qwen3_5_moe", "gemma3", "gemma4", "mistral3", "llama4")
"""Language models next to a vision tower."""
PIECES = {
    **dict.fromkeys(("gemma2", "gemma3", "gemma3_text", "gemma4", "ernie4_5"), False),
    **dict.fromkeys(("phi3", "jamba"), True),
}
"""Families that come with a sentencepiece file, and whether their text begins with a space."""
TURNS = {
    "glm4": ["[gMASK]", "<sop>", "<|user|>"],
    "glm4_moe": ["[gMASK]", "<sop>", "<|user|>", "<|observation|>"],
}
"""Tokens that a family's own vocabulary has."""
_DENSE = re.compile(r"\.block_sparse_moe\.((?:gate|up|down)_proj\.)")
REFUSED = {"gemma3n": "timm"}
"""Families whose class needs a package that Stoker does not install."""


def config(family: str, **changed: Any) -> Any:
    """A family's tiny configuration."""
    return AutoConfig.for_model(family, **{**{**FAMILIES, **RELATIVES}[family], **changed})


def _name_dense_layers(folder: Path) -> None:
    """As Kimi's publisher does; transformers 5.22 saves them by the name of layers with experts."""
    named = load_file(folder / "model.safetensors")
    published = {_DENSE.sub(r".mlp.\1", name): tensor for name, tensor in named.items()}
    if published.keys() != named.keys():
        save_file(published, folder / "model.safetensors", metadata={"format": "pt"})


def save(folder: Path, family: str, **changed: Any) -> Path:
    """A random base model as its publisher would save it."""
    torch.manual_seed(3)
    sizes = config(family, **changed)
    if family in REFUSED:
        sizes.save_pretrained(folder)
    else:
        model = models.auto_class(sizes).from_config(sizes)
        for parameter in model.parameters():  # also those that are made as zeros or ones
            parameter.data += 0.1 * torch.randn_like(parameter)
        model.save_pretrained(folder)
        _name_dense_layers(folder)
        if "architectures" in changed:  # saving a model writes the name of its class
            sizes.architectures = changed["architectures"]
            sizes.save_pretrained(folder)
    if family in PIECES:
        return sentencepiece_case.make_tokenizer(folder, vocab=VOCAB, prefix=PIECES[family])
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return prepare_case.make_tokenizer(folder, more=TURNS.get(family, []), **names)
