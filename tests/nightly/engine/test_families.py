"""Every family by its tiny model: an adapter trains, is merged in the layout of the base's files, and loads again."""

import json
from pathlib import Path

import adapted_run
import pytest
import saved_families
import tiny_run
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from stoker.cli.main import app
from stoker.engine import generate, merge, tensors
from stoker.rundir import artifacts

pytestmark = pytest.mark.filterwarnings("default")
ROUNDING = 1e-5
LEFT_ALONE = ("vision", "visual", "projector", "router", ".gate.", "shared_expert_gate", "norm", "embed")


@pytest.mark.parametrize("family", [*saved_families.EXPERTS, *saved_families.TOWERS])
def test_an_adapter_trains_merges_and_loads_again(tmp_path: Path, family: str) -> None:
    base = saved_families.make_base(tmp_path / "base", family)
    text = f"""
model: {base}
data: {{train: rows.jsonl, length: 64, pack: false}}
tune: {{method: lora, rank: 4}}
train: {{batch: 4, steps: 3, learning_rate: 1e-2}}
where: {saved_families.WHERE.get(family, "{}")}
"""
    run_dir = tiny_run.make_run(tmp_path, text, tiny_run.random_rows(12, seed=5, longest=40))
    assert tiny_run.train(run_dir) == 0
    assert merge.main(run_dir.path) == 0
    folder = artifacts.aside(run_dir, "merged")
    before, after = load_file(base / "model.safetensors"), load_file(folder / "model.safetensors")
    assert {name: t.shape for name, t in after.items()} == {name: t.shape for name, t in before.items()}
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert not [name for name in changed if any(word in name for word in LEFT_ALONE)]
    adapted = load_file(run_dir.final / "adapter_model.safetensors")
    assert (family not in saved_families.EXPERTS) or any(".experts." in name for name in adapted)
    assert adapted_run.distance(run_dir, folder) < ROUNDING
    assert adapted_run.distance(run_dir, base) > 10 * ROUNDING, "nothing was learned"
    model, _ = generate.load(run_dir)
    held = tensors.compare(model, folder, "float32")
    assert held["compared"] == held["of"]
    assert held["excess"] <= 1


@pytest.mark.parametrize("family", ["mixtral", "gemma3"])
def test_the_export_passes_the_parity_gate(tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run_dir = adapted_run.make_run(tmp_path, saved_families.make_base(tmp_path / "base", family))
    done = CliRunner().invoke(app, ["export", run_dir.name, str(tmp_path / "out"), "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)["parity"]["accepted"]
    assert adapted_run.distance(run_dir, tmp_path / "out") < ROUNDING
