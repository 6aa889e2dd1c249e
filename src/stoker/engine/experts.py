"""Experts in 4 bits: the tensors that hold all experts of a layer are quantised as they are loaded.

transformers 5.22 quantises `nn.Linear` only; its own door for other quantisers is used. PEFT 0.21 adapts parameters,
but on one that bitsandbytes unpacks at each use it ignores the adapter or keeps those of earlier passes; so a layer of
its own kind is registered for them. Both go when the packages do this themselves.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from bitsandbytes.functional import quantize_4bit
from peft.tuners.lora.layer import ParamWrapper, _LoraFactorsProxy
from torch.nn.utils import parametrize
from transformers import BitsAndBytesConfig
from transformers.integrations.bitsandbytes import Bnb4bitQuantize
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module
from transformers.utils.quantization_config import QuantizationMethod

from stoker.engine import adapters

_METHOD = "bitsandbytes_4bit_experts"


@register_quantization_config(_METHOD)
class ExpertsConfig(BitsAndBytesConfig):
    """bitsandbytes' options, by which transformers takes the quantiser below."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.quant_method = _METHOD


@register_quantizer(_METHOD)
class ExpertsQuantizer(Bnb4BitHfQuantizer):
    """Quantises linear layers as transformers does, and expert tensors as bitsandbytes does."""

    def param_needs_quantization(self, model: Any, param_name: str, **options: Any) -> bool:
        """Whether a tensor is held in 4 bits."""
        if super().param_needs_quantization(model, param_name, **options):
            return True
        if not adapters.is_expert(param_name, model.get_parameter_or_buffer(param_name)):
            return False
        return bool(should_convert_module(param_name.rpartition(".")[0], self.modules_to_not_convert))

    def get_quantize_ops(self) -> Any:
        """What is done to one tensor."""
        return _Quantize(self)

    def _process_model_before_weight_loading(self, model: Any, device_map: Any, **options: Any) -> None:
        model.quantization_method = QuantizationMethod.BITS_AND_BYTES  # by which others know how to treat it
        super()._process_model_before_weight_loading(model, device_map, **options)


class _Quantize(Bnb4bitQuantize):
    def convert(self, input_dict: dict[str, Any], model: Any = None, **options: Any) -> dict[str, Any]:
        """As transformers does; an expert tensor becomes its packed values, which know their state."""
        tensors = {name: value[0] if isinstance(value, list) else value for name, value in input_dict.items()}
        experts = {name: self._packed(value) for name, value in tensors.items() if adapters.is_expert(name, value)}
        linear = {name: value for name, value in tensors.items() if name not in experts}
        return {**experts, **super().convert(linear, model=model, **options)}

    def _packed(self, value: torch.Tensor) -> torch.nn.Parameter:
        stated = self.hf_quantizer.quantization_config
        data, state = quantize_4bit(
            value,
            compress_statistics=stated.bnb_4bit_use_double_quant,
            quant_type=stated.bnb_4bit_quant_type,
        )
        parameter = torch.nn.Parameter(data, requires_grad=False)
        parameter.quant_state = state  # type: ignore[attr-defined]  # as Params4bit has it
        return parameter


class _PackedExperts(ParamWrapper):
    """PEFT's low-rank adapter of a parameter that is unpacked at each use."""

    def get_param(self) -> torch.Tensor:
        """What PEFT reads of it: shape, dtype and device; the values would be unpacked for it."""
        owner, name = self.get_base_layer(), self.parameter_name
        chains = owner.parametrizations if parametrize.is_parametrized(owner, name) else None
        stored = chains[name].original if chains else owner.get_parameter(name)
        return torch.zeros((), dtype=stored.quant_state.dtype, device=stored.device).expand(stored.quant_state.shape)

    @contextmanager
    def _activate_lora(self, active_adapters: list[str]) -> Iterator[None]:
        chain = self.get_base_layer().parametrizations[self.parameter_name]
        (name,) = (one for one in active_adapters if one in self.lora_A)
        chain.append(_LoraFactorsProxy(*self.get_delta_factors(name)))
        try:
            with parametrize.cached():
                yield
        finally:
            del chain[-1]


_PackedExperts.__name__ = ParamWrapper.__name__  # by which PEFT knows that another parameter may be wrapped around it


def is_packed(parameter: Any) -> bool:
    """Whether a parameter holds experts in 4 bits."""
    return type(parameter) is torch.nn.Parameter and hasattr(parameter, "quant_state")


def adapted_by(model: Any, config: Any) -> Any:
    """PEFT's configuration for a model with packed experts, before they are unpacked at each use."""
    owners = {type(module) for module, _ in _packed(model)}
    if owners:
        config._register_custom_module(dict.fromkeys(owners, _PackedExperts))
    return config


def unpack_at_use(model: Any) -> Any:
    """Let packed experts be unpacked whenever they are read; after the adapter, whose order of layers depends on it."""
    packed = _packed(model)
    if packed:
        from bitsandbytes.nn.parametrize import replace_parameter_4bit_prequantized
    for module, name in packed:
        stored = module.get_parameter(name)
        replace_parameter_4bit_prequantized(module, name, stored.quant_state.as_dict(packed=True), stored.device)
    return model


def _packed(model: Any) -> list[tuple[Any, str]]:
    """Modules with packed experts, and the names of these in them."""
    owned = ((module, *pair) for module in model.modules() for pair in module.named_parameters(recurse=False))
    return [(module, name) for module, name, parameter in owned if name != "original" and is_packed(parameter)]
