"""Mixtures of experts and models whose class takes not every attention: what the plan decides, states and refuses."""

import pytest
from plan_case import machine, plan, processor, reason

from stoker.errors import StokerError
from stoker.facts import shapes
from stoker.messages import in_language

MIXTRAL = "mistralai/Mixtral-8x7B-v0.1"
SMALLER = "Qwen/Qwen3-30B-A3B"
SINKS = "unsloth/gpt-oss-20b-BF16"
CAPPED = "google/gemma-2-2b"
FLASH = {"flash_attn": "2.8"}


def refused(text: str, model: str, **more: object) -> StokerError:
    with pytest.raises(StokerError) as caught:
        plan(text, machine("H100", **more), model=model)
    return caught.value


def test_attention_that_only_the_eager_kernel_computes_is_computed_by_it() -> None:
    for on in (machine("H100"), machine("H100", packages=FLASH), processor()):
        made = plan("tune: {method: lora}", on, model=SINKS)
        assert (made.attention, reason(made, "attention")) == ("eager", "why.attention.eager")
        assert made.native.model["attn_implementation"] == "eager"


def test_a_class_without_torch_s_kernel_takes_flash_attention_where_it_is() -> None:
    assert plan("", model=CAPPED).attention == "eager"
    assert plan("", machine(packages=FLASH), model=CAPPED).attention == "flash_attention_2"


@pytest.mark.parametrize("asked", ["sdpa", "flash_attention_2"])
def test_attention_that_the_class_does_not_take_is_refused(asked: str) -> None:
    error = refused(f"where: {{attention: {asked}}}\ntune: {{method: lora}}", SINKS, packages=FLASH)
    assert error.code == "STK150"
    assert error.fields == {"family": "gpt_oss", "asked": asked, "able": ["eager"]}


def test_the_plan_says_how_experts_are_held_and_that_no_loss_is_added() -> None:
    said = {one.key: one.fields for one in plan("tune: {method: qlora}", machine("H100"), model=MIXTRAL).reasons}
    assert said["why.experts.packed"] == {"layers": ["`down_proj`", "`gate_up_proj`"]}
    assert "`down_proj`、`gate_up_proj`" in in_language("zh", "why.experts.packed", **said["why.experts.packed"])
    assert {"why.balance"} <= said.keys()
    assert "why.experts" not in said
    said = {one.key: one.fields for one in plan("tune: {method: lora}", machine("H100"), model=MIXTRAL).reasons}
    assert "why.experts.packed" not in said
    assert not [one for one in plan().reasons if one.key == "why.balance"]


def test_qlora_of_a_mixture_fits_a_card_that_holds_it_in_4_bits() -> None:
    made = plan("tune: {method: qlora, rank: 8}\ntrain: {batch: 8}", machine("H100"), model=SMALLER)
    assert made.fits == "yes"
    assert made.memory.parts["weights"] < 24 * 2**30


def test_experts_in_4_bits_are_not_sharded() -> None:
    error = refused("tune: {method: qlora}\nwhere: {strategy: fsdp2}\ntrain: {batch: 8}", SMALLER)
    assert (error.code, error.fields) == ("STK151", {"family": "qwen3_moe"})
    small = plan("tune: {method: qlora}\ntrain: {batch: 8}", machine("RTX4090", 2), model=MIXTRAL)
    assert (small.strategy, small.fits) == ("ddp", "no"), "sharding would fit it"
    assert plan("tune: {method: lora}\nwhere: {strategy: fsdp2}\ntrain: {batch: 8}", machine("H100", 8), model=SMALLER)


@pytest.mark.parametrize(
    ("tune", "option"),
    [
        ("", "use_dora: true"),
        ("", "lora_bias: true"),
        ("", "init_lora_weights: orthogonal"),
        (", targets: [q_proj]", "use_dora: true"),
    ],
)
def test_what_peft_does_not_do_with_experts_is_refused_before_training(tune: str, option: str) -> None:
    bare = ", target_parameters: [experts.down_proj]" if tune else ""
    text = f"tune: {{method: lora{tune}}}\nnative: {{lora: {{{option}{bare}}}}}"
    error = refused(text, MIXTRAL)
    assert (error.code, error.fields["option"]) == ("STK152", option)
    assert "down_proj" in str(error.fields["layers"])


def test_other_layers_of_a_mixture_take_what_experts_do_not() -> None:
    text = "tune: {method: lora, targets: [q_proj], dropout: 0.1}\nnative: {lora: {use_dora: true}}"
    assert plan(text, machine("H100"), model=MIXTRAL)
    assert refused("tune: {method: lora, dropout: 0.1}", MIXTRAL).code == "STK234"


def test_every_shipped_model_has_an_attention_that_runs_without_extras() -> None:
    for model, shape in shapes.shipped().items():
        assert "eager" in shape.attention, model
