"""The Modelfile for Ollama: its parameters, what it cannot hold, and which GGUF file may be used again."""

from pathlib import Path
from typing import Any

import pytest
from made_runs import make_run

from stoker.artifacts import ollama, turn_pieces
from stoker.artifacts.ollama import OllamaFacts
from stoker.artifacts.turn_pieces import Around, TurnPieces
from stoker.rundir import artifacts, files
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir

PIECES = TurnPieces("", Around("<s>", "</s>"), "<u>", Around("<u>", "</u>"), Around("<a>", "</a>"), "<a>")


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    made = RunDir(make_run(tmp_path / "runs", "done"))
    made.run_file.write_text("model: acme/base\ndata: {train: rows.jsonl, length: 64}\ntune: {method: lora, rank: 8}\n")
    return made


def facts(**changes: Any) -> OllamaFacts:
    usual: dict[str, Any] = {
        "plain": False,
        "samples": [],
        "trims": False,
        "clock": False,
        "start": "",
        "stops": ["<|im_end|>", " "],
        "system": None,
        "settings": {},
        "context": None,
        "licence": {"license": "apache-2.0"},
    }
    return OllamaFacts(**{**usual, **changes})


def lines(run_dir: RunDir, template: str | None = None, system: str | None = None, **changes: Any) -> list[str]:
    return ollama.modelfile(run_dir, "a-q8_0.gguf", template, system, facts(**changes)).splitlines()


def test_without_a_template_a_version_that_reads_the_files_own_is_asked_for(run_dir: RunDir) -> None:
    said = lines(run_dir)
    assert said[1] == "FROM ./a-q8_0.gguf"
    assert "REQUIRES 0.30.0" in said
    assert not any(line.startswith("TEMPLATE") for line in said)
    with_one = lines(run_dir, turn_pieces.PLAIN, "Be brief.")
    assert 'TEMPLATE """{{ .Prompt }}"""' in with_one
    assert 'SYSTEM """Be brief."""' in with_one
    assert not any(line.startswith("REQUIRES") for line in with_one)


def test_stops_and_licence_are_stated_and_a_blank_stop_is_not(run_dir: RunDir) -> None:
    said = lines(run_dir)
    assert [line for line in said if line.startswith("PARAMETER stop")] == ['PARAMETER stop "<|im_end|>"']
    assert 'LICENSE """apache-2.0"""' in said
    assert not any(line.startswith("LICENSE") for line in lines(run_dir, licence={"license": "unknown"}))


def test_the_context_is_that_of_training_within_what_the_model_takes(run_dir: RunDir) -> None:
    length = run_dir.run().data.length
    assert f"PARAMETER num_ctx {max(length, 4096)}" in lines(run_dir)
    assert "PARAMETER num_ctx 64" in lines(run_dir, context=64)


def test_sampling_is_that_of_the_generation_settings(run_dir: RunDir) -> None:
    assert ollama.sampling({"temperature": 0.6}) == {"temperature": 0, "repeat_penalty": 1}  # it does not sample
    sampled = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "repetition_penalty": 1.1}
    expected = {"temperature": 0.6, "top_k": 50, "top_p": 0.95, "min_p": 0, "repeat_penalty": 1.1}
    assert ollama.sampling(sampled) == expected
    assert "PARAMETER temperature 0.6" in lines(run_dir, settings=sampled)


@pytest.mark.parametrize("text", ["全角　空格", 'a """ b', "joined \U0001f469‍\U0001f4bb", " spaces "])
def test_a_system_prompt_that_a_modelfile_would_change_is_left_out_and_said(text: str) -> None:
    assert ollama.system_prompt(facts(system=text), PIECES) == (None, ["ollama.system_left_out"])


def test_a_system_prompt_of_all_rows_is_taken_unless_the_template_writes_it() -> None:
    assert ollama.system_prompt(facts(system="你是助手。\nBe brief."), PIECES) == ("你是助手。\nBe brief.", [])
    own = TurnPieces("<s>Default.</s>", PIECES.system, "<u>", PIECES.user, PIECES.assistant, "<a>")
    assert ollama.system_prompt(facts(system="Default."), own) == (None, [])
    assert ollama.system_prompt(facts(system=None), PIECES) == (None, [])


def test_literals_keep_what_a_modelfile_would_drop() -> None:
    pieces = TurnPieces("", None, "", Around('"\\', "　\n\U000e0001"), Around("", ""), "")
    assert r'{{ "\"\\" }}{{ .Content }}{{ "\U00003000\n\U000e0001" }}' in pieces.go_template()


def test_a_gguf_file_is_used_again_only_if_it_was_made_after_the_last_training(run_dir: RunDir) -> None:
    folder = artifacts.folder(run_dir, "gguf-q8_0")
    folder.mkdir(parents=True)
    file = folder / "done-q8_0.gguf"
    file.write_bytes(b"GGUF")
    assert ollama.ready_gguf(run_dir, "gguf-q8_0") is None  # no event: it may be of an earlier training
    log = EventLog(run_dir.events_file)
    log.write("quantized", name="gguf-q8_0", path=str(folder))
    assert ollama.ready_gguf(run_dir, "gguf-q8_0") is None  # not accepted
    files.write_json(run_dir.artifacts / "parity.json", {"gguf-q8_0": {"accepted": True}})
    assert ollama.ready_gguf(run_dir, "gguf-q8_0") == file
    assert ollama.ready_gguf(run_dir, "gguf-q4_k_m") is None
    log.write("end", status="done", step=9)
    assert ollama.ready_gguf(run_dir, "gguf-q8_0") is None
    log.close()
