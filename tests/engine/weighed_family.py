"""A tiny model of a family, really loaded, quantised and adapted, counted tensor by tensor."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiny_families
import torch
from peft import get_peft_model, prepare_model_for_kbit_training

from stoker.engine import adapters, experts, models

RANK = 4


@dataclass(frozen=True)
class Counts:
    """Weights by how they are held."""

    full: int
    lora: int | str
    """Trained by an adapter on all linear layers, or why PEFT refuses one."""
    quantised: int
    unquantised: int
    qlora: int | str


def counted(family: str, folder: Path) -> Counts:
    """The family's tiny model, saved and loaded as training loads it."""
    config = tiny_families.config(family)
    of = models.auto_class(config)
    torch.manual_seed(0)
    of.from_config(config).save_pretrained(folder)
    config.save_pretrained(folder)
    full = of.from_pretrained(folder, use_safetensors=True)
    packed = of.from_pretrained(
        folder,
        use_safetensors=True,
        dtype=torch.bfloat16,
        quantization_config=experts.ExpertsConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    )
    states = [weight.quant_state for weight in packed.parameters() if hasattr(weight, "quant_state")]
    rest = sum(weight.numel() for weight in packed.parameters() if not hasattr(weight, "quant_state"))
    return Counts(
        full=sum(weight.numel() for weight in full.parameters()),
        lora=_trained(full),
        quantised=sum(state.shape.numel() for state in states),
        unquantised=rest,
        qlora=_trained(prepare_model_for_kbit_training(packed)),
    )


def _trained(model: Any) -> int | str:
    options = {"r": RANK, "target_modules": adapters.ALL, "task_type": "CAUSAL_LM"}
    try:
        adapted = get_peft_model(model, experts.adapted_by(model, adapters.config(model, options)))
    except ValueError as error:
        return stable(str(error))
    return sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)


def stable(reason: str) -> str:
    """PEFT's reason without the set it prints in any order."""
    return reason.split("Incompatible", maxsplit=1)[0]
