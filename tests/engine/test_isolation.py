"""Whether the model at hand keeps packed documents apart, and sees nothing ahead, is asked of the model."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_run
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from stoker.engine import fused_loss, isolation

pytestmark = pytest.mark.filterwarnings("default")

SIZES = {
    "vocab_size": tiny_run.VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
}
LINEAR = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "pad_token_id": 0,
    "eos_token_id": 1,
}


def made(family: str, attention: str = "sdpa", **sizes: Any) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SIZES, **sizes})
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)


@pytest.mark.parametrize(("family", "attention"), [("llama", "sdpa"), ("llama", "eager"), ("gemma3_text", "sdpa")])
def test_attention_keeps_documents_apart(family: str, attention: str) -> None:
    model = made(family, attention)
    assert not isolation.leaks(model, tiny_run.VOCAB)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_recurrent_layer_does_not() -> None:
    assert isolation.leaks(made("qwen3_5_text", **LINEAR), tiny_run.VOCAB)


def test_what_isolates_by_positions_leaks_without_them() -> None:
    """The negative control: the same model, told that both documents are one."""
    model = made("llama")
    real = model.forward
    model.forward = lambda position_ids, **words: real(**words)
    assert isolation.leaks(model, tiny_run.VOCAB)


@pytest.mark.parametrize("arrange", ["rows", "auto"])
def test_packed_rows_are_refused_where_they_would_leak(tmp_path: Path, arrange: str) -> None:
    base = tmp_path / "base"
    made("qwen3_5_text", **LINEAR).save_pretrained(base)
    tiny_run.make_tokenizer(base)
    text = f"""
model: {base}
data: {{train: rows.jsonl, length: 64}}
tune: {{method: lora, rank: 4}}
train: {{batch: 8, steps: 2}}
where: {{arrange: {arrange}}}
"""
    run_dir = tiny_run.make_run(tmp_path / "run", text, tiny_run.random_rows(16, seed=5, longest=64, segments=3))
    is_trained = tiny_run.train(run_dir) == 0
    assert is_trained == (arrange == "auto")
    assert is_trained or "STK433" in (run_dir.path / "child.log").read_text()


AHEAD: dict[str, Any] = {
    "bert": {},
    "roberta": {"pad_token_id": 0},
    "electra": {"embedding_size": 16},
    "gemma3_text": {"use_bidirectional_attention": True},
    "llama": {"is_causal": False},
    "qwen3": {"is_causal": False},
}


@pytest.mark.parametrize("family", AHEAD)
def test_a_model_that_sees_what_it_is_to_predict_is_found(family: str) -> None:
    model = made(family, **AHEAD[family])
    assert isolation.looks_ahead(model, tiny_run.VOCAB, packed=False)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("family", "sizes"), [("llama", {}), ("gemma3_text", {}), ("qwen3_5_text", LINEAR)])
def test_a_decoder_sees_nothing_ahead(family: str, sizes: dict[str, Any], *, packed: bool) -> None:
    assert not isolation.looks_ahead(made(family, **sizes), tiny_run.VOCAB, packed=packed)


@pytest.mark.parametrize("is_causal", [True, False])
def test_the_hidden_states_of_the_fused_loss_say_the_same(*, is_causal: bool) -> None:
    model = made("llama", is_causal=is_causal)
    fused_loss.use(model, "sdpa")
    assert isolation.looks_ahead(model, tiny_run.VOCAB, packed=False) != is_causal


@pytest.mark.parametrize("pack", [True, False])
def test_a_model_that_sees_ahead_is_not_trained(tmp_path: Path, *, pack: bool) -> None:
    base = tmp_path / "base"
    made("llama").save_pretrained(base)
    tiny_run.make_tokenizer(base)
    text = f"""
model: {base}
data: {{train: rows.jsonl, length: 64, pack: {pack}}}
tune: {{method: lora, rank: 4}}
train: {{batch: 8, steps: 2}}
"""
    run_dir = tiny_run.make_run(tmp_path / "run", text, tiny_run.random_rows(16, seed=5, longest=64, segments=3))
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "is_causal": False}))
    assert tiny_run.train(run_dir) != 0
    assert "STK434" in (run_dir.path / "child.log").read_text()
