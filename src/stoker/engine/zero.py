"""DeepSpeed's ZeRO: its optimizer state by parameter name, in the one checkpoint format, without its pickles.

DeepSpeed keeps flat partitions over all parameters; its own functions gather a parameter's state and partition it
again. Both are collective calls.
"""

from typing import Any

import torch

from stoker.engine import checkpoint
from stoker.engine.checkpoint import Take, TrainingState

_FIELDS = ("exp_avg", "exp_avg_sq")
"""AdamW's state of a parameter; other optimizers are refused with ZeRO."""


def copied_weights(model: torch.nn.Module, take: Take) -> dict[str, Any]:
    """What is taken of a model's weights, gathered; of an adapter, only its own."""
    from deepspeed.runtime.zero import GatheredParameters
    from deepspeed.utils import safe_get_full_fp32_param

    adapter = hasattr(model, "peft_config")
    whole: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            whole[name] = take(safe_get_full_fp32_param(parameter))
        elif not adapter:  # a vision tower, a router's bias: the optimizer has the others' values only
            with GatheredParameters([parameter]):
                whole[name] = take(parameter)
    return {**whole, **({} if adapter else _persistent_buffers(model, take))}


def _persistent_buffers(model: torch.nn.Module, take: Take) -> dict[str, Any]:
    """Persistent buffers; every rank has them whole."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    there = model.state_dict().items()
    return {name: take(tensor) for name, tensor in there if name not in parameters}


class ZeroState(TrainingState):
    """The training state with DeepSpeed's optimizer."""

    def gather_optimizer(self, tensors: dict[str, Any], take: Take) -> dict[str, Any]:
        """By parameter name, as every strategy writes it."""
        from deepspeed.utils import safe_get_full_optimizer_state

        parameters = {}
        step = float(self._begin()[0]["step"])
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                entry: dict[str, Any] = {"step": {"value": step}}
                for field in _FIELDS:
                    key = f"{name}/{field}"
                    tensors[key] = take(safe_get_full_optimizer_state(parameter, field))
                    entry[field] = {"tensor": key}
                parameters[name] = entry
        return {"groups": [], "parameters": parameters}

    def load_optimizer(self, index: dict[str, Any], tensors: Any) -> None:
        """Load each rank's partitions and the step count; what is loaded must equal what was saved."""
        from deepspeed.utils import safe_get_full_optimizer_state

        states = self._begin()
        if not index["parameters"]:
            return  # no update was done yet
        for name, parameter in self.model.named_parameters():
            for field in _FIELDS if name in index["parameters"] else ():
                saved = tensors.get_tensor(index["parameters"][name][field]["tensor"])
                _set(parameter, saved, field)
                # By value: stage 2 adds the ranks' parts, after which a zero has no sign.
                if not torch.equal(safe_get_full_optimizer_state(parameter, field).cpu(), saved):
                    raise checkpoint.unlike(f"{name}/{field}")
        counted = next(iter(index["parameters"].values()))["step"]
        step = tensors.get_tensor(counted["tensor"]) if "tensor" in counted else counted["value"]
        for state in states:
            state["step"] = self._counter(float(step), state["exp_avg"])

    def _inner(self) -> Any:
        return self.optimizer.optimizer  # type: ignore[attr-defined]  # DeepSpeed's holds torch's

    def _counter(self, steps: float, beside: torch.Tensor) -> Any:
        """The optimizer's step count: a tensor in torch's, an integer in DeepSpeed's own for the CPU."""
        if isinstance(self._inner(), torch.optim.AdamW):
            return torch.tensor(steps, dtype=torch.float32, device=beside.device)
        return int(steps)

    def _begin(self) -> list[dict[str, Any]]:
        """The states of the flat partitions, created as AdamW would at its first step if missing."""
        zero: Any = self.optimizer
        partitions = getattr(zero, "fp32_partitioned_groups_flat", None) or zero.single_partition_of_fp32_groups
        states = self._inner().state
        for flat in partitions:
            if not states[flat]:
                states[flat] = {field: torch.zeros_like(flat) for field in _FIELDS}
                states[flat]["step"] = self._counter(0.0, flat)
        if hasattr(zero, "_lazy_init_hp_params_optimizer_state"):
            zero._lazy_init_hp_params_optimizer_state()  # stage 2: maps parameters to their part of a partition
        return [states[flat] for flat in partitions]


def _set(parameter: Any, value: torch.Tensor, field: str) -> None:
    """Set a parameter's state: whole for stage 2, this rank's padded partition for stage 3."""
    from deepspeed.utils import safe_get_local_optimizer_state, safe_set_full_optimizer_state

    if not hasattr(parameter, "ds_id"):
        safe_set_full_optimizer_state(parameter, value, field)
        return
    part = safe_get_local_optimizer_state(parameter, field)
    first = torch.distributed.get_rank() * part.numel()
    own = value.flatten()[first : first + part.numel()]
    part.zero_()
    part.view(-1)[: own.numel()].copy_(own)
