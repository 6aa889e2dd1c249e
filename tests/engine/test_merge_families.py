"""Mixtures of experts and models with a vision tower: adapted where they should be, merged into the base's layout."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import adapted_run
import pytest
import tiny_families
import torch
from safetensors.torch import load_file, save_file

from stoker.engine import adapters, generate, merge, models, tensors, weigh
from stoker.rundir import artifacts, files
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.filterwarnings("default")
ROUNDING = 1e-5


def adapted(run_dir: RunDir) -> set[str]:
    """The modules that the finished adapter has weights for."""
    tensors = load_file(run_dir.final / "adapter_model.safetensors")
    return {name.removeprefix("base_model.model.").partition(".lora_")[0] for name in tensors}


def merged_like_the_base(run_dir: RunDir, base: Path) -> set[str]:
    """Merge, compare logits with the adapted model's and layouts with the base's; returns the tensors that changed."""
    assert merge.main(run_dir.path) == 0
    folder = artifacts.aside(run_dir, "merged")
    before, after = load_file(base / "model.safetensors"), load_file(folder / "model.safetensors")
    assert {name: t.shape for name, t in after.items()} == {name: t.shape for name, t in before.items()}
    assert adapted_run.distance(run_dir, folder) < ROUNDING
    assert adapted_run.distance(run_dir, base) > 1000 * ROUNDING, "the adapter changes nothing"
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize(
    ("family", "experts"),
    [
        ("mixtral", "block_sparse_moe.experts.3.w1.weight"),  # files by expert, the model by layer
        ("gpt_oss", "mlp.experts.gate_up_proj"),  # both by layer, with biases
    ],
)
def test_adapted_experts_are_merged_in_the_layout_of_the_bases_files(tmp_path: Path, family: str, experts: str) -> None:
    base = tiny_families.save(tmp_path / "base", family)
    run_dir = adapted_run.make_run(tmp_path, base)
    layers = adapted(run_dir)
    assert {"model.layers.1.mlp.experts", "model.layers.1.mlp.experts.base_layer"} <= layers
    assert not [name for name in layers if name.endswith((".gate", ".router"))]
    changed = merged_like_the_base(run_dir, base)
    assert f"model.layers.1.{experts}" in changed
    assert not [name for name in changed if "router" in name or ".gate." in name or "norm" in name or "bias" in name]


def test_a_vision_tower_is_not_adapted_and_comes_back_unchanged(tmp_path: Path) -> None:
    base = tiny_families.save(tmp_path / "base", "gemma3")
    (base / "preprocessor_config.json").write_text('{"image_processor_type": "Gemma3ImageProcessor"}')
    run_dir = adapted_run.make_run(tmp_path, base)
    assert all(name.startswith("model.language_model.") for name in adapted(run_dir))
    changed = merged_like_the_base(run_dir, base)
    assert len(changed) == 6 * 7  # layers and their matrices
    assert not [name for name in changed if "vision" in name or "projector" in name]
    folder = artifacts.aside(run_dir, "merged")
    assert (folder / "preprocessor_config.json").read_bytes() == (base / "preprocessor_config.json").read_bytes()
    config = files.read_json(folder / "config.json")
    assert config["architectures"] == ["Gemma3ForConditionalGeneration"]
    assert config["vision_config"]["hidden_size"] == 64


def test_a_full_tune_trains_the_language_model_only() -> None:
    config = tiny_families.config("qwen3_vl")
    with torch.device("meta"):
        model = models.auto_class(config).from_config(config)
    adapters.freeze_towers(model)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, _ in model.named_parameters() if not name.startswith("model.visual.")}


def test_a_layer_that_its_class_never_calls_gets_no_adapter() -> None:
    config = tiny_families.config("jamba")
    with torch.device("meta"):
        model = models.auto_class(config).from_config(config)
    adapted = adapters.config(model, {"r": 4, "target_modules": "all-linear"}).target_modules
    linear = {name.rpartition(".")[2] for name, one in model.named_modules() if isinstance(one, torch.nn.Linear)}
    assert {"dt_proj", "in_proj", "q_proj"} <= linear
    assert {name.rpartition(".")[2] for name in adapted} >= {"in_proj", "q_proj"}
    assert not [name for name in adapted if "dt_proj" in name]


@pytest.mark.parametrize("counts", [True, False])
def test_a_class_that_denies_counting_tokens_is_asked(counts: bool) -> None:
    config = tiny_families.config("qwen3_vl")
    model = models.auto_class(config).from_config(config)
    assert model.accepts_loss_kwargs is False
    if not counts:
        forward = model.forward
        model.forward = lambda num_items_in_batch, **inputs: forward(**inputs)
    assert models.divides_by_tokens(model, "sdpa") is counts
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("family", [*tiny_families.TOWERS, "llama", "qwen3_moe"])
def test_what_is_merged_from_4_bits_is_what_the_quantiser_takes_when_it_loads(family: str) -> None:
    """With its weights tied, another tensor is the last one, which the quantiser leaves alone (Gemma 4)."""
    plan = SimpleNamespace(native=SimpleNamespace(quantization=_FOUR_BITS))
    config = tiny_families.config(family)
    assert merge._Quantized(config, torch.bfloat16, plan).names == weigh._quantised(config)  # type: ignore[arg-type]


_FOUR_BITS = {"load_in_4bit": True, "bnb_4bit_compute_dtype": "bfloat16"}


def test_an_expert_that_is_not_merged_is_found_by_the_gate(tmp_path: Path) -> None:
    base = tiny_families.save(tmp_path / "base", "mixtral")
    run_dir = adapted_run.make_run(tmp_path, base)
    assert merge.main(run_dir.path) == 0
    folder = artifacts.aside(run_dir, "merged")
    model, _ = generate.load(run_dir)
    held = tensors.compare(model, folder, "float32")
    assert (held["compared"], held["of"]) == (held["of"], held["of"])
    assert held["excess"] <= 1
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    expert = "model.layers.1.block_sparse_moe.experts.2.w3.weight"
    weights = load_file(folder / "model.safetensors")
    weights[expert] = load_file(base / "model.safetensors")[expert]
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    assert tensors.compare(model, other, "float32")["worst"] == expert
