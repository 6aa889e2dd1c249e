"""What `stoker prove` measures inside torch: kernels against a reference, waits by line."""

import warnings
from pathlib import Path

import torch

from stoker.engine import attention_kernels, observed_training
from stoker.prove import kernels
from stoker.rundir import files

CPU = torch.device("cpu")


def test_the_kernels_of_this_machine_compute_attention_and_others_say_why_not(tmp_path: Path) -> None:
    assert attention_kernels.main(tmp_path) == 0
    found = files.read_object(tmp_path / "attention_kernels.json")
    assert kernels.judged(found).outcome == "passed"
    assert found["eager"]["ran"]
    assert found["sdpa_math"]["ran"]
    assert all(one["reason"] for one in found.values() if not one["ran"])


def test_a_kernel_that_looks_ahead_is_found() -> None:
    def ahead(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return (query @ key.transpose(-1, -2) / 8).softmax(-1) @ value

    found = kernels.judged(attention_kernels.tried(CPU, {"ahead": ahead, "eager": attention_kernels.eager}))
    assert (found.outcome, "ahead" in found.reason, "eager" in found.reason) == ("failed", True, False)


def test_a_kernel_whose_gradient_alone_is_wrong_is_found() -> None:
    def without_values(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return attention_kernels.eager(query, key, value * 0.5 + (value * 0.5).detach())

    assert kernels.judged(attention_kernels.tried(CPU, {"half": without_values})).outcome == "failed"


def test_waits_are_counted_by_line_and_other_warnings_are_not() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for line in (10, 10, 20):
            message = "called a synchronizing CUDA operation (Triggered internally at ...)"
            warnings.warn_explicit(message, UserWarning, "/opt/lib/site-packages/torch/optim/adamw.py", line)
        warnings.warn("something else", stacklevel=1)
    assert observed_training.synchronisations(said) == {
        "synchronisations": 3,
        "places": {"torch/optim/adamw.py:10": 2, "torch/optim/adamw.py:20": 1},
    }
