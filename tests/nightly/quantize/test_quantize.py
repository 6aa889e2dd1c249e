"""Quantised artifacts of a tiny model that was really trained, through the user's door and the tools' own programs."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tour import run
from transformers import AutoModelForCausalLM

from stoker import tools
from stoker.artifacts import endpoint, llamacpp, quantized
from stoker.artifacts.endpoint import EndpointError
from stoker.artifacts.llamacpp import LlamaCpp
from stoker.engine import quantize
from stoker.errors import StokerError
from stoker.rundir import artifacts, files
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.filterwarnings("default")

needs_llamacpp = pytest.mark.skipif(tools.find(tools.LLAMACPP) is None, reason="no llamacpp environment")
needs_llmcompressor = pytest.mark.skipif(tools.find(tools.LLMCOMPRESSOR) is None, reason="no llmcompressor environment")


@pytest.fixture(scope="module")
def run_dir(toured: Path) -> RunDir:
    """An adapter on a model with a tokenizer of its own, both trained, and merged."""
    return RunDir(toured / "runs" / "sft_tiny")


@pytest.fixture(scope="module")
def merged(run_dir: RunDir) -> Path:
    return artifacts.folder(run_dir, "merged")


Make = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def make(toured: Path, run_dir: RunDir) -> Make:
    def quantize_with(*words: str) -> dict[str, Any]:
        done = run(f"stoker quantize {run_dir.name} {shlex.join(words)} --json", toured)
        assert done.returncode == 0, done.stderr
        made: dict[str, Any] = json.loads(done.stdout)
        assert made["bytes"] < made["source_bytes"]
        return made

    return quantize_with


# ---- llama.cpp


@pytest.fixture(scope="module")
def q8_0(run_dir: RunDir, make: Make) -> Path:
    made = make("--gguf", "q8_0")
    assert made["agreement"] >= 0.95
    (file,) = artifacts.folder(run_dir, "gguf-q8_0").iterdir()
    return file


@pytest.fixture(scope="module")
def served(run_dir: RunDir, q8_0: Path) -> Iterator[LlamaCpp]:
    with llamacpp.serving(run_dir, q8_0) as address:
        yield address


@needs_llamacpp
def test_q8_0_served_by_llama_cpp_gives_the_trained_models_greedy_tokens(run_dir: RunDir, served: LlamaCpp) -> None:
    prompts = files.read_json(artifacts.reference_file(run_dir))["prompts"]
    assert len(prompts) >= 50
    same = total = 0
    for prompt in prompts:
        tokens, _, _ = llamacpp.complete(served, prompt["ids"], len(prompt["answer"]))
        same += sum(one == other for one, other in zip(tokens, prompt["answer"], strict=False))
        total += len(prompt["answer"])
    assert total > 400
    assert same / total >= 0.95


@needs_llamacpp
def test_an_openai_client_gets_the_trained_answer_and_its_end(served: LlamaCpp) -> None:
    asked = {"messages": [{"role": "user", "content": "Who are you?"}], "temperature": 0, "max_tokens": 60}
    (choice,) = endpoint.ask(served, "chat/completions", asked)["choices"]
    assert choice["message"]["content"] == "I am a small model."
    assert choice["finish_reason"] == "stop"


@needs_llamacpp
def test_the_server_wants_its_token_and_is_gone_afterwards(run_dir: RunDir, q8_0: Path) -> None:
    with llamacpp.serving(run_dir, q8_0) as address:
        assert address.url.startswith("http://127.0.0.1:")
        with pytest.raises(EndpointError, match="401"):
            endpoint.ask(LlamaCpp(address.url, "another", address.model), "completions", {"prompt": "a"})
        token = address.token
    assert token not in (run_dir.logs / "llamacpp.log").read_text(encoding="utf-8")
    with pytest.raises(OSError, match="refused"):
        endpoint.ask(address, "completions", {"prompt": "a"})


@needs_llamacpp
def test_llama_cpp_reads_every_text_into_the_trained_tokens(run_dir: RunDir, merged: Path, served: LlamaCpp) -> None:
    texts = quantize.words(run_dir, merged)["texts"]
    assert len(texts) > 300
    quantized.compare_tokens(served, texts)


@needs_llamacpp
def test_a_character_of_several_tokens_has_the_trained_models_loss(merged: Path, served: LlamaCpp) -> None:
    """The server names no probability of a token that ends inside a character."""
    ids = llamacpp.tokenize(served, "a 龘 b")
    assert len(ids) > len("a 龘 b")  # the second letter is more than one token
    model = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    with torch.no_grad():
        expected = model(torch.tensor([ids]), labels=torch.tensor([ids])).loss.item()
    total, count = llamacpp.loss(served, ids)
    assert count == len(ids) - 1
    assert total / count == pytest.approx(expected, rel=0.02)
    tokens, lines, _ = llamacpp.complete(served, ids[:-2], 4)
    assert len(lines) == len(tokens)


@needs_llamacpp
@pytest.mark.parametrize("pre", ["default", "deepseek-v3"])
def test_another_pre_tokenizer_is_caught(run_dir: RunDir, merged: Path, q8_0: Path, tmp_path: Path, pre: str) -> None:
    wrong = tmp_path / "wrong.gguf"
    change = ["-m", "gguf.scripts.gguf_new_metadata", "--pre-tokenizer", pre, str(q8_0), str(wrong)]
    subprocess.run([sys.executable, *change], check=True, capture_output=True, timeout=60)
    with llamacpp.serving(run_dir, wrong) as address, pytest.raises(StokerError) as caught:
        quantized.compare_tokens(address, quantize.words(run_dir, merged)["texts"])
    assert caught.value.code == "STK633"


@needs_llamacpp
def test_a_tokenizer_llama_cpp_cannot_imitate_is_refused(run_dir: RunDir, merged: Path, tmp_path: Path) -> None:
    source = tmp_path / "model"
    shutil.copytree(merged, source)
    does = files.read_json(source / "tokenizer.json")
    does["pre_tokenizer"] = {"type": "Whitespace"}
    files.write_json(source / "tokenizer.json", does)
    expected = quantize.words(run_dir, source)
    with pytest.raises(StokerError) as caught:
        quantized.convert(run_dir, "gguf-q8_0", source, tmp_path / "a.gguf", tmp_path / "facts.json", expected)
    assert caught.value.code == "STK632"
    assert "Whitespace" in caught.value.what


@needs_llamacpp
def test_q4_k_m_runs_and_reports(run_dir: RunDir, make: Make) -> None:
    made = make("--gguf", "q4_k_m")
    assert made["agreement"] >= 0.8
    assert abs(made["perplexity_change"]) < 0.1
    assert [path.suffix for path in artifacts.folder(run_dir, "gguf-q4_k_m").iterdir()] == [".gguf"]


@pytest.mark.parametrize("key", ["chat_template", "eos", "turn_end"])
def test_other_words_in_a_gguf_file_are_caught(key: str) -> None:
    words = {"chat_template": "{{ messages }}", "eos": 1, "turn_end": 3}
    quantized.compare_words(words, words)
    with pytest.raises(StokerError) as caught:
        quantized.compare_words({**words, key: None}, words)
    assert caught.value.code == "STK635"
    assert key in caught.value.what


def test_an_end_of_turn_that_only_llama_cpp_names_must_be_one_where_the_model_stops() -> None:
    expected = {"chat_template": None, "eos": 1, "turn_end": None, "stops": [1, 7]}
    quantized.compare_words({**expected, "turn_end": 7}, expected)
    with pytest.raises(StokerError, match="STK635"):
        quantized.compare_words({**expected, "turn_end": 8}, expected)


# ---- transformers and vLLM


def test_int8_is_safetensors_that_transformers_loads_as_they_are(run_dir: RunDir, merged: Path, make: Make) -> None:
    made = make("--int8")
    assert made["agreement"] >= 0.9
    folder = artifacts.folder(run_dir, "int8")
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".json", ".jinja"}
    assert files.read_json(folder / "config.json")["quantization_config"]["quant_method"] == "torchao"
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (folder / name).read_bytes() == (merged / name).read_bytes()


@needs_llmcompressor
@pytest.mark.parametrize(("kind", "bits"), [("gptq", 4), ("fp8", 8)])
def test_llmcompressor_makes_what_vllm_loads(run_dir: RunDir, merged: Path, make: Make, kind: str, bits: int) -> None:
    made = make(f"--{kind}")
    assert made["agreement"] >= 0.8
    folder = artifacts.folder(run_dir, kind)
    config = files.read_json(folder / "config.json")["quantization_config"]
    assert config["quant_method"] == "compressed-tensors"
    assert config["config_groups"]["group_0"]["weights"]["num_bits"] == bits
    ends = [files.read_json(path / "generation_config.json")["eos_token_id"] for path in (folder, merged)]
    assert ends[0] == ends[1]
    assert not list(artifacts.folder(run_dir, "final").parent.glob(".*.tmp"))
