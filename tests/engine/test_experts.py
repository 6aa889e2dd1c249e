"""Mixtures of experts under `qlora`: the experts are in 4 bits, as the plan counts them, and adapted on top of that."""

from pathlib import Path
from typing import Any

import adapted_run
import pytest
import tiny_families
import tiny_run
import torch
import weighed_here
from bitsandbytes.functional import dequantize_4bit
from peft import get_peft_model
from transformers import AutoConfig

from stoker.engine import adapters, experts, generate, merge, models, tensors, weigh
from stoker.estimate import layers, memory
from stoker.estimate.step import Adapter
from stoker.facts import shapes
from stoker.plan.plan import Plan
from stoker.rundir import artifacts, files
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.filterwarnings("default")
FAMILIES = ("mixtral", "qwen3_moe", "gpt_oss")
RANK = 4
ROUNDING = 1e-5


def make_run(folder: Path, family: str) -> RunDir:
    base = weighed_here.keep(tiny_families.save(folder / "base", family))
    text = f"""
model: {base}
data: {{train: rows.jsonl, length: 64, pack: false}}
tune: {{method: qlora, rank: {RANK}}}
train: {{batch: 4, steps: 3, learning_rate: 1e-2}}
"""
    return tiny_run.make_run(folder, text, tiny_run.random_rows(12, seed=5, longest=40))


def built(run_dir: RunDir) -> tuple[Any, Plan]:
    plan = files.read_record(run_dir.plan_file, Plan)
    return models.build(run_dir.run(), plan, run_dir.folder()), plan


def unpacked(run_dir: RunDir, plan: Plan) -> Any:
    """The same base with every 4-bit weight written out, and PEFT's own layers on it."""
    packed = models.runnable(models.load_base(run_dir.run(), plan, run_dir.folder()), plan)
    free = plan.model_copy(update={"native": plan.native.model_copy(update={"quantization": {}})})
    plain = models.load_base(run_dir.run(), free, run_dir.folder())
    with torch.no_grad():
        for path, module in packed.named_modules():
            if type(module).__name__ == "Linear4bit":
                value = dequantize_4bit(module.weight.data, module.weight.quant_state)
                plain.get_submodule(path).weight.copy_(value)
            elif path.endswith(".experts"):
                for name in ("gate_up_proj", "down_proj"):
                    plain.get_submodule(path).get_parameter(name).copy_(getattr(module, name))
    return get_peft_model(plain, adapters.config(plain, plan.native.lora))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_plan_the_record_and_the_loaded_model_count_the_same(tmp_path: Path, family: str) -> None:
    run_dir = make_run(tmp_path, family)
    model, plan = built(run_dir)
    parts = weigh.weigh(model.get_base_model().config)
    held = dict(model.named_parameters())
    packed = [one.quant_state.shape.numel() for one in held.values() if hasattr(one, "quant_state")]
    frozen = [one for one in held.values() if not one.requires_grad and not hasattr(one, "quant_state")]
    trained = sum(one.numel() for one in held.values() if one.requires_grad)
    assert sum(packed) == parts.quantised_parameters
    assert sum(packed) + sum(one.numel() for one in frozen) == parts.parameters == plan.model.parameters
    assert trained == parts.adapter_parameters(RANK) == plan.model.trainable_parameters
    assert {one.dtype for one in frozen} == {torch.float32}, "the plan counts what is not packed in 32 bits"
    assert all(group.quantised for group in parts.fused_experts)
    assert plan.attention in parts.attention
    shape = shapes.from_parts(parts)
    assert layers.trainable_parameters(shape, Adapter(rank=RANK)) == trained
    assert memory.trainable_parameters(shape, Adapter(rank=RANK)) == trained


@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_on_packed_experts_computes_as_on_unpacked_ones(tmp_path: Path, family: str) -> None:
    run_dir = make_run(tmp_path, family)
    model, plan = built(run_dir)
    plain = unpacked(run_dir, plan)
    assert {name for name, one in model.named_parameters() if one.requires_grad} == {
        name for name, one in plain.named_parameters() if one.requires_grad
    }
    theirs = dict(plain.named_parameters())
    torch.manual_seed(7)
    for name, one in model.named_parameters():
        if one.requires_grad:
            one.data += 0.05 * torch.randn_like(one)
            theirs[name].data.copy_(one.data)
    ids = torch.arange(3, 35)[None]
    for _ in range(2):  # a second pass finds nothing of the first
        losses = [one.train()(input_ids=ids, labels=ids).loss for one in (model, plain)]
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=ROUNDING)
    for loss in losses:
        loss.backward()
    for name, one in model.named_parameters():
        if one.requires_grad:
            assert one.grad is not None
            assert one.grad.abs().max() > 0, name
            torch.testing.assert_close(one.grad, theirs[name].grad, rtol=1e-4, atol=1e-6)


def test_an_adapter_on_packed_experts_trains_and_merges(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, "qwen3_moe")
    assert tiny_run.train(run_dir) == 0, (run_dir.path / "child.log").read_text()[-3000:]
    assert merge.main(run_dir.path) == 0
    folder = artifacts.aside(run_dir, "merged")
    assert adapted_run.distance(run_dir, folder) < ROUNDING
    assert adapted_run.distance(run_dir, Path(run_dir.run().model)) > 10 * ROUNDING, "nothing was learned"
    model, _ = generate.load(run_dir)
    held = tensors.compare(model, folder, "float32")
    assert held["compared"] == held["of"]
    assert held["excess"] <= 1


@pytest.mark.parametrize("family", ["qwen2_moe", "qwen3_next", "deepseek_v3", "glm4_moe"])
def test_shared_experts_and_dense_layers_get_an_adapter_and_routers_do_not(family: str) -> None:
    """Also where PEFT takes their names for those of experts."""
    parts = weigh.weigh(tiny_families.config(family))
    inner = [one for one in parts.groups if one.layer in ("gate_proj", "up_proj", "down_proj") and len(one.shape) == 2]
    assert len(inner) >= 3
    assert all(one.adapter for one in inner)
    assert not any(one.adapter for one in parts.groups if one.role == "router" or "expert_gate" in one.name)


def test_experts_that_are_to_stay_are_left_alone(tmp_path: Path) -> None:
    """As for linear layers: `llm_int8_skip_modules` names what is not quantised."""
    base = tiny_families.save(tmp_path / "base", "mixtral")
    options = {"load_in_4bit": True, "llm_int8_skip_modules": ["experts"]}
    of = models.auto_class(AutoConfig.from_pretrained(base))
    model = of.from_pretrained(base, quantization_config=experts.ExpertsConfig(**options))
    held = dict(model.named_parameters())
    assert not any(experts.is_packed(one) for one in held.values())
    assert any(type(one).__name__ == "Params4bit" for one in held.values())
