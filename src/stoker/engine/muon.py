"""torch's Muon for hidden matrices and its AdamW for the rest, as the one optimizer that a trainer holds.

transformers 5.22 has no name for Muon; it takes a factory (`optimizer_cls_and_kwargs`). Both optimizers are torch's
own and share this one's groups and states, so that schedules and checkpoints see all parameters.
"""

from collections.abc import Callable
from typing import Any

import torch

Groups = list[dict[str, Any]]


class MuonAdamW(torch.optim.Optimizer):
    """Updates hidden matrices by Muon, everything else by AdamW."""

    def __init__(self, matrices: Groups, rest: Groups, *, lr: float, **adamw: Any) -> None:
        """Split by group: a group belongs to one of the two.

        Args:
            matrices: Groups of two-dimensional parameters.
            rest: Groups of the others.
            lr: Learning rate of both: Muon's updates are scaled to the size of AdamW's.
            adamw: Options of AdamW.
        """
        # Muon decays every matrix; the groups say how much.
        muon = torch.optim.Muon(matrices, lr=lr, adjust_lr_fn="match_rms_adamw") if matrices else None
        others = torch.optim.AdamW(rest, lr=lr, **adamw) if rest else None
        self._parts = [one for one in (muon, others) if one is not None]
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load into both."""
        super().load_state_dict(state_dict)
        self._share()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss = None if closure is None else closure()
        for part in self._parts:
            part.step()
        return loss

    def _share(self) -> None:
        """Both work on this optimizer's groups and states."""
        groups = iter(self.param_groups)
        for part in self._parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state


def over(model: torch.nn.Module, *, weight_decay: float, **options: Any) -> MuonAdamW:
    """The optimizer over a model's trained parameters; vectors are not decayed, as in the Trainer."""
    tables = _tables(model)
    hidden: list[torch.nn.Parameter] = []
    rest: dict[bool, list[torch.nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dim() == 2 and id(parameter) not in tables:
            hidden.append(parameter)
        elif parameter.requires_grad:
            rest.setdefault(parameter.dim() > 1, []).append(parameter)
    matrices = [{"params": hidden, "weight_decay": weight_decay}] if hidden else []
    others = [{"params": some, "weight_decay": weight_decay * decayed} for decayed, some in rest.items()]
    return MuonAdamW(matrices, others, **options)


def _tables(model: torch.nn.Module) -> set[int]:
    """Embeddings, and the output layer over the vocabulary."""
    found = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    head = model.get_output_embeddings()  # type: ignore[operator]  # transformers' and PEFT's models have it
    found += list(head.modules()) if head is not None else []
    return {id(parameter) for module in found for parameter in module.parameters(recurse=False)}
