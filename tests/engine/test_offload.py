"""Activations in main memory: a pretended card trains the same bits, and the closed form is the trace's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pretended_devices
import pytest
import tiny_run
from pretended_devices import DEVICES

from stoker.engine.trace import trace
from stoker.estimate import memory
from stoker.estimate.step import Adapter, Step
from stoker.facts.shapes import ModelShape
from stoker.plan.plan import Plan
from stoker.rundir import files
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.filterwarnings("default")

SHAPE = ModelShape(
    family="llama", layers=6, hidden=512, heads=8, kv_heads=8, head_dim=64, intermediate=1408, vocab=4000
)
WAYS: dict[str, dict[str, Any]] = {
    "full mixed": {"weights": "fp32", "autocast": True},
    "full bf16": {"weights": "bf16", "autocast": False, "loss": "fused"},
    "qlora": {"weights": "nf4_double", "adapter": Adapter(rank=8), "autocast": True, "loss": "fused"},
}


@pytest.mark.parametrize("name", WAYS)
def test_the_closed_form_of_activations_in_main_memory_is_the_traces(name: str) -> None:
    here = Step(
        shape=SHAPE, micro=4, length=1024, recompute="full", compute="bf16", optimizer="adamw_fused", **WAYS[name]
    )
    away = replace(here, kept_away=True)
    figures, traced = ([made(one) for one in (here, away)] for made in (memory.estimate, trace))
    one = 4 * 1024 * SHAPE.hidden * (2 if name == "full bf16" else 4)
    for moment in ("forward", "loss", "block_backward"):
        (before, now), (kept, left) = ([found.moments[moment] for found in some] for some in (figures, traced))
        assert [before, now] == pytest.approx([kept, left], rel=0.02), moment
        assert before - now == pytest.approx(kept - left, abs=one), moment
    assert traced[0].moments["loss"] - traced[1].moments["loss"] > (SHAPE.layers - 2) * one


def make(folder: Path, base: Path, recompute: str) -> RunDir:
    words = f"""
model: {base}
data: {{train: rows.jsonl, length: 64}}
tune: {{method: lora, rank: 4}}
train: {{batch: 8, steps: 6, epochs: 4, learning_rate: 1e-2}}
save: {{every: 3 steps}}
where: {{micro: 4, gradient_checkpointing: {recompute}}}
"""
    return tiny_run.make_run(folder, words, tiny_run.random_rows(30, seed=5, longest=64, segments=3))


def test_a_pretended_4090_trains_the_same_bits_and_resumes_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tiny_run.make_base_model(tmp_path / "base", dropout=0.1)
    pretended_devices.use(monkeypatch, DEVICES["4090"])
    plain, away = make(tmp_path / "plain", base, "true"), make(tmp_path / "away", base, "offload")
    assert files.read_record(away.plan_file, Plan).offload_activations
    assert pretended_devices.train(plain) == 0, (plain.path / "child.log").read_text()[-2000:]
    assert pretended_devices.train(away, kill_after=4) == -9
    assert pretended_devices.train(away) == 0, (away.path / "child.log").read_text()[-2000:]
    assert tiny_run.losses(away) == tiny_run.losses(plain)
    assert tiny_run.weights_sha(away.final) == tiny_run.weights_sha(plain.final)
