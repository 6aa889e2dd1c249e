"""A small model that really learned to answer, its faultless merge, and faults to plant in copies of it."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import prepare_case
import tiny_run
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from stoker.config import load
from stoker.engine import generate, prepare
from stoker.engine import parity as program
from stoker.launch import plan_inputs
from stoker.plan.make import make_plan
from stoker.rundir import artifacts, files, layout
from stoker.rundir.layout import RunDir

RECIPE = Path(load.__file__).parent / "recipes" / "text" / "answers.jsonl"
EOS = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
"""Another token than the one that ends a turn, as models of this kind have."""

Tensors = dict[str, torch.Tensor]


def make_base(folder: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=400,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        # Norms and all: random weights of a trained model's size, so that no two bases share one.
        parameter.data += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    prepare_case.make_tokenizer(folder, prepare_case.MARKED, **EOS)
    return folder


def train(folder: Path) -> RunDir:
    """A LoRA run that ends with its answers known by heart."""
    make_base(folder / "base", seed=0)
    (folder / "run.yaml").write_text(
        f"""
model: base
data: {{train: {RECIPE}, length: 64, pack: false}}
tune: {{method: lora, rank: 32, targets: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head]}}
train: {{objective: sft, epochs: 60, batch: 8, learning_rate: 1e-2, warmup: 10%}}
"""
    )
    os.environ["STOKER_RUNS"] = str(folder / "runs")
    run_file = load.load(str(folder / "run.yaml"), [])
    run_dir = layout.create(run_file)
    assert prepare.main(run_dir.path) == 0
    plan = make_plan(plan_inputs.inputs(run_file, run_dir, plan_inputs.machine(None, run_file.run)))
    files.write_json(run_dir.plan_file, plan.model_dump())
    assert tiny_run.train(run_dir) == 0, (run_dir.path / "child.log").read_text()[-2000:]
    return run_dir


def merge(run_dir: RunDir) -> Path:
    """By PEFT itself, so that the gate is tested and not our own merge."""
    model, tokenizer = generate.load(run_dir)
    stops = generate.stop_ids(model, tokenizer)
    whole = model.merge_and_unload()
    whole.generation_config.eos_token_id = stops
    folder = artifacts.begin(run_dir, "merged")
    whole.save_pretrained(folder)
    for path in run_dir.final.iterdir():
        if path.name.startswith(("tokenizer", "chat_template")):
            shutil.copyfile(path, folder / path.name)
    return folder


def in_this_process(name: str, run_dir: RunDir, on_event: Any, *arguments: str) -> int:
    """In place of `local.run_engine`: the same program without the seconds it takes to import torch."""
    assert name == "parity"
    before, sys.argv = sys.argv, [name, str(run_dir.path), *arguments]
    try:
        return program.main(run_dir.path)
    finally:
        sys.argv = before


# ---- faults


def change(folder: Path, work: Callable[[Tensors], None]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    work(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def parts(run_dir: RunDir, base: Path | None = None) -> tuple[Tensors, Tensors]:
    """The base's tensors, and what the adapter adds to some of them."""
    adapter = load_file(run_dir.final / "adapter_model.safetensors")
    options = json.loads((run_dir.final / "adapter_config.json").read_text())
    scale = options["lora_alpha"] / options["r"]
    deltas = {}
    for key, down in adapter.items():
        if key.endswith("lora_A.weight"):
            up = adapter[key.replace("lora_A", "lora_B")]
            name = key.removeprefix("base_model.model.").replace("lora_A.", "")
            deltas[name] = scale * (up @ down)
    return load_file((base or run_dir.folder() / "base") / "model.safetensors"), deltas


def wrong_template(folder: Path, run_dir: RunDir) -> None:
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text().replace("<|im_start|>", "<|im_start|> "))


def missing_eos(folder: Path, run_dir: RunDir) -> None:
    """As the base has it: the end of text, not the end of turn."""
    path = folder / "generation_config.json"
    files.write_json(path, {**json.loads(path.read_text()), "eos_token_id": 2})


def merged_in_bf16(folder: Path, run_dir: RunDir) -> None:
    """Computed in the wrong type, stored in the right one: nothing shows in the files' headers."""

    def work(tensors: Tensors) -> None:
        base, deltas = parts(run_dir)
        for name, delta in deltas.items():
            tensors[name] = (base[name].bfloat16() + delta.bfloat16()).float()

    change(folder, work)


def stored_in_bf16(folder: Path, run_dir: RunDir) -> None:
    change(folder, lambda tensors: tensors.update({name: tensor.bfloat16() for name, tensor in tensors.items()}))


def swapped_tensor(folder: Path, run_dir: RunDir) -> None:
    one, other = (f"model.layers.{layer}.mlp.up_proj.weight" for layer in (0, 1))
    change(folder, lambda tensors: tensors.update({one: tensors[other].clone(), other: tensors[one].clone()}))


def stale_tokenizer(folder: Path, run_dir: RunDir) -> None:
    """Of the same size and with the same template, but trained on other text."""
    kept = prepare_case.CORPUS
    prepare_case.CORPUS = ["An earlier text, from before the data was cleaned: 1, 2, 3.", "旧的文本。"] * 2
    try:
        prepare_case.make_tokenizer(folder, prepare_case.MARKED, **EOS)
    finally:
        prepare_case.CORPUS = kept


def truncated_shard(folder: Path, run_dir: RunDir) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4096])


def wrong_scale(folder: Path, run_dir: RunDir) -> None:
    """`lora_alpha` taken for the scale, without its division by the rank, would be 32 times; twice is enough."""

    def work(tensors: Tensors) -> None:
        base, deltas = parts(run_dir)
        tensors.update({name: base[name] + 2 * delta for name, delta in deltas.items()})

    change(folder, work)


def wrong_base(folder: Path, run_dir: RunDir) -> None:
    """The right adapter on another model of the same shape."""

    def work(tensors: Tensors) -> None:
        base, deltas = parts(run_dir, make_base(folder.parent / "other", seed=1))
        tensors.update({name: tensor + deltas.get(name, 0) for name, tensor in base.items()})

    change(folder, work)


def no_adapter(folder: Path, run_dir: RunDir) -> None:
    change(folder, lambda tensors: tensors.update(parts(run_dir)[0]))


def missing_tensor(folder: Path, run_dir: RunDir) -> None:
    change(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
