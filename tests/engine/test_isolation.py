"""Whether the model at hand keeps packed documents apart, and sees nothing ahead, is asked of the model."""

import json
from pathlib import Path
from typing import Any

import pytest
import simulated_flash
import tiny_run
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from stoker.engine import fused_loss, isolation, known_rows
from stoker.engine.dataset import MicroBatch, document_ends
from stoker.engine.known_rows import KnownRows

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


def leaks(model: Any) -> bool:
    told = KnownRows(model, model.config._attn_implementation).told
    return isolation.leaks(model, tiny_run.VOCAB, told, flat=False)


def looks_ahead(model: Any, *, packed: bool) -> bool:
    told = KnownRows(model, model.config._attn_implementation).told
    return isolation.looks_ahead(model, tiny_run.VOCAB, told, packed=packed, flat=False)


@pytest.mark.parametrize(("family", "attention"), [("llama", "sdpa"), ("llama", "eager"), ("gemma3_text", "sdpa")])
def test_attention_keeps_documents_apart(family: str, attention: str) -> None:
    model = made(family, attention)
    assert not leaks(model)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_recurrent_layer_does_not() -> None:
    assert leaks(made("qwen3_5_text", **LINEAR))


def test_what_isolates_by_positions_leaks_without_them() -> None:
    """The negative control: the same model, told that both documents are one."""
    model = made("llama")
    known = KnownRows(model, "sdpa")

    def as_one(row: MicroBatch) -> dict[str, Any]:
        return known.told({"input_ids": row["input_ids"]})

    assert isolation.leaks(model, tiny_run.VOCAB, as_one, flat=False)


@pytest.mark.parametrize("is_told", [True, False])
def test_flash_attention_keeps_apart_what_it_is_told_of(monkeypatch: pytest.MonkeyPatch, *, is_told: bool) -> None:
    """Simulated; told of one document, it attends over both, whatever their positions say."""
    simulated_flash.use(monkeypatch)
    model = simulated_flash.on(made("llama", "eager"))
    known = KnownRows(model, "flash_attention_2")

    def told(row: MicroBatch) -> dict[str, Any]:
        length = row["input_ids"].shape[1]
        return known.told(row if is_told else row | document_ends(torch.tensor([0, length]), length))

    assert isolation.leaks(model, tiny_run.VOCAB, told, flat=True) != is_told


def test_a_wrong_mask_is_found_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rehearsal asks with what the model is told when it trains: here, one mask over all documents."""
    base = tiny_run.make_base_model(tmp_path / "base")
    text = f"""
model: {base}
data: {{train: rows.jsonl, length: 64}}
tune: {{method: lora, rank: 4}}
train: {{batch: 8, steps: 2}}
where: {{arrange: rows}}
"""
    run_dir = tiny_run.make_run(tmp_path / "run", text, tiny_run.random_rows(16, seed=5, longest=64, segments=3))
    real = known_rows._mask
    monkeypatch.setattr(known_rows, "_mask", lambda positions: real(torch.ones_like(positions)))
    assert tiny_run.train(run_dir) != 0
    assert "STK433" in (run_dir.path / "child.log").read_text()


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
    assert looks_ahead(model, packed=False)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("family", "sizes"), [("llama", {}), ("gemma3_text", {}), ("qwen3_5_text", LINEAR)])
def test_a_decoder_sees_nothing_ahead(family: str, sizes: dict[str, Any], *, packed: bool) -> None:
    assert not looks_ahead(made(family, **sizes), packed=packed)


@pytest.mark.parametrize("is_causal", [True, False])
def test_the_hidden_states_of_the_fused_loss_say_the_same(*, is_causal: bool) -> None:
    model = made("llama", is_causal=is_causal)
    fused_loss.use(model, "sdpa")
    assert looks_ahead(model, packed=False) != is_causal


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
