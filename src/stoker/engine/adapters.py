"""Which weights of a model are trained: those of its language model, and which layers `all-linear` adapts.

PEFT's own `all-linear` knows `nn.Linear` only: it adapts routers and vision towers, and leaves out experts that are one
parameter per layer. What is said here is written into the adapter's configuration, so that PEFT loads it as it is.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

ALL = "all-linear"
_ROUTERS = ("gate", "router", "shared_expert_gate")
_UNCALLED = ("dt_proj",)
"""Layers whose weight a class reads without calling them (Jamba): an adapter there would learn nothing."""
_FUSED = 3
"""Dimensions of a parameter with one matrix for each expert."""


def config(model: Any, options: Mapping[str, Any]) -> Any:
    """PEFT's configuration of the plan's adapter for this model."""
    from peft import LoraConfig

    said = dict(options)
    if said["target_modules"] == ALL and _is_mixture(model):
        said |= _mixture_targets(model, said)
    if _is_composite(model):
        said["exclude_modules"] = _outside_text(model, said.get("exclude_modules"))
    return LoraConfig(**said)


def freeze_towers(model: Any) -> None:
    """Leave what is not the language model as it is: rows of text give it no gradient."""
    if _is_composite(model):
        text = text_prefixes(model)
        for name, parameter in model.named_parameters():
            if not name.startswith(text):
                parameter.requires_grad_(False)


def text_prefixes(model: Any) -> tuple[str, ...]:
    """Beginnings of the names of the language model's parameters, and of its head's."""
    text = (model.get_decoder(), model.get_output_embeddings())
    return tuple(f"{name}." for name, module in model.named_modules() if name and any(module is one for one in text))


def is_expert(name: str, parameter: Any) -> bool:
    """Whether a parameter holds all experts of a layer, in 4 bits or not."""
    fused = parameter.dim() == _FUSED or hasattr(parameter, "quant_state")
    return fused and name.rpartition(".")[0].endswith(".experts")


def _is_composite(model: Any) -> bool:
    return "text_config" in model.config.sub_configs


def _is_mixture(model: Any) -> bool:
    return any(name.endswith(".experts") for name, _ in model.named_modules())


def _mixture_targets(model: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Linear layers and experts without routers.

    In some families PEFT takes shared experts and dense layers, by their names, for experts of transformers 4: such a
    layer is named by its weight.
    """
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    output = model.get_output_embeddings()
    layers = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D) and module is not output and not _is_left_out(name, module)
    ]
    taken = LoraConfig(target_modules=layers)
    convert_peft_config_for_transformers(taken, model, None)
    found = (name for name, parameter in model.named_parameters() if is_expert(name, parameter))
    experts = {f"experts.{name.rpartition('.')[2]}" for name in found}
    text = text_prefixes(model) if _is_composite(model) else ("",)
    lost = {f"{name}.weight" for name in set(layers) - set(taken.target_modules) if name.startswith(text)}
    stated = options.get("target_parameters") or sorted(experts | lost)
    return {"target_modules": sorted(taken.target_modules), "target_parameters": stated or None}


def _is_left_out(name: str, module: Any) -> bool:
    return "Router" in type(module).__name__ or name.rpartition(".")[2] in (*_ROUTERS, *_UNCALLED)


def _outside_text(model: Any, excluded: list[str] | str | None) -> str:
    """A pattern of all modules outside the language model, and of those that are excluded anyway."""
    text = "|".join(re.escape(prefix) for prefix in text_prefixes(model))
    outside = f"(?!{text}).*"
    if not excluded:
        return outside
    named = excluded if isinstance(excluded, str) else rf"(.*\.)?({'|'.join(map(re.escape, excluded))})"
    return f"{outside}|{named}"
