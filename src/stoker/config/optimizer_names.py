"""The names of optimizers that `train.optimizer` takes."""

from typing import Literal

_TorchOptimizer = Literal["adamw", "muon", "adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop", "adafactor"]
_Adam8Optimizer = Literal[
    "adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit", "paged_adamw_32bit", "ademamix", "ademamix_8bit"
]
_LionOptimizer = Literal["lion_32bit", "lion_8bit", "paged_lion_32bit", "paged_lion_8bit"]
_RmspropOptimizer = Literal["rmsprop_bnb", "rmsprop_bnb_32bit", "rmsprop_bnb_8bit"]
_PagedOptimizer = Literal["paged_ademamix_32bit", "paged_ademamix_8bit", "adamw_torch_4bit", "adamw_torch_8bit"]
_OtherOptimizer = Literal["adamw_torch_xla", "adamw_torch_npu_fused", "adamw_anyprecision", "grokadamw", "stable_adamw"]
_LowrankOptimizer = Literal["galore_adamw", "galore_adamw_8bit", "galore_adafactor", "apollo_adamw", "lomo", "adalomo"]
_LayerwiseOptimizer = Literal["galore_adamw_layerwise", "galore_adamw_8bit_layerwise", "galore_adafactor_layerwise"]
_FreeOptimizer = Literal["apollo_adamw_layerwise", "schedule_free_adamw", "schedule_free_radam", "schedule_free_sgd"]
OptimizerName = Literal[
    _TorchOptimizer,
    _Adam8Optimizer,
    _LionOptimizer,
    _RmspropOptimizer,
    _PagedOptimizer,
    _OtherOptimizer,
    _LowrankOptimizer,
    _LayerwiseOptimizer,
    _FreeOptimizer,
]
"""Every name transformers knows, and two of Stoker's own; `plan.optimizers` decides which are used."""
