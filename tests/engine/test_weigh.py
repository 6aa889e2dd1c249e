"""A model weighed on the meta device against the same model really loaded, quantised and adapted."""

from pathlib import Path

import pytest
import tiny_families
import torch
from transformers import AutoConfig
from weighed_family import RANK, counted, stable

from stoker.config import load
from stoker.engine import adapters, models, weigh
from stoker.errors import StokerError
from stoker.estimate import layers, memory
from stoker.estimate.step import Adapter
from stoker.facts import cards, model_parts, shapes
from stoker.facts.machine import Machine
from stoker.launch import programs, weighing
from stoker.plan import checks
from stoker.rundir import files

pytestmark = pytest.mark.filterwarnings("default")

_KINDS = ("llama", "gpt2", "falcon", "mixtral", "deepseek_v3", "qwen3_next", "gemma4", "nemotron_h")
"""One family of each kind; all of them are in the nightly table."""
_DENSE = (
    *("llama", "mistral", "ministral3", "qwen2", "qwen3", "gemma2", "gpt2", "phi3", "glm4", "olmo2", "olmo3"),
    *("smollm3", "granite", "ernie4_5", "hunyuan_v1_dense", "seed_oss"),
)
"""Families that the light world counts without a record."""


@pytest.mark.parametrize("family", _KINDS)
def test_weights_quantised_and_adapted_equal_those_of_the_loaded_model(family: str, tmp_path: Path) -> None:
    parts = weigh.weigh(tiny_families.config(family))
    loaded = counted(family, tmp_path)
    adapted = stable(parts.no_adapter) or parts.adapter_parameters(RANK)
    assert parts.parameters == loaded.full
    assert (adapted, adapted) == (loaded.lora, loaded.qlora)
    assert parts.quantised_parameters == loaded.quantised
    assert parts.parameters - parts.quantised_parameters == loaded.unquantised
    assert shapes.from_parts(parts).parameters() == loaded.full


@pytest.mark.parametrize("family", ["qwen3_vl", "gemma3", "llama4"])
def test_what_is_trained_in_full_is_what_the_engine_leaves_unfrozen(family: str) -> None:
    """Without towers of other modalities: text gives them no gradient."""
    config = tiny_families.config(family)
    with torch.device("meta"):
        model = models.auto_class(config).from_config(config)
    adapters.freeze_towers(model)
    trained = sum(one.numel() for one in model.parameters() if one.requires_grad)
    shape = shapes.from_parts(weigh.weigh(config))
    assert memory.trainable_parameters(shape, None) == trained < shape.parameters()
    assert sum(one.elements * one.count for one in layers.trained(shape, None)) == trained


@pytest.mark.parametrize("family", _DENSE)
def test_a_formula_equals_the_record(family: str) -> None:
    for biased in ({}, {"attention_bias": True}):
        config = tiny_families.config(family, **biased)
        parts, shape = weigh.weigh(config), shapes.from_config(config.to_dict())
        assert shape is not None
        assert shape.parameters() == parts.parameters
        assert shape.attention == parts.attention
        assert memory.trainable_parameters(shape, Adapter(rank=RANK)) == parts.adapter_parameters(RANK)
        quantised = sum(one.weights * one.count for one in layers.quantised(shape))
        assert quantised == parts.quantised_parameters
        assert {one.name for one in layers.linear_layers(shape)} == layers.adaptable(shapes.from_parts(parts))


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "rembert", "xlm-roberta"])
def test_the_class_of_an_encoder_is_refused_when_planning(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path))
    monkeypatch.setattr(programs, "run_on_folder", lambda _, folder: weigh.main(folder))
    config = AutoConfig.for_model(family, hidden_size=64, num_hidden_layers=1, num_attention_heads=4)
    with pytest.raises(StokerError, match="STK245"):
        weighing.weigh(config.to_dict())
    config.is_decoder = True
    assert not weigh.is_encoder(config)


def test_decoders_are_no_encoders_whatever_their_configuration_says() -> None:
    assert not any(weigh.is_encoder(AutoConfig.for_model(family)) for family in ("bart", "gpt_neox", "opt"))


def test_fused_experts_are_quantised_and_are_adapted_as_parameters() -> None:
    parts = weigh.weigh(tiny_families.config("mixtral"))
    experts = [group for group in parts.groups if group.role == "expert"]
    assert experts
    assert all(group.quantised for group in experts)
    assert {group.adapter.by for group in experts if group.adapter} == {"parameter"}
    assert (parts.experts, parts.experts_per_token) == (4, 2)


@pytest.mark.parametrize(
    ("family", "mixers"),
    [
        ("llama", {"full": 2}),
        ("gemma2", {"sliding": 1, "full": 1}),
        ("qwen3_next", {"linear": 3, "full": 1}),
        ("lfm2", {"conv": 1, "full": 1}),
        ("falcon_h1", {"mamba": 2, "full": 2}),
        ("nemotron_h", {"mamba": 1, "full": 1}),
        ("seed_oss", {"full": 2}),
    ],
)
def test_blocks_are_named_by_how_they_mix_tokens(family: str, mixers: dict[str, int]) -> None:
    assert dict(weigh.weigh(tiny_families.config(family)).mixers) == mixers


def test_other_towers_are_told_from_the_text() -> None:
    parts = weigh.weigh(tiny_families.config("gemma3"))
    assert {group.tower for group in parts.groups} == {"text", "vision_tower", "multi_modal_projector"}


def test_a_record_is_the_same_after_it_was_stored() -> None:
    parts = weigh.weigh(tiny_families.config("mixtral"))
    assert model_parts.from_json(model_parts.to_json(parts)) == parts


def test_what_transformers_cannot_build_is_written_as_the_reason(tmp_path: Path) -> None:
    tiny_families.config("gemma3n").save_pretrained(tmp_path)
    assert weigh.main(tmp_path) == 0
    assert "timm" in files.read_object(tmp_path / "parts.json")["problem"]
    (tmp_path / "config.json").write_text('{"model_type": "unheard_of"}', encoding="utf-8")
    assert weigh.main(tmp_path) == 0
    assert "unheard_of" in files.read_object(tmp_path / "parts.json")["problem"]


def test_an_adapter_that_peft_refuses_is_refused_when_planning_with_what_it_takes() -> None:
    shape = shapes.from_parts(weigh.weigh(tiny_families.config("mamba2")))
    card = Machine.of_card(cards.find("H100"))
    run = load.parse("model: m\ndata: {train: a}\ntune: {method: lora}\n", "run.yaml")
    with pytest.raises(StokerError, match="STK233") as caught:
        checks.check(run, card, shape)
    assert caught.value.fields["able"] == ["in_proj"]
    named = load.parse("model: m\ndata: {train: a}\ntune: {method: lora, targets: [in_proj]}\n", "run.yaml")
    checks.check(named, card, shape)
    assert memory.trainable_parameters(shape, Adapter(rank=2, targets=("in_proj",))) > 0
