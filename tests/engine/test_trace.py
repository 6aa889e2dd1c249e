"""The oracle against a real training step on this CPU, as torch's own profiler sees its allocator."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from real_step import measured_peak
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore

from stoker.engine import trace as program
from stoker.engine.trace import trace
from stoker.engine.tracing import building, patches, sharded
from stoker.engine.tracing.ledger import Ledger
from stoker.estimate import step as steps_of
from stoker.estimate.step import Adapter, Foreign, Step
from stoker.facts.shapes import ModelShape

pytestmark = pytest.mark.filterwarnings("default")

BAR = 0.015

LLAMA = ModelShape(family="llama", layers=3, hidden=256, heads=8, kv_heads=8, head_dim=32, intermediate=704, vocab=4000)
QWEN = replace(LLAMA, family="qwen2", kv_heads=2, qkv_bias=True)
QWEN3 = replace(LLAMA, family="qwen3", kv_heads=2, qk_norm="head")
MISTRAL = replace(LLAMA, family="mistral", kv_heads=4)
GEMMA = replace(LLAMA, family="gemma", tie_embeddings=True)
PHI3 = replace(LLAMA, family="phi3")
GPT = replace(
    LLAMA,
    family="gpt2",
    intermediate=1024,
    tie_embeddings=True,
    gated_mlp=False,
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    norm_weights=2,
    learned_positions=256,
)
NEOX = replace(GPT, family="gpt_neox", tie_embeddings=False, learned_positions=0)


def step(shape: ModelShape = LLAMA, **words: Any) -> Step:
    told: dict[str, Any] = {"micro": 2, "length": 128, "weights": "fp32", "compute": "fp32", "autocast": False}
    return Step(shape=shape, **{**told, **words})


MIXED = {"compute": "bf16", "autocast": True}
HALF = {"weights": "bf16", "compute": "bf16"}
QLORA = {"weights": "nf4_double", "compute": "bf16", "adapter": Adapter(rank=8)}

CASES = {
    "full fp32": step(),
    "full fp32 checkpointed": step(recompute="full"),
    "full fp32 fused optimizer": step(optimizer="adamw_fused"),
    "full fp32 sgd": step(optimizer="sgd", recompute="full"),
    "full fp32 adafactor": step(optimizer="adafactor"),
    "full bf16": step(**HALF),
    "full bf16 checkpointed": step(recompute="full", **HALF),
    "full bf16 long": step(**{**HALF, "length": 384, "micro": 1}, recompute="full"),
    "full mixed": step(**MIXED),
    "full mixed checkpointed": step(recompute="full", **MIXED),
    "full mixed accumulated": step(accumulation=2, optimizer="adamw_fused", **MIXED),
    "lora fp32": step(adapter=Adapter(rank=8)),
    "lora bf16": step(adapter=Adapter(rank=8), **HALF),
    "lora bf16 checkpointed": step(adapter=Adapter(rank=8), recompute="full", **HALF),
    "lora of two layers": step(adapter=Adapter(rank=8, targets=("q_proj", "v_proj")), **HALF),
    "lora with dropout": step(adapter=Adapter(rank=8, dropout=True), **HALF),
    "lora mixed": step(adapter=Adapter(rank=8), weights="bf16", **MIXED),
    "qlora": step(autocast=False, **QLORA),
    "qlora checkpointed": step(recompute="full", autocast=False, **QLORA),
    "qlora mixed": step(recompute="full", autocast=True, **QLORA),
    "qlora once quantised": step(autocast=False, **{**QLORA, "weights": "nf4"}),
    "qwen2": step(QWEN, **HALF),
    "qwen3": step(QWEN3, **HALF),
    "mistral": step(MISTRAL, recompute="full"),
    "gemma, tied": step(GEMMA),
    "gemma, tied, wide": step(replace(GEMMA, vocab=16000), optimizer="sgd", length=32, recompute="full"),
    "phi3": step(PHI3, **HALF),
    "gpt2, tied": step(GPT),
    "gpt_neox": step(NEOX, recompute="full", **HALF),
    "bf16 logits": step(loss="logits", **HALF),
    "gradients one by one": step(gradient_sets=2, accumulation=2),
}


@pytest.mark.parametrize("name", CASES)
def test_oracle_is_right_about_a_real_step(name: str) -> None:
    asked = CASES[name]
    measured = measured_peak(asked)
    traced = trace(asked, on="cpu")
    assert traced.requested == pytest.approx(measured, rel=BAR)


# ---- the bar can be missed


def test_ignoring_frees_misses_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = CASES["lora bf16"]
    monkeypatch.setattr(Ledger, "_forget", lambda ledger, key: None)
    assert abs(trace(asked, on="cpu").requested / measured_peak(asked) - 1) > BAR


def test_a_single_step_misses_the_bar() -> None:
    asked = CASES["full fp32 fused optimizer"]
    assert abs(trace(asked, steps=1, on="cpu").requested / measured_peak(asked) - 1) > BAR


def test_unseen_resizing_misses_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = trace(SHARDED, on="cpu").requested
    monkeypatch.setattr(Ledger, "resized", lambda ledger, storage: None)
    assert trace(SHARDED, on="cpu").requested > seen * (1 + BAR)


# ---- several devices

SHARDED = step(optimizer="adamw_fused", recompute="full", strategy="fsdp2", devices=2, shard_devices=2)


@pytest.mark.parametrize(
    "words",
    [{}, {"compute": "bf16", "autocast": True}, {"recompute": "none"}, {"devices": 8, "shard_devices": 8}],
    ids=["fp32", "mixed", "all kept", "8 devices"],
)
def test_oracle_is_right_about_shards(words: dict[str, Any]) -> None:
    asked = replace(SHARDED, **words)
    measured = measured_peak(asked)
    assert trace(asked, on="cpu").requested == pytest.approx(measured, rel=BAR)


def test_more_devices_hold_less() -> None:
    peaks = [trace(replace(SHARDED, devices=n, shard_devices=n)) for n in (2, 8, 64)]
    assert peaks[0].static > peaks[1].static > peaks[2].static
    assert peaks[0].allocated > peaks[1].allocated > peaks[2].allocated
    whole = trace(replace(SHARDED, strategy="single", devices=1, shard_devices=1))
    assert peaks[1].static == pytest.approx(whole.static / 8, rel=0.01)


def test_replicas_of_shards_hold_as_much_as_one_set_of_shards() -> None:
    eight = trace(replace(SHARDED, devices=8, shard_devices=8))
    replicated = trace(replace(SHARDED, devices=64, shard_devices=8))
    assert replicated.static == eight.static
    assert replicated.allocated == pytest.approx(eight.allocated, rel=0.1)


def test_gathering_has_pools_of_its_own() -> None:
    assert len({entry[2] for entry in trace(SHARDED).log if len(entry) > 1}) > 1


HALVES = step(weights="bf16", compute="bf16", foreign=Foreign(master=True), optimizer="adamw_fused", recompute="full")


def test_zero_shares_out_one_thing_more_at_each_stage() -> None:
    at = {"devices": 8, "shard_devices": 8}
    alone = trace(HALVES)
    one, two, three = (trace(replace(HALVES, strategy=f"zero{stage}", **at)) for stage in (1, 2, 3))
    assert one.moments["optimizer"] < alone.moments["optimizer"] / 2
    assert two.moments["optimizer"] < one.moments["optimizer"]
    assert three.static == pytest.approx(two.static / 8, rel=0.01)


def test_an_offloaded_optimizer_is_not_on_the_device() -> None:
    offloaded = trace(replace(HALVES, offload="optimizer"))
    assert offloaded.parts["optimizer"] == 0
    assert trace(replace(HALVES, strategy="zero3", offload="all")).static == 0


def test_ddp_holds_the_gradients_once_more() -> None:
    alone, among = trace(step()), trace(step(strategy="ddp", devices=4))
    assert among.moments["clipping"] - alone.moments["clipping"] == pytest.approx(alone.static, rel=0.1)


# ---- what is emulated has the size of the real thing


@pytest.mark.parametrize("elements", [1000, 4096, 70_001])
def test_8_bit_states_are_those_of_bitsandbytes(elements: int) -> None:
    import bitsandbytes

    weight = torch.nn.Parameter(torch.zeros(elements))
    weight.grad = torch.zeros(elements)
    real = bitsandbytes.optim.AdamW8bit([weight])
    real.init_state(real.param_groups[0], weight, 0, 0)
    ours = building.Fake8bit([weight], paged=False)
    ours.step()
    shared = {"qmap1", "qmap2", "step"}
    sizes = [value.nbytes for name, value in real.state[weight].items() if name not in shared]
    assert sum(value.nbytes for value in ours.state[weight].values()) == sum(sizes)


def test_operations_cast_to_fp32_are_those_of_cudas_autocast() -> None:
    for name in (*patches._FP32_ON_CUDA, *patches._FP32_RESULT_ON_CUDA):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCUDA")
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCPU")


# ---- what a trace says


def test_parts_add_up_and_the_peak_has_its_moment() -> None:
    traced = trace(step(vocab_heavy := replace(LLAMA, vocab=16000), optimizer="adamw_fused", recompute="full"))
    assert sum(traced.parts.values()) == traced.allocated == traced.moments[traced.moment]
    assert traced.moment == "loss_backward"
    assert traced.parts["logits"] >= 3 * 2 * 128 * vocab_heavy.vocab * 4
    assert traced.requested <= traced.allocated <= traced.reserved


def test_selective_recomputation_lies_between_none_and_full() -> None:
    none, some, all_ = (trace(step(optimizer="sgd", length=256, recompute=r)) for r in ("none", "selective", "full"))
    assert none.allocated > some.allocated > all_.allocated


def test_losses_without_whole_logits_need_less() -> None:
    wide = replace(LLAMA, vocab=32000)
    whole, chunked, liger = (
        trace(step(wide, optimizer="sgd", length=512, loss=loss, weights="bf16", compute="bf16"))
        for loss in ("logits_fp32", "chunked", "liger")
    )
    assert whole.parts["logits"] > chunked.parts["logits"]
    assert whole.allocated > chunked.allocated > liger.allocated


def test_an_optimizer_in_the_backward_pass_holds_no_gradients() -> None:
    apart, within = trace(HALVES), trace(replace(HALVES, gradient_sets=0))
    assert apart.allocated - within.allocated > apart.static / 2
    assert "optimizer" not in within.moments


@pytest.mark.parametrize("family", ["gemma2", "olmo2", "phi", "mixtral"])
def test_other_families_are_traced_too(family: str) -> None:
    shape = replace(NEOX if family == "phi" else LLAMA, family=family)
    expected = {
        "gemma2": ["gemma2 has no flash attention in transformers: traced as eager"],
        "mixtral": ["mixtral is traced as llama"],
    }
    assert trace(step(shape)).notes == expected.get(family, [])


@pytest.mark.parametrize("shape", [LLAMA, QWEN, QWEN3, MISTRAL, GEMMA, PHI3, GPT, NEOX], ids=lambda s: s.family)
def test_traced_models_have_the_weights_of_their_shape(shape: ModelShape) -> None:
    with FakeTensorMode():
        model = building.model(step(shape))
    assert sum(parameter.numel() for parameter in model.parameters()) == shape.parameters()


def test_a_trace_leaves_nothing_behind() -> None:
    before = state()
    trace(replace(SHARDED, autocast=True, compute="bf16"))
    assert state() == before


def test_another_rank_after_a_trace_is_itself() -> None:
    """DTensor's caches hold a mesh with its rank: of a trace's first rank, they would put every shard in its place."""
    trace(SHARDED)
    coordinates = set()
    dist.init_process_group("fake", rank=1, world_size=SHARDED.devices, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (SHARDED.devices,))
        with FakeTensorMode():
            model = building.model(SHARDED)
            sharded.shard(model, SHARDED, mesh)
            for parameter in model.parameters():
                coordinates |= {each.device_mesh.get_coordinate() for each in (parameter, torch.zeros_like(parameter))}
    finally:
        dist.destroy_process_group()
        _clear_sharding_prop_cache()
    assert coordinates == {(1,)}


def state() -> list[Any]:
    functional = torch.nn.functional
    return [
        functional.scaled_dot_product_attention,
        functional.dropout,
        torch.nn.Module._apply,
        torch.UntypedStorage.resize_,
        torch.is_autocast_enabled("cuda"),
        torch._C._dispatch_has_kernel_for_dispatch_key("aten::layer_norm", "AutocastCPU"),
        dist.is_initialized(),
        sys.excepthook,
        torch.cpu.current_stream(),
    ]


def test_the_program_reads_a_step_and_writes_what_it_traced(tmp_path: Path) -> None:
    asked = step(optimizer="sgd")
    (tmp_path / "step.json").write_text(json.dumps(steps_of.to_json(asked)))
    assert program.main(tmp_path) == 0
    written = json.loads((tmp_path / "trace.json").read_text())
    assert written["allocated"] == trace(asked).allocated
