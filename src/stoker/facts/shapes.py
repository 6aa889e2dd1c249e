"""Model shapes: how many layers, how wide, how many weights; of dense families by formula, of others by their record.

Looked for in this order: a local folder, the Hugging Face cache, the shapes shipped here, the hub. A family without an
exact formula is never counted like another: its record is read or made, else it is refused (ADR 0024).
"""

import contextlib
import functools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path, PurePath
from typing import Any, Literal

from stoker import messages
from stoker.config.run import Shape, TrainTokenizer
from stoker.errors import ClosestNames, StokerError, closest
from stoker.facts import model_configs, model_records
from stoker.facts.model_configs import FoundConfig
from stoker.facts.model_parts import KERNELS, ModelParts

Origin = Literal["local", "cache", "hub", "shipped", "run_file"]
Weigh = Callable[[dict[str, Any]], ModelParts]
"""Makes the record of a `config.json`; needs torch."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer by its sizes."""

    family: str
    """The architecture, by its `model_type` in transformers."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Inner size of the feed-forward part; of one expert, where there are experts."""
    vocab: int
    """Rows of the embedding table; 0 while a tokenizer still has to be trained."""
    tie_embeddings: bool = False
    gated_mlp: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    """Bias of the attention's output projection."""
    mlp_bias: bool = False
    head_bias: bool = False
    """Bias of the output layer over the vocabulary."""
    experts: int = 0
    experts_per_token: int = 0
    norms_per_layer: int = 2
    norm_weights: int = 1
    """Weights a norm has per channel: 1 (RMSNorm), 2 (LayerNorm with bias) or 0."""
    qk_norm: Literal["none", "head", "full"] = "none"
    """Norms on queries and keys: over one head's channels, or over all heads'."""
    attention_sinks: bool = False
    learned_positions: int = 0
    """Rows of a learned position table; 0 for rotary positions."""
    context: int | None = None
    """Longest sequence the model was made for, where known."""
    attention: tuple[str, ...] = KERNELS
    """Attention kernels that its class in transformers takes."""
    parts: ModelParts | None = None
    """Its tensors, where no formula of ours counts them; the sizes above then describe activations only."""

    def parameters(self) -> int:
        """Number of weights, exactly, norms and biases included."""
        if self.parts:
            return self.parts.parameters
        embeddings = self.vocab * self.hidden * (1 if self.tie_embeddings else 2)
        positions = self.learned_positions * self.hidden
        final_norm = self.norm_weights * self.hidden
        head_bias = self.vocab if self.head_bias else 0
        return embeddings + positions + final_norm + head_bias + self.layers * self._layer_parameters(self.experts)

    def shallow(self, blocks: int) -> "ModelShape":
        """The same model with fewer blocks."""
        parts = self.parts.shallow(blocks, self.layers) if self.parts else None
        return replace(self, layers=blocks, parts=parts)

    def active_parameters(self) -> int:
        """Weights one token is multiplied with: looking up an embedding is none, an expert not chosen is none."""
        if self.parts:
            return self.parts.active_parameters
        output = self.vocab * self.hidden
        return output + self.layers * self._layer_parameters(self.experts_per_token)

    def _layer_parameters(self, experts: int) -> int:
        mlps = experts * self._mlp_parameters() + self._router_parameters() if self.experts else self._mlp_parameters()
        norms = self.norms_per_layer * self.norm_weights * self.hidden
        return self._attention_parameters() + mlps + norms

    def _attention_parameters(self) -> int:
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        weights = self.hidden * (query + 2 * key) + query * self.hidden
        biases = (query + 2 * key if self.qkv_bias else 0) + (self.hidden if self.output_bias else 0)
        norms = {"none": 0, "head": 2 * self.head_dim, "full": query + key}[self.qk_norm]
        return weights + biases + norms + (self.heads if self.attention_sinks else 0)

    def _mlp_parameters(self) -> int:
        inner = self.intermediate * (2 if self.gated_mlp else 1)
        biases = inner + self.hidden if self.mlp_bias else 0
        return self.hidden * (inner + self.intermediate) + biases

    def _router_parameters(self) -> int:
        return self.experts * (self.hidden + (1 if self.mlp_bias else 0))


@dataclass(frozen=True)
class ResolvedShape:
    """A shape, and where it was read."""

    shape: ModelShape
    origin: Origin
    stored_parameters: int | None = None
    """Weights in the model's files by their index, where there is one."""
    quantised: str = ""
    """How the files hold the weights in fewer bits (`fp8`, `mxfp4`, `awq`); empty where they hold 16 or 32."""


_GPT_LIKE = {"gated_mlp": False, "qkv_bias": True, "output_bias": True, "mlp_bias": True, "norm_weights": 2}
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "mixtral": {},
    "qwen": {"qkv_bias": True},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": "head"},
    "qwen3_moe": {"qk_norm": "head"},
    "gemma": {"tie_embeddings": True},
    "gemma2": {"tie_embeddings": True, "norms_per_layer": 4, "attention": ("flash_attention_2", "eager")},
    "gemma3_text": {"tie_embeddings": True, "norms_per_layer": 4, "qk_norm": "head"},
    "phi": {**_GPT_LIKE, "norms_per_layer": 1, "head_bias": True},
    "phi3": {},
    "gpt2": {**_GPT_LIKE, "tie_embeddings": True},
    "gpt_neox": _GPT_LIKE,
    "gpt_oss": {"qkv_bias": True, "output_bias": True, "mlp_bias": True, "attention_sinks": True},
    "olmo": {"norm_weights": 0},
    "olmo2": {"qk_norm": "full"},
    "olmo3": {"qk_norm": "full"},
    "ministral3": {},
    "smollm3": {"tie_embeddings": True},
    "granite": {},
    "ernie4_5": {"tie_embeddings": True},
    "hunyuan_v1_dense": {"qk_norm": "head"},
    "seed_oss": {"qkv_bias": True},
    "glm4": {"norms_per_layer": 4},
    "stablelm": {"norm_weights": 2},
    "chatglm": {"qkv_bias": True},
    "glm": {"qkv_bias": True},
    "baichuan": {},
    "internlm2": {},
}
"""What transformers' model code adds beyond the sizes; held equal to the engine's record by a test."""
_IGNORE_BIAS = {"ernie4_5", "gpt2", "ministral3", "mistral", "mixtral", "phi", "phi3", "qwen2", "stablelm"}
"""Families whose class does not read `attention_bias`."""
_SPARSE = {"mixtral", "qwen3_moe", "gpt_oss"}
"""Families whose weights are counted by formula, but not what is quantised and adapted of their experts."""

_UNCOUNTED = {"phi": ("qk_layernorm",), "stablelm": ("qk_layernorm", "use_parallel_residual")}
"""Settings of a family that add or leave out weights, which no formula of ours counts."""

_DEFAULTS: dict[str, dict[str, int]] = {
    **{family: {"head_dim": 128} for family in ("ernie4_5", "glm", "glm4", "ministral3", "qwen3", "seed_oss")},
    **{family: {"head_dim": 256} for family in ("gemma", "gemma2")},
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208},
}
"""Sizes that a family's `config.json` may leave to transformers' defaults."""

_KEYS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "multi_query_group_num"),
    "head_dim": ("head_dim",),
    "intermediate": ("moe_intermediate_size", "intermediate_size", "n_inner", "ffn_hidden_size"),
    "vocab": ("padded_vocab_size", "vocab_size"),
    "tie_embeddings": ("tie_word_embeddings",),
    "experts": ("num_local_experts", "num_experts"),
    "experts_per_token": ("num_experts_per_tok",),
    "context": ("max_position_embeddings", "n_positions", "seq_length"),
}
"""The same size under the names the families give it, first found first taken."""


def resolve(
    model: str | Shape,
    folder: Path,
    tokenizer: str | TrainTokenizer = "auto",
    length: int = 1024,
    weigh: Weigh | None = None,
) -> ResolvedShape:
    """The shape of a run file's `model`.

    Args:
        model: A local path, a hub id, or a shape to train from scratch.
        folder: Where relative paths start.
        tokenizer: For a shape without `vocab`: what decides its vocabulary.
        length: For a shape with learned positions: how many.
        weigh: How the record of a family without a formula is made; None where only stored ones are read.
    """
    if isinstance(model, Shape):
        vocab = model.vocab or _vocabulary(tokenizer, folder)
        return ResolvedShape(from_run(model, vocab, length), "run_file")
    found = model_configs.here(model, folder)
    if found is None and (shape := _shipped(model)):
        return ResolvedShape(shape, "shipped", quantised=published_quantised(model)[0])
    found = found or model_configs.hub(model)
    if found is None:
        near = nearest(model, folder)
        advice = _no_folder(model, folder) + near
        raise StokerError("STK205", model=model, folder=folder, nearest=advice, choices=near.names)
    return _described(model, found, weigh)


def context(model: str, folder: Path) -> int | None:
    """Longest sequence that a model on this machine was made for, also where no formula counts its weights."""
    found = model_configs.here(model, folder)
    text = {**found.config, **(found.config.get("text_config") or {})} if found else {}
    stated = (text.get(name) for name in _KEYS["context"])
    return next((one for one in stated if isinstance(one, int) and one > 0), None)


def _no_folder(model: str, folder: Path) -> str:
    """That a folder is missing, where the name may mean one: what it would be in is there."""
    path = folder / model
    meant = model.startswith((".", "/", "~")) or path.parent.is_dir()
    return messages.text("model.no_folder", path=path) if meant and not path.is_dir() else ""


def can_only_be_folder(model: str, folder: Path) -> bool:
    """Whether a name is no hub's: by how it is written, or because what it would be in is there."""
    return not model_configs.is_hub_name(model) or ("/" in model and (folder / model).parent.is_dir())


def require_folder(model: str, folder: Path, word: str) -> None:
    """Refuse a path, which no hub can have, where no folder is; `word` is the run file's for it."""
    path = folder / model
    if model.startswith((".", "/", "~")) and not path.is_dir():
        raise StokerError("STK465", path=path, folder=folder, nearest=nearest(model, folder), word=word)


def nearest(model: str, folder: Path) -> ClosestNames:
    """Models that may be meant: next to the folder that is named, or shipped ones; first those with another ending."""
    known = [*_models_beside(model, folder), *shipped()]
    return closest(model, known, first=[one for one in known if _without_ending(one) == _without_ending(model)])


def _without_ending(model: str) -> str:
    """A name without what some makers write and others do not: Qwen2.5 has `-Instruct`, Qwen3 has not."""
    return re.sub(r"-(instruct|chat|it|base)$", "", model.lower())


def _models_beside(model: str, folder: Path) -> list[str]:
    """Models in the folder that a path names, written like the path."""
    with contextlib.suppress(OSError):
        found = sorted(one.parent.name for one in (folder / model).parent.glob("*/config.json"))
        return [(PurePath(model).parent / name).as_posix() for name in found]
    return []


def _described(model: str, found: FoundConfig, weigh: Weigh | None) -> ResolvedShape:
    if key := model_configs.looks_ahead(found.config):
        raise StokerError("STK245", model=model, reason=f"`{key}`")
    shape = from_config(found.config) if _has_formula(found.config) else None
    if shape is None:
        parts = model_records.stored(found.config) or (weigh(found.config) if weigh else None)
        if parts is None:
            raise StokerError("STK231", model=model, family=_family(found.config))
        shape = from_parts(parts)
    return ResolvedShape(shape, found.origin, found.stored_parameters, found.quantised)


def from_run(shape: Shape, vocab: int, length: int) -> ModelShape:
    """A run file's shape with its defaults filled in."""
    return ModelShape(
        family=shape.shape,
        layers=shape.layers,
        hidden=shape.width,
        heads=shape.heads,
        kv_heads=shape.kv_heads or shape.heads,
        head_dim=shape.width // shape.heads,
        intermediate=shape.ffn or _default_ffn(shape.width),
        vocab=vocab,
        learned_positions=length if shape.shape == "gpt2" else 0,
        context=length,
        **{**_FAMILIES[shape.shape], "tie_embeddings": shape.tied},
    )


def from_config(config: dict[str, Any]) -> ModelShape | None:
    """A `config.json` as a shape by our formulas; None where no formula of ours counts its weights."""
    text = {**config, **config["text_config"]} if "text_config" in config else config
    family = text.get("model_type", "")
    text = {key: value for key, value in {**_DEFAULTS.get(family, {}), **text}.items() if value is not None}
    sizes = {
        word: next(text[name] for name in names if name in text) for word, names in _KEYS.items() if _has(text, names)
    }
    if family not in _FAMILIES or not {"layers", "hidden", "heads", "vocab"} <= sizes.keys():
        return None
    sizes.setdefault("kv_heads", sizes["heads"])
    sizes.setdefault("head_dim", sizes["hidden"] // sizes["heads"])
    sizes.setdefault("intermediate", 4 * sizes["hidden"])
    if family == "gpt2":
        sizes["learned_positions"] = sizes["context"]
    return ModelShape(family=family, **{**_FAMILIES[family], **_biases(text), **sizes})


def from_parts(parts: ModelParts) -> ModelShape:
    """The shape of a weighed model: activations by the general block, weights by its tensors."""
    sizes = {word: value for word, value in parts.sizes if value is not None}
    hidden = sizes["hidden"]
    sizes.setdefault("heads", max(1, hidden // 64))
    sizes.setdefault("kv_heads", sizes["heads"])
    sizes.setdefault("head_dim", hidden // sizes["heads"])
    sizes.setdefault("intermediate", 4 * hidden)
    experts = {"experts": parts.experts, "experts_per_token": parts.experts_per_token}
    known = {**_FAMILIES.get(parts.family, {}), **sizes, **experts, "attention": parts.attention}
    return ModelShape(family=parts.family, parts=parts, **known)


def _has_formula(config: dict[str, Any]) -> bool:
    """Whether one language model of a dense family; a class with other towers loads those too."""
    family = _family(config)
    uncounted = any(config.get(key) for key in _UNCOUNTED.get(family, ()))
    return "text_config" not in config and family in _FAMILIES.keys() - _SPARSE and not uncounted


def _family(config: dict[str, Any]) -> str:
    return str(config.get("model_type", "?"))


def published_quantised(model: str) -> tuple[str, str]:
    """How a hub model's own files hold its weights in fewer bits, and a copy of it in 16; empty where not known."""
    kind, copy = {name.lower(): row for name, row in _data()["quantised"].items()}.get(model.lower(), ("", ""))
    return kind, copy


@functools.cache
def _data() -> dict[str, Any]:
    return dict(json.loads(resources.files("stoker.facts").joinpath("data/shapes.json").read_text(encoding="utf-8")))


@functools.cache
def shipped() -> dict[str, ModelShape]:
    """The shapes that ship with Stoker, by hub id."""
    data = _data()
    known = {field.name for field in fields(ModelShape)}
    shapes = {}
    for model, row in data["models"].items():
        sizes = {key: value for key, value in row.items() if key in known}
        shapes[model] = ModelShape(**{**_FAMILIES[row["family"]], **sizes})
    shapes |= {model: from_parts(parts) for model, parts in model_records.shipped().items()}
    return {**shapes, **{alias: shapes[model] for alias, model in data["aliases"].items()}}


def _has(config: dict[str, Any], names: tuple[str, ...]) -> bool:
    return any(name in config for name in names)


def _biases(config: dict[str, Any]) -> dict[str, bool]:
    """Biases a `config.json` states itself; some families' are in their code, not in their configuration."""
    stated: dict[str, bool] = {}
    if "attention_bias" in config and config.get("model_type") not in _IGNORE_BIAS:
        attention = bool(config["attention_bias"])
        # GLM gives its output projection no bias, whatever the key says; Seed-OSS has a key of its own for it.
        output = attention and config.get("model_type") not in ("glm", "glm4")
        stated = {"qkv_bias": attention, "output_bias": bool(config.get("attention_out_bias", output))}
    if "mlp_bias" in config:
        stated["mlp_bias"] = bool(config["mlp_bias"])
    if config.get("model_type") == "ernie4_5" and config.get("use_bias"):
        stated = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
    if config.get("use_qkv_bias"):  # StableLM 2
        stated["qkv_bias"] = True
    return stated


def _default_ffn(width: int) -> int:
    """8/3 of the width, rounded up to 64: the weights of a gated feed-forward then equal those of a plain 4x one."""
    return -(-8 * width // (3 * 64)) * 64


def _vocabulary(tokenizer: str | TrainTokenizer, folder: Path) -> int:
    """Tokens of the tokenizer that a run file names; 0 where it says `auto`."""
    if isinstance(tokenizer, TrainTokenizer):
        return tokenizer.vocab
    if tokenizer == "auto":
        return 0
    path = folder / tokenizer
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        return resolve(tokenizer, folder).shape.vocab
    content = json.loads(file.read_text(encoding="utf-8"))
    added = [int(token["id"]) + 1 for token in content.get("added_tokens", [])]
    return max([len(content["model"]["vocab"]), *added])


def _shipped(model: str) -> ModelShape | None:
    by_lower = {name.lower(): shape for name, shape in shipped().items()}
    return by_lower.get(model.lower())
