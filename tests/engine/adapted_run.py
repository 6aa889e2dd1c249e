"""Finished runs with an adapter, made without training: random adapter weights are as good for what comes after."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny_run
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from stoker.engine import generate, models
from stoker.plan.plan import Plan
from stoker.rundir import checkpoints, files
from stoker.rundir.layout import RunDir


def make_base(folder: Path, kind: str = "llama", *, tied: bool = False, dtype: torch.dtype = torch.float32) -> Path:
    """A random model saved as a trained model would be, with its biases set where it has any."""
    torch.manual_seed(3)
    words = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    words["num_key_value_heads"] = 2
    if kind == "gpt2":
        words = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 256}
    if kind == "mixtral":
        words |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    config = AutoConfig.for_model(kind, vocab_size=tiny_run.VOCAB, tie_word_embeddings=tied, **words)
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    model.to(dtype).save_pretrained(folder)
    return folder


def make_run(
    folder: Path, base: Path, tune: str = "{method: lora, rank: 4}", lora: str = "{}", where: str = "{}"
) -> RunDir:
    """A run as training leaves it: adapter in `artifacts/final`, the base's digest in a committed checkpoint."""
    text = f"""
model: {base}
data: {{train: rows.jsonl, length: 64}}
tune: {tune}
train: {{batch: 4, steps: 2}}
where: {where}
native: {{lora: {lora}}}
"""
    run_dir = tiny_run.make_run(folder, text, tiny_run.random_rows(8, seed=1, longest=40))
    finish(run_dir)
    return run_dir


def finish(run_dir: RunDir, change: Callable[[Any], None] = lambda model: None) -> None:
    """Write the adapter with random weights where training would have left trained ones."""
    run, plan = run_dir.run(), Plan.model_validate(files.read_json(run_dir.plan_file))
    model = models.build(run, plan, run_dir.folder())
    torch.manual_seed(11)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.data += 0.05 * torch.randn_like(parameter) if "magnitude" not in name else 0.05
    change(model)
    model.save_pretrained(run_dir.final)
    tiny_run.make_tokenizer(run_dir.final)
    facts = {"data_digest": plan.data.digest, "order_version": 1, "world": 1}
    fingerprint = {"base": models.base_digest(run, run_dir.folder())}
    with checkpoints.writing(run_dir.checkpoints, 2, fingerprint=fingerprint, **facts) as aside:
        (aside / "trainer_state.json").write_text("{}")


def logits(model: Any) -> torch.Tensor:
    torch.manual_seed(0)
    ids = torch.randint(3, tiny_run.VOCAB, (4, 40))
    with models.evaluating(model):
        return model(input_ids=ids).logits.float()


def distance(run_dir: RunDir, folder: Path) -> float:
    """Largest difference of logits between the trained model and a folder, relative to the largest logit."""
    trained, _ = generate.load(run_dir)
    whole = models.auto_class(AutoConfig.from_pretrained(folder)).from_pretrained(folder)
    wanted, found = logits(trained), logits(whole)
    assert wanted.std() > 0.1  # a model that says nothing would agree with anything
    return ((wanted - found).abs().max() / wanted.abs().max()).item()
