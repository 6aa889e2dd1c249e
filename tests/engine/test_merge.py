"""The merge program: exact to fp32 rounding for every kind of adapter it takes, bounded in memory, refusing by name."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import adapted_run
import pytest
import tiny_run
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from stoker.engine import generate, merge, weights
from stoker.errors import StokerError
from stoker.rundir import artifacts, checkpoints, events, files, layout
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.filterwarnings("default")
ROUNDING = 1e-5
"""What two orders of fp32 additions may differ by, relative to the largest logit."""
_M_MMAP_THRESHOLD = -3


def merged(run_dir: RunDir) -> Path:
    assert merge.main(run_dir.path) == 0
    return artifacts.aside(run_dir, "merged")


def code(run_dir: RunDir) -> str:
    with pytest.raises(StokerError) as caught:
        merge.main(run_dir.path)
    assert caught.value.what
    assert caught.value.hint
    assert not artifacts.aside(run_dir, "merged").exists()
    return caught.value.code


ALL = "[q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]"


@pytest.mark.parametrize(
    ("kind", "tied", "tune", "lora"),
    [
        ("llama", False, "{method: lora, rank: 4}", "{}"),
        ("llama", False, "{method: qlora, rank: 4}", "{}"),
        ("llama", True, "{method: qlora, rank: 4}", "{}"),
        ("llama", False, "{method: lora, rank: 8}", "{use_rslora: true}"),
        ("llama", False, "{method: lora, rank: 4}", "{use_dora: true}"),
        ("llama", False, "{method: qlora, rank: 4}", "{use_dora: true}"),
        ("llama", False, "{method: lora, rank: 4}", "{rank_pattern: {q_proj: 8}, alpha_pattern: {v_proj: 2}}"),
        ("llama", False, "{method: lora, rank: 4, targets: [q_proj, lm_head]}", "{}"),
        ("llama", True, "{method: lora, rank: 4, targets: [q_proj, lm_head]}", "{}"),
        ("llama", True, "{method: lora, rank: 4, targets: [q_proj, embed_tokens]}", "{}"),
        ("llama", False, "{method: lora, rank: 4, targets: [q_proj]}", "{modules_to_save: [lm_head, embed_tokens]}"),
        ("llama", True, "{method: lora, rank: 4, targets: [q_proj]}", "{modules_to_save: [lm_head]}"),
        ("qwen2", False, "{method: lora, rank: 4, targets: [q_proj, v_proj]}", "{lora_bias: true}"),
        ("mixtral", False, "{method: lora, rank: 4, targets: [q_proj, v_proj]}", "{}"),
        ("mixtral", False, "{method: qlora, rank: 4, targets: [q_proj, v_proj]}", "{}"),
        ("gpt2", True, "{method: lora, rank: 4, targets: [c_attn, c_proj]}", "{fan_in_fan_out: true}"),
        ("gpt2", True, "{method: qlora, rank: 4, targets: [c_attn, c_proj]}", "{}"),
    ],
)
def test_merged_logits_are_the_adapters(tmp_path: Path, kind: str, tied: bool, tune: str, lora: str) -> None:
    base = adapted_run.make_base(tmp_path / "base", kind, tied=tied)
    run_dir = adapted_run.make_run(tmp_path, base, tune, lora)
    assert adapted_run.distance(run_dir, merged(run_dir)) < ROUNDING
    untouched = adapted_run.distance(run_dir, base)
    assert untouched > 1000 * ROUNDING, "the adapter changes nothing, so this test shows nothing"


def test_a_trained_run_merges(tmp_path: Path) -> None:
    base = tiny_run.make_base_model(tmp_path / "base")
    text = f"""
model: {base}
data: {{train: rows.jsonl, length: 64}}
tune: {{method: qlora, rank: 4}}
train: {{batch: 8, steps: 6, learning_rate: 1e-2}}
"""
    run_dir = tiny_run.make_run(tmp_path, text, tiny_run.random_rows(30, seed=5, longest=64))
    assert tiny_run.train(run_dir) == 0
    assert adapted_run.distance(run_dir, merged(run_dir)) < ROUNDING
    event = [e for e in events.read(run_dir.events_file) if e["event"] == "merged"][-1]
    assert event["base_verified"]
    assert event["adapted"] == 14


def test_another_scale_is_seen(tmp_path: Path) -> None:
    run_dir = adapted_run.make_run(tmp_path, adapted_run.make_base(tmp_path / "base"))
    trained, _ = generate.load(run_dir)
    wanted = adapted_run.logits(trained)
    settings = run_dir.final / "adapter_config.json"
    adapter = files.read_json(settings)
    files.write_json(settings, {**adapter, "lora_alpha": adapter["lora_alpha"] * 2})
    found = adapted_run.logits(AutoModelForCausalLM.from_pretrained(merged(run_dir)))
    assert ((wanted - found).abs().max() / wanted.abs().max()).item() > 1000 * ROUNDING


@pytest.mark.parametrize(("tied", "targets"), [(True, "[lm_head]"), (True, "[q_proj]"), (False, "[lm_head]")])
def test_tied_embeddings_part_only_where_the_adapter_parts_them(tmp_path: Path, tied: bool, targets: str) -> None:
    base = adapted_run.make_base(tmp_path / "base", tied=tied)
    folder = merged(adapted_run.make_run(tmp_path, base, f"{{method: lora, rank: 4, targets: {targets}}}"))
    still_tied = tied and targets == "[q_proj]"
    assert files.read_json(folder / "config.json")["tie_word_embeddings"] is still_tied
    names = load_file(folder / "model.safetensors").keys()
    assert ("lm_head.weight" in names) is not still_tied
    before, after = load_file(base / "model.safetensors"), load_file(folder / "model.safetensors")
    assert torch.equal(before["model.embed_tokens.weight"], after["model.embed_tokens.weight"])


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_weights_are_stored_in_the_planned_type_and_rounded_once(tmp_path: Path, stored: torch.dtype) -> None:
    base = adapted_run.make_base(tmp_path / "base", dtype=stored)
    run_dir = adapted_run.make_run(tmp_path, base)
    plan = files.read_json(run_dir.plan_file)
    plan["native"]["model"]["dtype"] = "bfloat16"
    files.write_json(run_dir.plan_file, plan)
    folder = merged(run_dir)
    assert files.read_json(folder / "config.json")["dtype"] == "bfloat16"
    before, after = load_file(base / "model.safetensors"), load_file(folder / "model.safetensors")
    adapter = load_file(run_dir.final / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in after.values()} == {torch.bfloat16}
    name = "model.layers.1.mlp.down_proj"
    a, b = (adapter[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
    wanted = (before[f"{name}.weight"].to(torch.bfloat16).float() + (b @ a) * 2.0).to(torch.bfloat16)
    assert torch.equal(after[f"{name}.weight"], wanted)
    assert torch.equal(after["model.norm.weight"], before["model.norm.weight"].to(torch.bfloat16))


def test_a_base_of_many_files_keeps_its_files(tmp_path: Path) -> None:
    base = adapted_run.make_base(tmp_path / "whole")
    AutoModelForCausalLM.from_pretrained(base).save_pretrained(tmp_path / "base", max_shard_size="60KB")
    run_dir = adapted_run.make_run(tmp_path, tmp_path / "base")
    folder = merged(run_dir)
    names = sorted(path.name for path in (tmp_path / "base").glob("*.safetensors*"))
    assert len(names) > 4
    assert sorted(path.name for path in folder.glob("*.safetensors*")) == names
    index = files.read_json(folder / "model.safetensors.index.json")
    assert index["weight_map"] == files.read_json(tmp_path / "base" / "model.safetensors.index.json")["weight_map"]
    assert index["metadata"]["total_size"] == sum(
        t.nbytes for path in folder.glob("*.safetensors") for t in load_file(path).values()
    )
    assert adapted_run.distance(run_dir, folder) < ROUNDING


@pytest.mark.skipif(sys.platform != "linux", reason="counts and limits a process' data as Linux does")
def test_memory_is_bounded_by_a_tensor_not_by_the_model(tmp_path: Path) -> None:
    """Under a limit too small for the model, merging ends well and loading the model does not."""
    base = _large_base(tmp_path / "base")
    run_dir = adapted_run.make_run(tmp_path, base)
    model_bytes = sum(path.stat().st_size for path in base.glob("*.safetensors"))
    assert model_bytes > 90e6

    def limited(work: str) -> int:
        def child() -> int:
            import ctypes
            import resource

            # glibc keeps freed blocks below 32 MB for later; here, small tensors stand for large ones.
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 16)
            held = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
            limit = held + model_bytes // 3
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
            try:
                if work == "merge":
                    return merge.main(run_dir.path)
                AutoModelForCausalLM.from_pretrained(base)
            except (MemoryError, RuntimeError):
                return 9
            return 0

        return tiny_run.in_child(child)

    assert limited("load") == 9
    assert limited("merge") == 0
    folder = artifacts.aside(run_dir, "merged")
    assert len(list(folder.glob("*.safetensors"))) == len(list(base.glob("*.safetensors")))


def _large_base(folder: Path) -> Path:
    """Some 30 files of 4 MB."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=tiny_run.VOCAB,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=24,
        num_attention_heads=4,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="4.0MB")
    return folder


# ---- beside the weights


def test_tokenizer_and_template_are_the_trained_ones_and_the_end_of_turn_ends_answers(tmp_path: Path) -> None:
    run_dir = adapted_run.make_run(tmp_path, adapted_run.make_base(tmp_path / "base"))
    tokenizer = AutoTokenizer.from_pretrained(run_dir.final)
    tokenizer.add_special_tokens({"additional_special_tokens": ["w90"]})
    tokenizer.chat_template = "{% for m in messages %}w{{ loop.index + 10 }} {{ m.content }} w90 {% endfor %}"
    tokenizer.save_pretrained(run_dir.final)
    folder = merged(run_dir)
    for path in run_dir.final.iterdir():
        if path.name not in ("adapter_model.safetensors", "adapter_config.json", "README.md"):
            assert (folder / path.name).read_bytes() == path.read_bytes()
    assert not (folder / "README.md").exists()
    assert GenerationConfig.from_pretrained(folder).eos_token_id == [1, 2, 90]
    config = files.read_json(folder / "config.json")
    assert "quantization_config" not in config
    assert config["use_cache"] is True
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.generation_config.eos_token_id == [1, 2, 90]


def test_the_writer_is_read_by_the_library(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {
        "a": torch.randn(3, 5, dtype=torch.bfloat16),
        "odd": torch.arange(7, dtype=torch.uint8),
        "z": torch.randn(2, 2),
        "scalar": torch.tensor(4.0, dtype=torch.float16),
        "empty": torch.empty(0, 4),
        "turned": torch.randn(4, 3).T,
    }
    entries = [weights.TensorEntry(name, t.dtype, tuple(t.shape)) for name, t in tensors.items()]
    weights.write(tmp_path / "model.safetensors", entries, tensors.__getitem__)
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    opened = weights.ModelFiles(tmp_path)
    assert opened.entry("a") == weights.TensorEntry("a", torch.bfloat16, (3, 5))
    save_file({name: t.contiguous() for name, t in tensors.items()}, tmp_path / "theirs.safetensors", {"format": "pt"})
    ours, theirs = ((tmp_path / f"{n}.safetensors").stat().st_size for n in ("model", "theirs"))
    assert abs(ours - theirs) < 64


def test_a_base_without_generation_settings_still_ends_its_answers(tmp_path: Path) -> None:
    base = adapted_run.make_base(tmp_path / "base")
    (base / "generation_config.json").unlink()
    folder = merged(adapted_run.make_run(tmp_path, base))
    assert GenerationConfig.from_pretrained(folder).eos_token_id == [1, 2]


def test_a_hub_model_is_merged_at_the_revision_that_was_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's `main` has moved on since; both revisions are in the cache."""
    base = adapted_run.make_base(tmp_path / "base")
    run_dir = adapted_run.make_run(tmp_path, base)
    here = load_file(merged(run_dir) / "model.safetensors")
    trained, moved = "1" * 40, "2" * 40
    repo = tmp_path / "hub" / "hub" / "models--acme--tiny"
    shutil.copytree(base, repo / "snapshots" / trained)
    adapted_run.make_base(repo / "snapshots" / moved, "llama", tied=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(moved)
    layout.record(run_dir, text=run_dir.run_file.read_text().replace(f"model: {base}", "model: acme/tiny"))
    commit = run_dir.checkpoints / "step-00000002" / "COMMIT.json"
    files.write_json(commit, checkpoints.sealed({**files.read_json(commit), "fingerprint": {"base": trained}}))
    for name, value in {"HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "-m", "stoker.engine.merge", str(run_dir.path)], check=False)
    assert done.returncode == 0
    there = load_file(artifacts.aside(run_dir, "merged") / "model.safetensors")
    assert there.keys() == here.keys()
    assert all(torch.equal(there[name], here[name]) for name in here)


# ---- refused


def test_another_base_is_refused(tmp_path: Path) -> None:
    base = adapted_run.make_base(tmp_path / "base")
    run_dir = adapted_run.make_run(tmp_path, base)
    tensors = load_file(base / "model.safetensors")
    tensors["model.norm.weight"][0] += 1e-3
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    assert code(run_dir) == "STK611"


def test_a_hub_model_that_cannot_be_had_is_named(tmp_path: Path) -> None:
    base = adapted_run.make_base(tmp_path / "base")
    run_dir = adapted_run.make_run(tmp_path, base)
    layout.record(run_dir, text=run_dir.run_file.read_text().replace(f"model: {base}", "model: acme/none"))
    assert code(run_dir) == "STK413"


def test_a_base_that_nothing_vouches_for_is_taken_and_said(tmp_path: Path) -> None:
    run_dir = adapted_run.make_run(tmp_path, adapted_run.make_base(tmp_path / "base"))
    shutil.rmtree(run_dir.checkpoints)
    merged(run_dir)
    assert [e["base_verified"] for e in events.read(run_dir.events_file) if e["event"] == "merged"] == [False]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("trainable_token_indices", [5]),
        ("layer_replication", [[0, 2]]),
        ("use_bdlora", {"nblocks": 2}),
        ("init_lora_weights", "pissa"),
        ("bias", "lora_only"),
        ("ensure_weight_tying", True),
        ("alora_invocation_tokens", [1]),
        ("peft_type", "IA3"),
        ("an_option_of_tomorrow", 1),
    ],
)
def test_options_that_cannot_be_merged_are_refused_by_name(option: str, value: object) -> None:
    adapter = {"peft_type": "LORA", "init_lora_weights": True, "r": 4, "use_dora": True, "layer_replication": None}
    adapter |= {"target_parameters": [], "bias": "none", "megatron_core": "megatron.core"}
    merge.check_options(adapter)
    with pytest.raises(StokerError) as caught:
        merge.check_options({**adapter, option: value})
    assert caught.value.code == "STK612"
    assert f"`{option}: {value}`" in caught.value.what
    assert "`stoker chat`" in caught.value.hint  # vLLM serves few of them


def _rewrite(run_dir: RunDir, change: str) -> None:
    path = run_dir.final / "adapter_model.safetensors"
    tensors = load_file(path)
    key = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
    if change == "missing":
        del tensors[key]
    elif change == "unknown":
        tensors[key.replace("layers.0", "layers.7")] = tensors[key].clone()
    elif change == "shape":
        tensors[key] = tensors[key][:-1].clone()
    else:
        tensors[key][0] = float("nan")
    save_file(tensors, path, {"format": "pt"})


@pytest.mark.parametrize("change", ["missing", "unknown", "shape", "nan"])
def test_an_adapter_that_does_not_fit_is_refused(tmp_path: Path, change: str) -> None:
    run_dir = adapted_run.make_run(tmp_path, adapted_run.make_base(tmp_path / "base"))
    _rewrite(run_dir, change)
    with pytest.raises(StokerError) as caught:
        merge.main(run_dir.path)
    assert caught.value.code == "STK615"
    assert "self_attn.q_proj" in caught.value.what


def test_a_quantised_base_is_refused(tmp_path: Path) -> None:
    base = adapted_run.make_base(tmp_path / "base")
    run_dir = adapted_run.make_run(tmp_path, base)
    settings = json.loads((base / "config.json").read_text())
    settings["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (base / "config.json").write_text(json.dumps(settings))
    shutil.rmtree(run_dir.checkpoints)  # which know the base by what it was
    assert code(run_dir) == "STK614"
    with pytest.raises(StokerError) as caught:  # nor is it trained on, where no plan looked at its configuration
        generate.load_base(run_dir)
    assert caught.value.code == "STK238"


def test_a_tensor_the_base_does_not_have_is_refused(tmp_path: Path) -> None:
    base = adapted_run.make_base(tmp_path / "base")
    run_dir = adapted_run.make_run(tmp_path, base)
    shutil.rmtree(run_dir.checkpoints)
    tensors = load_file(base / "model.safetensors")
    tensors["model.layers.0.mlp.fused"] = tensors.pop("model.layers.0.mlp.up_proj.weight")
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    assert code(run_dir) == "STK613"


def test_a_full_disk_is_found_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = adapted_run.make_run(tmp_path, adapted_run.make_base(tmp_path / "base"))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    assert code(run_dir) == "STK407"
