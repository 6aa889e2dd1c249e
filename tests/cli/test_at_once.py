"""Two commands that work on one finished run at once: the second is refused in words, and the first goes on."""

import json
from pathlib import Path
from typing import Any

import pytest
from made_runs import LANGUAGES, CommandLine, held, is_held, make_run

from stoker.artifacts import model_server, ollama, publishing, quantized
from stoker.artifacts.ollama import OllamaFolder
from stoker.artifacts.publishing import Staged
from stoker.handover import artifact_commands, evaluate_command, model_card, ollama_command, publish_command
from stoker.launch import programs
from stoker.messages import in_language
from stoker.rundir import artifacts
from stoker.rundir.layout import RunDir

ARTIFACTS, EVALUATION, SERVER, PUBLICATION = "artifacts.lock", "eval.lock", "serve.lock", "publish.lock"
REFUSED = {
    "merge": (("merge", "done"), ARTIFACTS, "STK605"),
    "export": (("export", "done"), ARTIFACTS, "STK605"),
    "ollama": (("export", "done", "--ollama"), ARTIFACTS, "STK605"),
    "quantize": (("quantize", "done", "--int8"), ARTIFACTS, "STK605"),
    "eval": (("eval", "done"), EVALUATION, "STK525"),
    "harness": (("eval", "done", "--harness", "arc_easy"), ARTIFACTS, "STK605"),
    "serve": (("serve", "done", "--port", "47113"), SERVER, "STK606"),
    "bench": (("bench", "done"), SERVER, "STK606"),
}


@pytest.fixture
def run_dir(runs: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A finished run with an adapter."""
    run_dir = RunDir(make_run(runs, "done"))
    run_dir.run_file.write_text("model: acme/base\ndata: {train: rows.jsonl, length: 64}\ntune: {method: lora}\n")
    run_dir.final.mkdir(parents=True)
    (run_dir.final / "adapter_config.json").write_text("{}")
    (run_dir.final / "adapter_model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr(quantized, "require", lambda *_: None)
    monkeypatch.setattr(model_server, "find_engine", lambda: ("transformers", Path("python")))
    return run_dir


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("case", REFUSED)
def test_the_second_of_two_commands_is_refused_before_it_begins(
    stoker: CommandLine, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, case: str, language: str
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(programs, "run_engine", lambda *words: started.append(words))
    half_made = artifacts.begin(run_dir, "merged") / "model.safetensors"
    half_made.write_bytes(b"half")
    words, lock, code = REFUSED[case]
    with held(run_dir.path / lock):
        done = stoker(*words, language=language)
    assert done.code == 1, done.err
    said = "".join(done.err.split())
    assert "".join(in_language(language, code, name="done").split()) in said
    assert "".join(in_language(language, f"{code}.hint", name="done").split()) in said
    assert started == []
    assert half_made.read_bytes() == b"half"


def test_a_run_that_is_trained_is_evaluated_all_the_same(
    stoker: CommandLine, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(run_dir: RunDir, _: Any) -> dict[str, Any]:
        assert is_held(run_dir.path / EVALUATION)
        return {"eval_loss": 1.0}

    monkeypatch.setattr(evaluate_command, "_measure", measure)
    with held(run_dir.lock_file), held(run_dir.supervisor_lock):
        done = stoker("eval", "done", "--json")
    assert (done.code, json.loads(done.out)) == (0, {"eval_loss": 1.0})


# ---- the lock is held until the artifact is accepted, also where one command makes several


def make(run_dir: RunDir, name: str) -> Path:
    """In place of the engine and the comparison."""
    assert is_held(run_dir.path / ARTIFACTS)
    (artifacts.begin(run_dir, name) / "model.safetensors").write_bytes(name.encode())
    artifacts.record_parity(run_dir, name, {"accepted": True})
    return artifacts.accept(run_dir, name)


def make_quantized(run_dir: RunDir, kind: str, source: Path) -> dict[str, Any]:
    path = make(run_dir, kind)
    (path / f"done-{kind}.gguf").write_bytes(b"gguf")
    sizes = {"bytes": 1, "source_bytes": 1, "agreement": 1.0, "perplexity_change": None}
    return {"name": kind, "path": str(path), **sizes}


def make_for_ollama(run_dir: RunDir, *_: Any) -> OllamaFolder:
    assert is_held(run_dir.path / ARTIFACTS)
    path = artifacts.begin(run_dir, ollama.NAME)
    artifacts.record_parity(run_dir, ollama.NAME, {"accepted": True})
    return OllamaFolder(path, "done-q8_0.gguf", "go", 0, None, licence={})


def copy(source: Path, target: Path) -> None:
    assert is_held(source.parent.parent / ARTIFACTS)


@pytest.mark.parametrize(
    "words",
    [
        ("merge", "done"),
        ("export", "done", "out"),
        ("export", "done", "out", "--ollama"),
        ("quantize", "done", "--int8"),
    ],
    ids=" ".join,
)
def test_a_command_holds_the_run_from_the_merge_to_the_copy(
    stoker: CommandLine, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(artifact_commands, "make_merged", lambda run_dir: make(run_dir, "merged"))
    monkeypatch.setattr(artifact_commands, "_make_export", lambda run_dir, **_: make(run_dir, "export"))
    monkeypatch.setattr(artifact_commands, "make_quantized", make_quantized)
    monkeypatch.setattr(artifact_commands, "copy", copy)
    monkeypatch.setattr(ollama, "make", make_for_ollama)
    monkeypatch.setattr(ollama_command, "_say", lambda *_: None)
    monkeypatch.setattr(model_card, "text", lambda *_: "card")
    (tmp_path / "out").mkdir()
    done = stoker(*words, "--json")
    assert done.code == 0, done.err
    assert not is_held(run_dir.path / ARTIFACTS)


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_artifact_may_be_made_while_another_is_sent_but_not_sent_twice(
    stoker: CommandLine, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    class Hub:
        address, page = "hf:me/done", "https://hub/me/done"
        check_token = look = staticmethod(lambda: None)

    def stage(run_dir: RunDir, what: str) -> Staged:
        assert is_held(run_dir.path / ARTIFACTS)
        return Staged(artifacts.begin(run_dir, "publish"), [], 0, [])

    def send(hub: Any, there: Any, staged: Staged, run_dir: RunDir, **_: Any) -> Any:
        assert (is_held(run_dir.path / PUBLICATION), is_held(run_dir.path / ARTIFACTS)) == (True, False)
        return type("Repository", (), {"private": True})

    monkeypatch.setattr(publish_command.model_hubs, "open_hub", lambda *_: Hub)
    monkeypatch.setattr(publish_command, "_staged", stage)
    monkeypatch.setattr(publish_command, "_send", send)
    words = ("publish", "done", "--to", "hf:me/done", "--artifact", "adapter", "--yes")
    assert stoker(*words).code == 0
    staged = artifacts.begin(run_dir, publishing._WORK) / "config.json"
    staged.write_text("{}")
    with held(run_dir.path / PUBLICATION):
        done = stoker(*words, language=language)
    assert done.code == 1
    assert in_language(language, "STK539", name="done") in done.err
    assert staged.exists()


def test_what_was_not_made_replaces_nothing(run_dir: RunDir) -> None:
    (artifacts.begin(run_dir, "merged") / "model.safetensors").write_bytes(b"whole")
    place = artifacts.accept(run_dir, "merged")
    with pytest.raises(FileNotFoundError):
        artifacts.accept(run_dir, "merged")
    assert (place / "model.safetensors").read_bytes() == b"whole"
