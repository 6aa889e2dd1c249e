"""From a `Step` to a runnable model: the transformers model of its shape, with adapter and dtypes; and its optimizer.

Real classes of transformers, PEFT, torch and bitsandbytes; only the 4-bit layer and the 8-bit optimizer are emulated.
"""

from collections.abc import Container
from dataclasses import replace
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights

from stoker import messages
from stoker.engine import muon
from stoker.engine.tracing import private_names
from stoker.engine.tracing.dtypes import DTYPES
from stoker.estimate.memory import Linear, linear_layers
from stoker.estimate.optimizer_state import KEPT
from stoker.estimate.step import Adapter, Step
from stoker.facts.shapes import ModelShape

_DROPOUT = 0.05
"""Any value above zero costs the same memory."""

_KINDS = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen": "qwen2",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3_text",
    "phi": "phi",
    "phi3": "phi3",
    "gpt2": "gpt2",
    "gpt_neox": "gpt_neox",
    "olmo2": "olmo2",
    "chatglm": "glm",
    "glm": "glm",
    "baichuan": "llama",
    "internlm2": "llama",
}
"""The model class traced for a family; a family not listed is traced as llama, with a note."""


def kind(shape: ModelShape) -> tuple[str, list[str]]:
    """The `model_type` of transformers that is traced, and notes on differences."""
    if shape.family in _KINDS and _KINDS[shape.family] == shape.family:
        return shape.family, []
    if shape.family == "qwen":
        return "qwen2", []
    chosen = _KINDS.get(shape.family, "qwen3" if shape.qk_norm == "head" else "llama")
    notes = [messages.text("trace.family", family=shape.family, traced=chosen)]
    if shape.experts:
        notes.append(messages.text("trace.experts", count=shape.experts_per_token))
    return chosen, notes


def has_kernels(shape: ModelShape) -> bool:
    """Whether the family supports attention kernels; gemma2's soft cap does not."""
    return private_names.supports_sdpa(config(shape, 1))


def notes(step: Step) -> list[str]:
    """How the traced model differs from the step's."""
    found = kind(step.shape)[1]
    if step.attention != "eager" and not has_kernels(step.shape):
        found.append(
            messages.text("trace.attention", family=step.shape.family, attention=step.attention.partition("_")[0])
        )
    if step.weights in ("int8", "int4"):
        found.append(messages.text("trace.weights", weights=step.weights))
    several = {
        "tensor": step.foreign.tensor_parallel,
        "pipeline": step.foreign.pipeline_parallel,
        "context": step.foreign.context_parallel,
    }
    return found + [messages.text("trace.parallel", kind=name, count=n) for name, n in several.items() if n > 1]


def config(shape: ModelShape, length: int) -> Any:
    """The configuration of a model of this shape."""
    model_type, _ = kind(shape)
    intermediate = shape.intermediate * max(1, shape.experts_per_token)
    if model_type == "gpt2":
        sizes: dict[str, Any] = {
            "n_layer": shape.layers,
            "n_embd": shape.hidden,
            "n_head": shape.heads,
            "n_inner": intermediate,
            "n_positions": max(shape.learned_positions, length),
            "attn_pdrop": 0.0,  # the other dropouts keep transformers' defaults, as in our runs
        }
    else:
        sizes = {
            "num_hidden_layers": shape.layers,
            "hidden_size": shape.hidden,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "intermediate_size": intermediate,
            "max_position_embeddings": max(shape.context or 0, length),
            "attention_dropout": 0.0,
        }
    if model_type == "llama":
        sizes |= {"attention_bias": shape.qkv_bias, "mlp_bias": shape.mlp_bias}
    if model_type == "mistral":
        sizes |= {"sliding_window": None}
    if model_type in ("phi", "phi3"):
        sizes |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0}
    unset = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    return AutoConfig.for_model(
        model_type,
        vocab_size=shape.vocab,
        tie_word_embeddings=shape.tie_embeddings,
        use_cache=False,
        **sizes,
        **unset,
    )


def model(step: Step) -> Any:
    """The model as training starts with it."""
    stored = DTYPES.get(step.weights) or DTYPES[step.compute]
    built_config = config(step.shape, step.length)
    attention = "eager" if step.attention == "eager" or not has_kernels(step.shape) else "sdpa"
    with no_init_weights():
        built = AutoModelForCausalLM.from_config(built_config, dtype=stored, attn_implementation=attention)
    built.tie_weights()
    if step.weights not in DTYPES:
        _quantise(built, step)
    if step.adapter is not None:
        built = _adapted(built, step, step.adapter)
    built.train()
    return built


def _quantise(model: Any, step: Step) -> None:
    """Quantise every linear layer but the output's, like transformers; the rest is in `outer`, as PEFT prepares it."""
    from stoker.engine.tracing.quantised import FakeLinear4bit  # bitsandbytes is optional

    output = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if _is_linear(child) and child is not output:
                setattr(module, name, FakeLinear4bit(child, step))
    for module in model.modules():
        if not isinstance(module, FakeLinear4bit):
            for name, parameter in module.named_parameters(recurse=False):
                cast = torch.nn.Parameter(parameter.detach().to(DTYPES[step.outer]), requires_grad=False)
                setattr(module, name, cast)
    model.tie_weights()
    model.is_loaded_in_4bit = True


def _is_linear(module: torch.nn.Module) -> bool:
    return type(module) is torch.nn.Linear or type(module).__name__ == "Conv1D"


def _adapted(model: Any, step: Step, adapter: Adapter) -> Any:
    from peft import LoraConfig, get_peft_model

    targets = _targets(step.shape, adapter)
    options = LoraConfig(
        r=adapter.rank,
        lora_alpha=2 * adapter.rank,
        lora_dropout=_DROPOUT if adapter.dropout else 0.0,
        target_modules=sorted(targets),
        modules_to_save=list(adapter.whole) or None,
        fan_in_fan_out=kind(step.shape)[0] == "gpt2" and step.weights in DTYPES,
        init_lora_weights=False,
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(model, options, autocast_adapter_dtype=adapter.dtype == "fp32")
    if adapter.dtype != "fp32":
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(DTYPES[adapter.dtype])
    return adapted


def _targets(shape: ModelShape, adapter: Adapter) -> set[str]:
    """Names of the adapted layers in the traced model, whose family may use other names."""
    asked = set(adapter.targets) or {one.name for one in linear_layers(shape)}
    traced = linear_layers(replace(shape, family=kind(shape)[0]))
    found = set()
    for own, theirs in zip(_by_role(linear_layers(shape)), _by_role(traced), strict=True):
        if len(own) == len(theirs):
            found |= {other for name, other in zip(own, theirs, strict=True) if name in asked}
        elif asked & set(own):
            found |= set(theirs)
    return found


def _by_role(layers: list[Linear]) -> list[list[str]]:
    """Names of the layers into attention, out of it, into the feed-forward part and out of it."""
    names = [one.name for one in layers]
    out = 3 if len(names) > 5 else 1  # separate or joined q, k, v
    return [names[:out], [names[out]], names[out + 1 : -1], [names[-1]]]


def held(model: Any) -> list[torch.Tensor]:
    """Every tensor a model holds before its first step."""
    packed = [module for module in model.modules() if type(module).__name__ == "FakeLinear4bit"]
    beside = [tensor for module in packed for tensor in module.held()]
    return [*model.parameters(), *model.buffers(), *beside]


# ---- optimizers


class Fake8bit(torch.optim.Optimizer):
    """The state of bitsandbytes' optimizers: a byte per moment and a scale per 256; paged states are off the device.

    Weights below 4,096 elements and embeddings have fp32 states, paged ones below 100,000 elements stay on the device.
    """

    def __init__(
        self,
        parameters: list[torch.nn.Parameter],
        embeddings: Container[int] = (),
        *,
        paged: bool,
        moments: int = 2,
        bits: int = 8,
    ) -> None:
        super().__init__(parameters, {})
        self.embeddings = embeddings
        self.paged = paged
        self.moments = range(1, moments + 1)
        self.bits = bits
        self.maps = [torch.empty(256), torch.empty(256)]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Create the state at the first step; the kernel works in place."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    self.state[parameter] = self._state(parameter)

    def _state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        elements = parameter.numel()
        away = self.paged and elements >= 100_000
        wide = self.bits == 32 or elements < 4096 or id(parameter) in self.embeddings
        state = {} if wide else {f"absmax{number}": torch.zeros(-(-elements // 256)) for number in self.moments}
        if not away:
            dtype = torch.float32 if wide else torch.uint8
            state |= {f"state{number}": torch.zeros_like(parameter, dtype=dtype) for number in self.moments}
        return state


def optimizer(
    step: Step, parameters: list[torch.nn.Parameter], embeddings: Container[int] = ()
) -> torch.optim.Optimizer:
    """The optimizer over the trained weights, of which some are embeddings, by their identity."""
    if step.optimizer in ("adamw", "adamw_fused"):
        fused = step.optimizer == "adamw_fused"
        return torch.optim.AdamW(parameters, lr=1e-4, fused=fused, foreach=not fused)
    if step.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=1e-4, momentum=0.5 * step.extra_moments, foreach=True)
    if step.optimizer == "adagrad":
        return torch.optim.Adagrad(parameters, lr=1e-4, foreach=True)
    if step.optimizer == "rmsprop":
        momentum, centered = 0.5 * min(1, step.extra_moments), step.extra_moments > 1
        return torch.optim.RMSprop(parameters, lr=1e-4, momentum=momentum, centered=centered, foreach=True)
    if step.optimizer == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(parameters, lr=1e-4, scale_parameter=False, relative_step=False)
    if step.optimizer == "muon":
        hidden = [one for one in parameters if one.dim() == 2 and step.shape.vocab not in one.shape]
        rest = [one for one in parameters if all(one is not other for other in hidden)]
        groups = [[{"params": some}] if some else [] for some in (hidden, rest)]
        return muon.MuonAdamW(*groups, lr=1e-4, fused=True)
    kept = KEPT[step.optimizer]
    return Fake8bit(
        parameters, () if kept.torchao else embeddings, paged=kept.paged, moments=kept.moments, bits=kept.bits
    )
