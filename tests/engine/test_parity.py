"""The parity gate: passes what is the trained model, and catches the eight planted faults, each with its cause."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import adapted_run
import parity_case
import pytest
import simulated_vllm
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stoker.artifacts import parity_gate
from stoker.engine import generate, merge, tensors
from stoker.engine import parity as program
from stoker.errors import StokerError, StokerErrors
from stoker.launch import programs
from stoker.plan import parity_limits as limits
from stoker.plan.parity_limits import KINDS, LEAST_PROMPTS, Reference
from stoker.rundir import artifacts, files
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.filterwarnings("default")

FAULTS: dict[str, tuple[Callable[[Path, RunDir], None], str, str]] = {
    "wrong template": (parity_case.wrong_template, "STK641", "chat template"),
    "missing EOS": (parity_case.missing_eos, "STK642", "'<|im_end|>'"),
    "wrong dtype merge": (parity_case.merged_in_bf16, "STK646", "lower precision"),
    "swapped tensor": (parity_case.swapped_tensor, "STK646", "it contains the weights of model.layers.1.mlp.up_proj"),
    "stale tokenizer": (parity_case.stale_tokenizer, "STK643", "is tokenised differently"),
    "truncated shard": (parity_case.truncated_shard, "STK644", "bytes"),
    "wrong adapter scale": (parity_case.wrong_scale, "STK646", "is 2 times what it should be"),
    "wrong base": (parity_case.wrong_base, "STK646", "another base model"),
}
"""The eight of the bar: how each is planted, the code it is caught with, and words that name its cause."""

MORE = {
    "stored in a shorter type": (parity_case.stored_in_bf16, "STK646", "lower precision"),
    "no adapter": (parity_case.no_adapter, "STK646", "the adapter is missing"),
    "missing tensor": (parity_case.missing_tensor, "STK644", "model.layers.1.mlp.up_proj.weight is missing"),
}

IN_THE_WEIGHTS = {
    "wrong dtype merge": parity_case.merged_in_bf16,
    "swapped tensor": parity_case.swapped_tensor,
    "wrong adapter scale": parity_case.wrong_scale,
    "wrong base": parity_case.wrong_base,
    "no adapter": parity_case.no_adapter,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return parity_case.train(tmp_path_factory.mktemp("parity"))


@pytest.fixture(scope="module")
def merged(trained: RunDir) -> Path:
    """The faultless merge, kept beside the run."""
    return parity_case.merge(trained).rename(trained.path / "faultless")


@pytest.fixture
def artifact(trained: RunDir, merged: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the faultless merge where the gate looks for it, and the engine in this process."""
    monkeypatch.setattr(programs, "run_engine", parity_case.in_this_process)
    monkeypatch.setenv("STOKER_LANG", "en")
    folder = artifacts.aside(trained, "merged")
    shutil.copytree(merged, folder)
    yield folder
    shutil.rmtree(folder)


def refused(run_dir: RunDir, name: str = "merged", **words: Any) -> list[StokerError]:
    with pytest.raises((StokerError, StokerErrors)) as caught:
        parity_gate.compare(run_dir, name, **words)
    error = caught.value
    return error.errors if isinstance(error, StokerErrors) else [error]


def reference(run_dir: RunDir) -> Reference:
    return Reference.model_validate(files.read_json(artifacts.reference_file(run_dir)))


# ---- the faultless


def test_the_faultless_merge_passes(trained: RunDir, artifact: Path) -> None:
    figures = parity_gate.compare(trained, "merged")
    assert figures["accepted"]
    assert figures["prompts"] >= LEAST_PROMPTS
    assert figures["agree"] == figures["tokens"] > 300
    assert 0 < figures["logit_distance"] < figures["logit_distance_limit"] < 1e-2
    assert figures["template_same"] is figures["stops_same"] is figures["tokenizer_same"] is True
    assert figures["weights"]["compared"] == figures["weights"]["of"]
    assert artifacts.parity(trained)["merged"] == figures


def test_it_passes_through_the_real_program_too(trained: RunDir, merged: Path) -> None:
    figures = parity_gate.compare(trained, "export", folder=merged)
    assert figures["accepted"]
    assert artifacts.parity(trained)["export"]["agree"] == figures["tokens"]


def test_the_reference_is_worth_comparing_with(trained: RunDir, artifact: Path) -> None:
    """Learned answers that end by themselves, prompts of both kinds, in both languages, no two the same."""
    parity_gate.compare(trained, "merged")
    known = reference(trained)
    answers = {json.loads(line)["messages"][1]["content"] for line in parity_case.RECIPE.read_text().splitlines()}
    said = ["".join(known.texts[token] for token in prompt.answer[:-1]) for prompt in known.prompts if prompt.stopped]
    assert len(answers & set(said)) >= 20, "of 24 learned"
    assert {prompt.source for prompt in known.prompts} == {"data", "shipped"}
    assert len({tuple(prompt.ids) for prompt in known.prompts}) == len(known.prompts)
    assert any("你" in prompt.text for prompt in known.prompts)
    assert known.own_distance < 1e-3


def test_the_reference_is_made_once_and_again_when_the_weights_change(trained: RunDir, artifact: Path) -> None:
    parity_gate.compare(trained, "merged")
    path = artifacts.reference_file(trained)
    made = path.stat().st_mtime_ns
    parity_gate.compare(trained, "merged")
    assert path.stat().st_mtime_ns == made
    config = trained.final / "adapter_config.json"
    before = config.read_text()
    config.write_text(before + "\n")
    try:
        assert program.current(trained) is None
    finally:
        config.write_text(before)
    assert program.current(trained) is not None


# ---- the faulty


@pytest.mark.parametrize("fault", [*FAULTS, *MORE])
def test_a_planted_fault_is_caught_and_its_cause_named(trained: RunDir, artifact: Path, fault: str) -> None:
    plant, code, words = {**FAULTS, **MORE}[fault]
    plant(artifact, trained)
    errors = refused(trained)
    assert errors[0].code == code
    assert words in errors[0].what
    assert {error.code for error in errors[1:]} <= {"STK640"}, "beside the cause only where answers part"
    assert errors[0].hint
    written = artifacts.parity(trained)["merged"]
    assert not written["accepted"]
    assert written["problems"][0]["code"] == code
    assert not artifacts.folder(trained, "merged").exists()


def test_there_are_eight_faults_on_the_bar() -> None:
    assert len(FAULTS) == 8


@pytest.mark.parametrize("fault", IN_THE_WEIGHTS)
def test_wrong_weights_are_caught_by_answers_alone(
    trained: RunDir, artifact: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second net, and the only one where an endpoint hides the tensors."""
    monkeypatch.setattr(tensors, "compare", lambda *_: None)
    IN_THE_WEIGHTS[fault](artifact, trained)
    (error,) = refused(trained)
    assert error.code == "STK640"
    assert error.fields["expected"] != error.fields["got"]
    assert ("lower precision" if fault == "wrong dtype merge" else "different weights") in error.hint


def test_where_they_part_is_said_beside_the_cause(trained: RunDir, artifact: Path) -> None:
    parity_case.wrong_base(artifact, trained)
    errors = refused(trained)
    assert [error.code for error in errors] == ["STK646", "STK640"]
    prompt, position = errors[1].fields["prompt"] - 1, errors[1].fields["position"] - 1
    token = reference(trained).prompts[prompt].answer[position]
    assert f"({token})" in errors[1].fields["expected"]


def test_a_quantised_kind_is_held_to_its_limits(trained: RunDir, artifact: Path) -> None:
    """bf16 for fp32 passes as a quantised artifact; other weights do not."""
    artifact.rename(artifacts.aside(trained, "int8"))
    try:
        parity_case.stored_in_bf16(artifacts.aside(trained, "int8"), trained)
        figures = parity_gate.compare(trained, "int8")
        assert figures["agreement"] >= KINDS["int8"].agreement
        assert abs(figures["perplexity_change"]) <= KINDS["int8"].perplexity
        parity_case.no_adapter(artifacts.aside(trained, "int8"), trained)
        assert [error.code for error in refused(trained, "int8")] == ["STK647"]
    finally:
        artifacts.aside(trained, "int8").rename(artifact)


# ---- no false alarm, whatever kind of adapter


@pytest.mark.parametrize(
    ("kind", "tied", "tune", "lora", "compared"),
    [
        ("llama", False, "{method: qlora, rank: 4}", "{}", 21),
        ("llama", False, "{method: lora, rank: 4}", "{use_dora: true}", 7),
        ("llama", True, "{method: lora, rank: 4, targets: [q_proj, lm_head]}", "{}", 21),
        ("llama", True, "{method: lora, rank: 4, targets: [q_proj]}", "{modules_to_save: [lm_head]}", 21),
        ("qwen2", False, "{method: lora, rank: 4, targets: [q_proj, v_proj]}", "{lora_bias: true}", 19),
        ("gpt2", True, "{method: qlora, rank: 4, targets: [c_attn, c_proj]}", "{}", 12),
    ],
)
def test_the_tensors_of_a_right_merge_are_as_expected(
    tmp_path: Path, kind: str, tied: bool, tune: str, lora: str, compared: int
) -> None:
    """Those this cannot tell (DoRA's, trained biases, transposed 4-bit ones) are left out, not refused."""
    base = adapted_run.make_base(tmp_path / "base", kind, tied=tied)
    run_dir = adapted_run.make_run(tmp_path / "run", base, tune, lora)
    assert merge.main(run_dir.path) == 0
    model, _ = generate.load(run_dir)
    figures = tensors.compare(model, artifacts.aside(run_dir, "merged"), "float32")
    assert "cause" not in figures
    assert figures["compared"] == compared
    assert figures["excess"] < 1


def test_the_merge_of_a_four_bit_run_in_bf16_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortest type and quantised weights: partings are ties, logits within rounding."""
    monkeypatch.setattr(programs, "run_engine", parity_case.in_this_process)
    monkeypatch.setattr(limits, "ANSWER_TOKENS", 8)  # 4-bit layers are slow on a CPU
    base = adapted_run.make_base(tmp_path / "base", dtype=torch.bfloat16)
    run_dir = adapted_run.make_run(tmp_path / "run", base, "{method: qlora, rank: 4}", where="{precision: bf16}")
    assert merge.main(run_dir.path) == 0
    figures = parity_gate.compare(run_dir, "merged")
    assert reference(run_dir).dtype == "bfloat16"
    assert figures["tokens"] - figures["agree"] == figures["ties"] <= figures["ties_limit"]
    assert 1e-3 < figures["logit_distance"] < figures["logit_distance_limit"]


# ---- through an endpoint: a simulation of vLLM's server around the real model; the real one is in test_serve_path.py


def served(folder: Path, stops: list[int], room: int = simulated_vllm.CONTEXT) -> simulated_vllm.Engine:
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    return simulated_vllm.Engine(model, AutoTokenizer.from_pretrained(folder), stops, room)


@pytest.fixture
def stops(trained: RunDir, artifact: Path) -> list[int]:
    parity_gate.compare(trained, "merged")
    return reference(trained).stops


def test_the_faultless_endpoint_passes(trained: RunDir, artifact: Path, stops: list[int]) -> None:
    with simulated_vllm.serving(served(artifact, stops)) as endpoint:
        figures = parity_gate.compare(trained, "served", endpoint)
    assert figures["agree"] == figures["tokens"]
    assert figures["logit_distance"] < figures["logit_distance_limit"]
    assert abs(figures["perplexity_change"]) < 1e-4
    assert figures["through"] == endpoint.url
    assert endpoint.token not in json.dumps(artifacts.parity(trained))


def test_an_endpoint_that_does_not_stop_is_caught(trained: RunDir, artifact: Path, stops: list[int]) -> None:
    """Every token agrees up to the end of turn; only going on behind it is wrong."""
    with simulated_vllm.serving(served(artifact, stops=[2])) as endpoint:
        errors = refused(trained, "served", endpoint=endpoint)
    assert errors[0].code == "STK642"
    assert "'<|im_end|>'" in errors[0].what


def test_an_endpoint_with_another_template_is_caught(trained: RunDir, artifact: Path, stops: list[int]) -> None:
    parity_case.wrong_template(artifact, trained)
    with simulated_vllm.serving(served(artifact, stops)) as endpoint:
        (error,) = refused(trained, "served", endpoint=endpoint)
    assert error.code == "STK641"


def test_an_endpoint_that_serves_the_base_alone_is_caught(trained: RunDir, artifact: Path, stops: list[int]) -> None:
    parity_case.no_adapter(artifact, trained)
    with simulated_vllm.serving(served(artifact, stops)) as endpoint:
        errors = refused(trained, "served", endpoint=endpoint)
    assert "STK640" in [error.code for error in errors]


def test_an_endpoint_too_short_for_the_prompts_is_not_called_compared(
    trained: RunDir, artifact: Path, stops: list[int]
) -> None:
    with simulated_vllm.serving(served(artifact, stops, room=24)) as endpoint:
        (error,) = refused(trained, "served", endpoint=endpoint)
    assert error.code == "STK649"


def test_an_endpoint_that_refuses_the_token_is_named(trained: RunDir, artifact: Path, stops: list[int]) -> None:
    with simulated_vllm.serving(served(artifact, stops)) as endpoint:
        (error,) = refused(trained, "served", endpoint=dataclasses.replace(endpoint, token="another"))
    assert error.code == "STK648"
    assert "401" in error.what
    assert "another" not in str(error)
