"""When the loss is computed without all logits at once, and what that is worth."""

import pytest
from plan_case import SEVEN, machine, plan, processor, reason

from stoker.errors import StokerError

LORA = "tune: {method: lora}\n"


def test_a_gpu_gets_the_fused_loss_and_a_cpu_the_plain_one() -> None:
    made = plan(LORA, machine("RTX4090"), model=SEVEN)
    assert (made.loss, reason(made, "loss")) == ("fused", "why.loss.fused")
    there = plan("", processor())
    assert (there.loss, reason(there, "loss")) == ("plain", "why.loss.cpu")


def test_it_saves_the_logits() -> None:
    with_logits, without = (
        plan(
            f"tune: {{method: qlora}}\nwhere: {{micro: 1, loss: {loss}}}\n",
            machine("RTX4090"),
            model=SEVEN,
            sizes="length: 2048",
        )
        for loss in ("plain", "fused")
    )
    assert with_logits.memory.peak_allocated_bytes - without.memory.peak_allocated_bytes > 2.5 * 2**30
    assert without.memory.parts["logits"] < with_logits.memory.parts["logits"] / 3


def test_a_model_with_one_output_has_no_logits() -> None:
    pairs, scored = (
        plan(
            f"{LORA}train: {{objective: {name}}}\n", machine("RTX4090"), model=SEVEN, sizes="length: 1024, pack: false"
        )
        for name in ("simpo", "reward")
    )
    assert reason(scored, "loss") == "why.loss.scores"
    assert scored.memory.parts["logits"] < pairs.memory.parts["logits"] / 3


@pytest.mark.parametrize(
    ("text", "model", "named"),
    [
        ("", "ibm-granite/granite-3.3-2b-base", "granite"),
        ("", "google/gemma-2-27b", "gemma2"),
        ("where: {strategy: zero3}\n", SEVEN, "zero3"),
        ("where: {compile: on}\n", SEVEN, "where.compile"),
        ("native: {trainer: {label_smoothing_factor: 0.1}}\n", SEVEN, "label_smoothing_factor"),
        ("native: {lora: {modules_to_save: [lm_head]}}\n", SEVEN, "lm_head"),
    ],
)
def test_what_needs_the_logits_keeps_them_and_is_named(text: str, model: str, named: str) -> None:
    made = plan(LORA + text, machine("A100-80-SXM4", 2), model=model)
    assert made.loss == "plain"
    (said,) = [one.text for one in made.reasons if one.about == "loss"]
    assert named in said
    asked = text.replace("where: {", "where: {loss: fused, ") if "where" in text else f"{text}where: {{loss: fused}}\n"
    with pytest.raises(StokerError, match="STK239"):
        plan(LORA + asked, machine("A100-80-SXM4", 2), model=model)


def test_an_adapter_on_the_output_layer_keeps_the_plain_loss() -> None:
    made = plan("tune: {method: lora, targets: [q_proj, lm_head]}\n", machine("RTX4090"), model=SEVEN)
    assert made.loss == "plain"


def test_ligers_kernel_is_taken_where_it_is_asked_for() -> None:
    words = "native: {trainer: {use_liger_kernel: true}}\n"
    assert plan(LORA + words, machine("RTX4090"), model=SEVEN).loss == "liger"
    with pytest.raises(StokerError, match="STK239"):
        plan(f"{LORA}{words}where: {{loss: plain}}\n", machine("RTX4090"), model=SEVEN)
