"""AdamW over weights in bf16: averages in 8 bits and stochastic rounding, by torchao (`train.precision: bf16`).

torchao's own optimizer keeps averages as tensors of its own kind, which only pickle writes, draws random bits from
wherever the generator is, and keeps averages of small weights in bf16, where the second one stops moving. Here its
arithmetic works on plain states, with a stream for each weight and update, and small weights have averages in fp32.
"""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from stoker.estimate.rounding import FULL_STATE_BELOW, ROUNDED_AT_ONCE, STATE_BLOCK
from stoker.rows.order import stream_seed

_AVERAGES = {"exp_avg": True, "exp_avg_sq": False}
"""Whether it is signed."""


class RoundedAdamW(torch.optim.Optimizer):
    """Updates a weight in fp32 and rounds it to bf16 at random, up or down by how near each is."""

    def __init__(self, groups: list[dict[str, Any]], *, seed: int, **options: Any) -> None:
        """Over groups of parameters.

        Args:
            groups: Parameters with their own options.
            seed: The run's: rounding is a function of it, of the weight's place and of its number of updates.
            options: Of all groups: `lr`, `betas`, `eps`.
        """
        super().__init__(groups, options)
        self._seed = seed

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss = None if closure is None else closure()
        every = [(group, one) for group in self.param_groups for one in group["params"]]
        # Every shape is compiled once, however many a model has.
        compiled = any(_is_compiled(parameter) for _, parameter in every)
        with torch._dynamo.utils.disable_cache_limit() if compiled else nullcontext():
            for place, (group, parameter) in enumerate(every):
                if parameter.grad is not None:
                    self._update(place, group, parameter)
        return loss

    def _update(self, place: int, group: dict[str, Any], parameter: torch.Tensor) -> None:
        state = self.state[parameter]
        if not state:
            state.update(_new(parameter))
        torch.manual_seed(stream_seed(self._seed, int(state["step"]), -1 - place))
        state["step"] += 1
        weight, gradient = parameter.detach().view(-1), parameter.grad.reshape(-1)  # type: ignore[union-attr]
        rate, (first, second) = torch.tensor(group["lr"], dtype=torch.float32), group["betas"]
        rounds = parameter.dtype is torch.bfloat16
        adam = _adam(compiled=_is_compiled(parameter))
        for start in range(0, len(weight), ROUNDED_AT_ONCE):
            part = slice(start, start + ROUNDED_AT_ONCE)
            averages = (_average(state, name, part) for name in _AVERAGES)
            decay, eps = group["weight_decay"], group["eps"]
            adam(
                *(weight[part], gradient[part], state["step"], *averages, None),
                *(rate, first, second, decay, eps),
                IS_ADAMW=True,
                BF16_STOCHASTIC_ROUND=rounds,
            )


def _is_compiled(parameter: torch.Tensor) -> bool:
    return parameter.is_cuda


@functools.cache
def _adam(*, compiled: bool) -> Any:
    """Torchao's update of one tensor; on a GPU compiled, as it does: else every operation is a kernel."""
    from torchao.optim.adam import single_param_adam

    return torch.compile(single_param_adam, fullgraph=True, dynamic=False) if compiled else single_param_adam


@functools.cache
def _coded() -> Any:
    """Torchao's tensor of 8-bit codes."""
    from torchao.optim.subclass_8bit import OptimState8bit

    return OptimState8bit


def _new(parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """States as a checkpoint holds them: codes and a scale for each block of them, or plain numbers."""
    state = {"step": torch.tensor(0.0)}
    coded = parameter.numel() >= FULL_STATE_BELOW and parameter.numel() % STATE_BLOCK == 0
    for name in _AVERAGES:
        state[name] = torch.zeros_like(parameter, dtype=torch.uint8 if coded else torch.float32)
        if coded:
            state[f"{name}_scale"] = parameter.new_zeros(parameter.numel() // STATE_BLOCK, dtype=torch.float32)
    return state


def _average(state: dict[str, torch.Tensor], name: str, part: slice) -> torch.Tensor:
    """A part of an average as torchao computes with it; what it writes is the state."""
    values = state[name].view(-1)[part]
    if f"{name}_scale" not in state:
        return values
    scales = state[f"{name}_scale"][part.start // STATE_BLOCK : part.stop // STATE_BLOCK]
    signed = _AVERAGES[name]
    average: torch.Tensor = _coded()(values, scales, _codes(values.device, signed=signed), signed, dtype=torch.float32)
    return average


@functools.cache
def _codes(device: torch.device, *, signed: bool) -> torch.Tensor:
    """The numbers that codes stand for."""
    table: torch.Tensor = _coded().zeros((STATE_BLOCK,), signed, STATE_BLOCK, device).qmap
    return table


def over(model: torch.nn.Module, *, weight_decay: float, **options: Any) -> RoundedAdamW:
    """The optimizer over a model's trained parameters; vectors are not decayed, as in the Trainer."""
    groups: dict[bool, list[torch.nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            groups.setdefault(parameter.dim() > 1, []).append(parameter)
    decayed = [{"params": some, "weight_decay": weight_decay * matrix} for matrix, some in groups.items()]
    return RoundedAdamW(decayed, **options)
