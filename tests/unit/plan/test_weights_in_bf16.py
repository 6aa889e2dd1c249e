"""`train.precision: bf16`: what it saves, figured by hand, where it runs, and what it does not go with."""

import pytest
from plan_case import SEVEN, machine, plan, processor, reason

from stoker.config import load
from stoker.errors import StokerError
from stoker.plan import checks

BF16 = "train: {precision: bf16}\n"
SMALLER = "Qwen/Qwen2.5-1.5B"


@pytest.mark.parametrize(("model", "card"), [(SMALLER, "RTX4090"), (SEVEN, "A100-80-SXM4")])
def test_a_model_that_is_too_large_in_fp32_fits(model: str, card: str) -> None:
    """16 bytes a weight are more than the card has: 1.54 billion take 24.7 GB, 7.62 billion 122."""
    sizes = "length: 2048"
    assert plan("", machine(card), model=model, sizes=sizes).fits == "no"
    made = plan(BF16, machine(card), model=model, sizes=sizes)
    assert made.sure
    assert (made.precision, reason(made, "precision")) == ("bf16", "why.precision.weights")
    assert (made.native.trainer["optim"], made.native.model["dtype"]) == ("adamw_torch_8bit", "bfloat16")
    assert not made.native.trainer["bf16"], "there is nothing to cast"


def test_its_figures_by_hand() -> None:
    """Two bytes for a weight, two for its gradient, two for both averages, with an fp32 scale for each 256 codes."""
    made = plan(f"{BF16}where: {{micro: 1}}\n", machine("A100-80-SXM4"), model=SEVEN, sizes="length: 1024")
    weights = made.model.parameters
    assert made.memory.parts["weights"] == pytest.approx(2 * weights, rel=0.005)
    assert made.memory.parts["optimizer"] == pytest.approx(2 * weights * (1 + 4 / 256), rel=0.005)
    assert made.memory.parts["gradients"] == pytest.approx(2 * weights, rel=0.02)
    assert made.disk_parts["finished"] == 2 * weights
    saved = 2 * weights + 2 * weights * (1 + 4 / 256) + (16 << 20)
    assert made.disk_parts["checkpoints"] == pytest.approx(4 * saved, rel=0.001), "three are kept, one is written"


def test_it_is_only_taken_where_it_is_asked_for() -> None:
    made = plan("", machine("RTX4090"), model=SMALLER)
    assert made.native.model["dtype"] == "float32"
    assert made.native.trainer["bf16"]


def test_a_model_from_scratch_is_built_in_it_and_a_cpu_computes_in_it() -> None:
    shape = "{shape: llama, layers: 2, width: 64, heads: 2}\ntokenizer: {train: bpe, vocab: 300}"
    made = plan(BF16, processor(), model=shape)
    assert (made.precision, made.native.model["dtype"]) == ("bf16", "bfloat16")
    assert "dtype" not in plan("", processor(), model=shape).native.model


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (f"{BF16}tune: {{method: lora}}\n", "tune.method"),
        ("train: {precision: bf16, optimizer: muon}\n", "train.optimizer"),
        (f"{BF16}where: {{precision: fp32}}\n", "where.precision"),
    ],
)
def test_what_it_does_not_go_with_is_named(text: str, word: str) -> None:
    """When the run file is read: nothing is prepared before it is said."""
    with pytest.raises(StokerError, match="STK246") as caught:
        load.parse(f"model: {SMALLER}\ndata: {{train: a.jsonl}}\n{text}", "run.yaml")
    assert (caught.value.fields["word"], caught.value.where) == (word, "run.yaml:3: train.precision")


def test_a_card_without_bf16_and_shards_are_refused() -> None:
    with pytest.raises(StokerError, match="STK210"):
        plan(BF16, machine("T4"))
    with pytest.raises(StokerError, match="STK216"):
        plan(f"{BF16}where: {{strategy: fsdp2}}\n", machine("RTX4090", 2))
    assert plan(BF16, machine("RTX4090", 2)).strategy == "ddp"


def test_torchao_is_required_here_and_brought_elsewhere() -> None:
    here = machine("RTX4090", packages={"torch": "2.13", "tensorboard": "2"}, examined=True)
    with pytest.raises(StokerError, match="STK215") as caught:
        plan(BF16, here)
    assert caught.value.fields["package"] == "torchao"
    assert '"stoker[bf16]"' in caught.value.hint
    run = load.parse(f"model: {SMALLER}\ndata: {{train: a.jsonl}}\n{BF16}", "run.yaml")
    assert checks.extra_packages(run) == ("torchao",)
