"""What the divergence holds, counted tensor by tensor: not more than a plan reserves for it."""

import weakref
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stoker.config.run import Distill
from stoker.engine.objective import SAMPLED, TEACHER, TeacherDivergence, is_trained
from stoker.teaching.taught_step import COMPARED_BYTES, MIXED_BYTES

ROWS, LENGTH, VOCAB, WIDTH = 2, 64, 4096, 8


class Live(TorchDispatchMode):
    """Counts the bytes of tensors that are made while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, words: Any = (), options: Any = None) -> Any:
        made = function(*words, **(options or {}))
        for tensor in tree_leaves(made):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and storage._cdata not in self.known:
                self.known[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.known.pop, storage._cdata, None)
        self.peak = max(self.peak, sum(self.known.values()))
        return made


class Head:
    """The end of a model."""

    def __init__(self, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(WIDTH, VOCAB, bias=False, dtype=dtype)
        self.inner = torch.randn(ROWS, LENGTH, WIDTH, dtype=dtype, requires_grad=True)

    def __call__(self, **_: Any) -> Any:
        return type("Output", (), {"logits": self.layer(self.inner)})()


def peak(dtype: torch.dtype, beta: float | None) -> float:
    """Bytes for each position and word; without a `beta`, of a loss of logits alone."""
    head, labels = Head(dtype), torch.randint(0, VOCAB, (ROWS, LENGTH))
    with Live() as live:
        if beta is None:
            functional.cross_entropy(head().logits.float().flatten(0, 1), labels.flatten(), reduction="sum").backward()
        else:
            with torch.no_grad():
                inputs = {"labels": labels, SAMPLED: torch.zeros(ROWS, LENGTH)}
                inputs[TEACHER] = head().logits[is_trained(labels)]
            options = Distill(teacher="other", beta=beta)
            loss = TeacherDivergence(options).loss(head, inputs, torch.tensor(1), lambda *_, **__: torch.zeros(())).loss
            loss.backward()
    return live.peak / (ROWS * LENGTH * VOCAB)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("beta", [1.0, 0.0, 0.5])
def test_the_plan_reserves_what_the_divergence_holds_and_not_thrice_as_much(dtype: torch.dtype, beta: float) -> None:
    reserved = COMPARED_BYTES + (MIXED_BYTES if 0 < beta < 1 else 0) + dtype.itemsize
    needed = peak(dtype, beta) - peak(dtype, None)
    assert reserved / 3 < needed <= reserved
