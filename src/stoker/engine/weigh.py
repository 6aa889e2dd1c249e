"""Weighs a model: builds it on the meta device from its own class and records every tensor (`facts.model_parts`).

`weigh(config)` in process, or `python -m stoker.engine.weigh FOLDER`: reads FOLDER/config.json, writes
FOLDER/parts.json. What is quantised is decided by transformers' quantiser, what an adapter gets by PEFT.
"""

import copy
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig
from transformers.initialization import no_tie_weights
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.auto import AutoHfQuantizer

from stoker.engine import adapters, experts, models
from stoker.errors import EXIT_DONE
from stoker.facts import model_parts
from stoker.facts.model_parts import TEXT, ModelParts, Reach, Role, WeightGroup
from stoker.rundir import files

_PACKAGES = ("transformers", "peft", "bitsandbytes")
_RANK = 8
_SIZES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers",),
    "hidden": ("hidden_size",),
    "heads": ("num_attention_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "num_attention_heads", "num_heads"),
    "head_dim": ("head_dim",),
    "vocab": ("vocab_size",),
    "context": ("max_position_embeddings",),
}
"""Sizes under transformers' own names; a configuration translates its family's."""
_INNER = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "mlp_dim")
_EXPERT_INNER = ("moe_intermediate_size", "expert_ffn_hidden_size")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts")
_MIXERS = (
    ("mamba", "mamba"),
    ("mixer", "mamba"),
    ("deltanet", "linear"),
    ("deltaattention", "linear"),
    ("lightningattention", "linear"),
    ("shortconv", "conv"),
    ("attention", "full"),
    ("attn", "full"),
)
"""Kinds of token mixing by a word of the module's class."""


def weigh(config: Any) -> ModelParts:
    """A configuration's model by its tensors."""
    model = build(config)
    quantised = _quantised(config)
    reached, refused = _adapters(config)
    text = _stated(model.config.get_text_config(decoder=True))
    roles = _roles(model)
    towers = _Towers(model)
    groups: Counter[WeightGroup] = Counter()
    for name, weight in model.named_parameters():
        groups[
            WeightGroup(
                name=_numberless(name),
                shape=tuple(weight.shape),
                count=1,
                role=roles[name],
                tower=towers.of(name),
                quantised=name in quantised,
                adapter=reached.get(name),
            )
        ] += 1
    routed = _first(text, _EXPERTS) if "expert" in roles.values() else 0
    tied = tuple(sorted({(_numberless(left), _numberless(right)) for left, right in _tied(model)}))
    return ModelParts(
        family=text["model_type"],
        model_class=type(model).__name__,
        sizes=tuple({**_sizes(text, experts=bool(routed)), "tie_embeddings": bool(tied)}.items()),
        groups=tuple(_counted(group, count) for group, count in groups.items()),
        mixers=tuple(_mixers(model, text).items()),
        tied=tied,
        experts=routed,
        experts_per_token=_first(text, _PER_TOKEN) if routed else 0,
        attention=_kernels(config, model),
        no_adapter=refused,
        made_with=tuple((package, metadata.version(package)) for package in _PACKAGES),
    )


def build(config: Any) -> Any:
    """The model without memory, from the class that training loads."""
    with torch.device("meta"):
        return models.auto_class(config).from_config(config, trust_remote_code=False)


def is_encoder(config: Any) -> bool:
    """Whether its class predicts masked tokens too, and is not told to be a decoder; some tell themselves so."""
    stated = build(copy.deepcopy(config)).config.to_dict()
    told = any(stated.get(key) for key in ("is_decoder", "causal"))
    return type(config) in MODEL_FOR_MASKED_LM_MAPPING and not told


def _kernels(config: Any, model: Any) -> tuple[str, ...]:
    """Attention kernels that transformers takes for this class; for some it has flash attention of its own only."""
    flash = model._supports_flash_attn and not model._compatible_flash_implementations
    able = {"flash_attention_2": flash, "sdpa": _takes_sdpa(config), "eager": True}
    return tuple(kernel for kernel in model_parts.KERNELS if able[kernel])


def _takes_sdpa(config: Any) -> bool:
    """Whether it is refused: by the class itself, or by the class of a tower."""
    try:
        with torch.device("meta"):
            models.auto_class(config).from_config(copy.deepcopy(config), attn_implementation="sdpa")
    except ValueError:
        return False
    return True


def _quantised(config: Any) -> set[str]:
    """Tensors that the quantiser takes, once it has replaced the layers."""
    with no_tie_weights():  # as `from_pretrained` does: the quantiser leaves the last tensor alone
        model = build(config)
    quantizer = AutoHfQuantizer.from_config(experts.ExpertsConfig(load_in_4bit=True), pre_quantized=False)
    quantizer.preprocess_model(model, device_map=None)
    return {name for name, _ in model.named_parameters() if quantizer.param_needs_quantization(model, name)}


def _adapters(config: Any) -> tuple[dict[str, Reach], str]:
    """What an adapter on all linear layers reaches, by tensor; where PEFT refuses, why, and what it adapts by layer."""
    try:
        return _adapted(config, adapters.ALL), ""
    except (TypeError, ValueError) as error:
        refused = " ".join(str(error).split())
    found: dict[str, Reach] = {}
    model = build(config)
    linears = {path: module for path, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    inner = (path for path, module in linears.items() if module is not model.get_output_embeddings())
    for name in sorted({path.rpartition(".")[2] for path in inner}):
        with suppress(TypeError, ValueError):
            found |= _adapted(config, [name])
    return found, refused


def _adapted(config: Any, targets: str | list[str]) -> dict[str, Reach]:
    from peft import get_peft_model
    from peft.tuners.lora import LoraLayer

    model = build(config)
    names = {id(weight): name for name, weight in model.named_parameters()}
    options = {"r": _RANK, "target_modules": targets, "task_type": "CAUSAL_LM"}
    with torch.device("meta"):
        adapted = get_peft_model(model, adapters.config(model, options))
    return dict(_reached(layer, names) for layer in adapted.modules() if isinstance(layer, LoraLayer))


def _reached(layer: Any, names: dict[int, str]) -> tuple[str, Reach]:
    bare = hasattr(layer, "parameter_name")
    weight = layer.get_param() if bare else layer.get_base_layer().weight
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    return names[id(weight)], Reach(
        inputs=down.shape[1],
        outputs=up.shape[0],
        ranks=down.shape[0] // _RANK,
        by="parameter" if bare else "module",
    )


def _roles(model: Any) -> dict[str, Role]:
    """The role of every tensor, by the class of its module and its place."""
    return {name: role for path, module in model.named_modules() for name, role in _own_roles(model, path, module)}


def _own_roles(model: Any, path: str, module: Any) -> Iterator[tuple[str, Role]]:
    for name, weight in module.named_parameters(recurse=False):
        yield f"{path}.{name}" if path else name, _role(model, path, module, weight)


def _role(model: Any, path: str, module: Any, weight: Any) -> Role:
    kind, last = type(module).__name__.lower(), path.rpartition(".")[2]
    if module is model.get_output_embeddings():
        return "head"
    if isinstance(module, torch.nn.Embedding):
        return "embedding"
    if "router" in kind or "router" in last or last == "gate":
        return "router"
    if re.search(r"\bexperts\b", path) or "experts" in kind:
        return "expert"
    if isinstance(module, torch.nn.Linear | Conv1D):
        return "linear"
    return "norm" if "norm" in kind and weight.dim() == 1 else "other"


class _Towers:
    """Which part of a model a tensor belongs to."""

    def __init__(self, model: Any) -> None:
        decoder, head = model.get_decoder(), model.get_output_embeddings()
        self._text = [f"{path}." for path, module in model.named_modules() if module in (decoder, head) and path]
        self._composite = "text_config" in model.config.sub_configs

    def of(self, name: str) -> str:
        """`text`, or the name of the module next to the language model."""
        if not self._composite or name.startswith(tuple(self._text)):
            return TEXT
        beside = self._text[0].count(".") - 1
        return name.split(".")[beside]


def _tied(model: Any) -> Iterator[tuple[str, str]]:
    kept = {id(weight): name for name, weight in model.named_parameters()}
    for name, weight in model.named_parameters(remove_duplicate=False):
        if kept[id(weight)] != name:
            yield name, kept[id(weight)]


def _stated(text: Any) -> dict[str, Any]:
    """A configuration as a dictionary, with the general names next to its family's own."""
    # Some configurations have the number of blocks as a property of their list, and do not write it.
    stated = {"num_hidden_layers": text.num_hidden_layers, **text.to_dict()}
    return {**stated, **{word: stated[own] for word, own in text.attribute_map.items() if own in stated}}


def _sizes(text: dict[str, Any], *, experts: bool) -> dict[str, int | None]:
    """The configuration's own words for the sizes of a shape."""
    inner = (_EXPERT_INNER + _INNER) if experts else _INNER
    return {word: _first(text, names) or None for word, names in {**_SIZES, "intermediate": inner}.items()}


def _first(text: dict[str, Any], names: tuple[str, ...]) -> int:
    """The first of these numbers that a configuration states; of a list by layer, the largest; 0 for none."""
    value = next((text[name] for name in names if text.get(name)), 0)
    return max(map(int, value)) if isinstance(value, list | tuple) else int(value)


def _mixers(model: Any, text: dict[str, Any]) -> dict[str, int]:
    """How many blocks of the language model mix tokens in which way."""
    decoder = model.get_decoder()
    blocks = next(module for module in decoder.modules() if isinstance(module, torch.nn.ModuleList))
    kinds = text.get("layer_types") or []
    found: Counter[str] = Counter()
    for number, block in enumerate(blocks):
        told = kinds[number] if number < len(kinds) else ""
        found.update(_block_mixers(block, told))
    return dict(found)


def _block_mixers(block: Any, told: str) -> set[str]:
    """The kinds of one block; sliding and chunked windows are told by the configuration."""
    words = [type(module).__name__.lower() for _, module in block.named_children()]
    kinds = {next((kind for word, kind in _MIXERS if word in name), "") for name in words} - {""}
    window = next((window for window in ("sliding", "chunked") if window in told), "")
    return {window if kind == "full" and window else kind for kind in kinds}


def _counted(group: WeightGroup, count: int) -> WeightGroup:
    return WeightGroup(**{**vars(group), "count": count})


def _numberless(name: str) -> str:
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def main(folder: Path) -> int:
    """Weigh the model of FOLDER/config.json, or write why transformers cannot build it."""
    try:
        config = _config(folder)
        record = {"encoder": True} if is_encoder(config) else model_parts.to_json(weigh(config))
    except (ImportError, KeyError, ValueError) as error:
        record = {"problem": " ".join(str(error).split())}
    files.write_json(folder / "parts.json", record)
    return EXIT_DONE


def _config(folder: Path) -> Any:
    return AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
