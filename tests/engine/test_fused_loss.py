"""The loss without the logits is the plain loss: value, gradients, whole trainings; and it takes less memory."""

import functools
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_families
import tiny_run
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM

from stoker.engine import fused_loss, models
from stoker.errors import StokerError
from stoker.estimate import fused_rows

pytestmark = pytest.mark.filterwarnings("default")

VOCAB = 1000
ROWS = 64


@pytest.fixture
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_rows, "_BYTES", 4 * VOCAB * ROWS)
    assert fused_rows.fused_rows(VOCAB) == ROWS


def sample(dtype: torch.dtype, places: int = 300) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(places, 48, generator=generator).to(dtype).requires_grad_()
    weight = (0.1 * torch.randn(VOCAB, 48, generator=generator)).to(dtype).requires_grad_()
    labels = torch.randint(0, VOCAB, (places,), generator=generator)
    labels[::7] = -100
    return hidden, weight, labels


def plain(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(functional.linear(hidden, weight).float(), labels, reduction="sum")


@pytest.mark.usefixtures("_few_rows")
@pytest.mark.parametrize(
    ("dtype", "loss_bar", "gradient_bar"), [(torch.float32, 1e-6, 1e-5), (torch.bfloat16, 1e-6, 0.02)]
)
def test_value_and_gradients_are_those_of_the_plain_loss(
    dtype: torch.dtype, loss_bar: float, gradient_bar: float
) -> None:
    hidden, weight, labels = sample(dtype)
    expected, found = plain(hidden, weight, labels), fused_loss.summed(hidden, weight, labels)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected.item(), rel=loss_bar)
    gradients = (torch.autograd.grad(loss / 257, (hidden, weight)) for loss in (found, expected))
    for own, other in zip(*gradients, strict=True):
        assert own.dtype == dtype
        assert (own - other).abs().max() <= gradient_bar * other.abs().max()
    with torch.no_grad():
        assert fused_loss.summed(hidden, weight, labels) == found


@pytest.mark.usefixtures("_few_rows")
def test_a_scale_that_fp16_cannot_hold_scales_gradients_that_it_can() -> None:
    hidden, weight, labels = sample(torch.float16)
    (gradient,) = torch.autograd.grad(fused_loss.summed(hidden, 0.01 * weight, labels) * 2.0**16, (hidden,))
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 1


def test_the_peak_of_the_step_has_no_logits() -> None:
    """2,048 positions over 60,000 tokens: 469 MiB of logits in fp32."""

    def grown(loss: Callable[..., torch.Tensor]) -> int:
        hidden, weight = torch.randn(2048, 64, requires_grad=True), torch.randn(60_000, 64)
        labels = torch.randint(0, 60_000, (2048,))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        loss(hidden, weight, labels).backward()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    whole, fused = (_in_a_child(functools.partial(grown, one)) for one in (plain, fused_loss.summed))
    assert whole > 2 * 469 * 1024
    assert fused < whole / 2


def _in_a_child(work: Callable[[], int]) -> int:
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, str(work()).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as answer:
        return int(answer.read())


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral", "qwen3_5"])
def test_a_model_keeps_its_loss(family: str) -> None:
    made = tiny_model(family)
    before = models.small_loss(made, "eager")
    fused_loss.use(made, "eager")
    assert models.small_loss(made, "eager").item() == pytest.approx(before.item(), rel=1e-6)


@pytest.mark.parametrize("family", ["granite", "gemma2"])
def test_a_class_that_changes_its_logits_is_refused(family: str) -> None:
    with pytest.raises(StokerError, match="STK436"):
        fused_loss.use(tiny_model(family), "eager")


def tiny_model(family: str) -> Any:
    torch.manual_seed(0)
    config = tiny_families.config(family)
    return models.auto_class(config).from_config(config, attn_implementation="eager")


def test_a_model_with_a_bias_on_its_output_layer_is_refused(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_run.make_base_model(tmp_path / "base"))
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(tiny_run.VOCAB))
    with pytest.raises(StokerError, match="STK436"):
        fused_loss.use(model, "eager")
