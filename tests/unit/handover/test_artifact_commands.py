"""Which artifact counts as accepted, what its card is made of, and into which folder it may be copied."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from made_runs import make_run

from stoker.artifacts import ollama, publishing, quantized
from stoker.artifacts.ollama import OllamaFolder
from stoker.errors import StokerError
from stoker.handover import artifact_commands, model_card, ollama_command, publish_command
from stoker.rundir import artifacts, files, inputs
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir

CARD = "---\nlicense: mit\nstoker:\n  version: '1'\n---\n"
ACCEPTED = {"accepted": True}
WEIGHTS = (2).to_bytes(8, "little") + b"{}"


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A finished run with an adapter."""
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    run_dir = RunDir(make_run(tmp_path / "runs", "done"))
    run_dir.run_file.write_text("model: acme/base\ndata: {train: rows.jsonl, length: 64}\ntune: {method: lora}\n")
    run_dir.final.mkdir(parents=True)
    (run_dir.final / "adapter_config.json").write_text("{}")
    train(run_dir, b"first")
    return run_dir


def train(run_dir: RunDir, adapter: bytes) -> None:
    (run_dir.final / "adapter_model.safetensors").write_bytes(adapter)
    write_event(run_dir, "end", status="done", step=9)


def write_event(run_dir: RunDir, event: str, **words: Any) -> None:
    with closing(EventLog(run_dir.events_file)) as log:
        log.write(event, **words)


def begin(run_dir: RunDir, name: str) -> None:
    """What the engine leaves before the comparison."""
    folder = artifacts.begin(run_dir, name)
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    (folder / model_card.FILE_NAME).write_text(CARD)
    if name == "merged":
        write_event(run_dir, "merged", adapter=files.sha256(run_dir.final / "adapter_model.safetensors"))
    else:
        write_event(run_dir, "exported", dtype="float32", bytes=5, licence={"license": "mit"})


def make(run_dir: RunDir, name: str) -> Path:
    begin(run_dir, name)
    artifacts.record_parity(run_dir, name, ACCEPTED)
    return artifacts.accept(run_dir, name)


def test_a_merge_whose_comparison_died_leaves_no_accepted_one(run_dir: RunDir) -> None:
    folder = make(run_dir, "merged")
    assert artifact_commands.merged(run_dir) == inputs.whole_model(run_dir) == folder
    train(run_dir, b"second")
    begin(run_dir, "merged")
    assert artifact_commands.merged(run_dir) is None
    with pytest.raises(StokerError, match="STK143"):
        inputs.whole_model(run_dir)
    artifacts.record_parity(run_dir, "merged", ACCEPTED)
    assert artifact_commands.merged(run_dir) is None, "compared, and the earlier one is still in its place"
    artifacts.accept(run_dir, "merged")
    assert artifact_commands.merged(run_dir) == folder


def test_an_export_whose_comparison_died_is_made_again(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_commands, "_make_export", lambda *_, **__: Path("made again"))
    make(run_dir, "merged")
    folder = make(run_dir, "export")
    assert artifact_commands.exported(run_dir) == folder
    begin(run_dir, "export")
    assert artifact_commands.exported(run_dir) == Path("made again")
    artifacts.record_parity(run_dir, "export", ACCEPTED)
    assert artifact_commands.exported(run_dir) == Path("made again")
    artifacts.accept(run_dir, "export")
    assert artifact_commands.exported(run_dir) == folder


def written_now(run_dir: RunDir, exported: Any, parity: Any, kind: Any = model_card.WHOLE) -> str:
    """In place of `model_card.text`."""
    return json.dumps({"licence": exported["licence"], "parity": parity})


def test_a_card_of_an_adapter_says_nothing_of_another_adapters_merge(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_card, "text", written_now)
    monkeypatch.setattr(publish_command, "_licence", lambda _: {"license": "mit"})
    make(run_dir, "merged")
    assert json.loads(publish_command._adapter_card(run_dir))["parity"] == ACCEPTED
    train(run_dir, b"second")
    assert json.loads(publish_command._adapter_card(run_dir))["parity"] is None


def test_the_card_of_an_export_is_made_when_it_is_published(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_card, "text", written_now)
    make(run_dir, "merged")
    make(run_dir, "export")
    staged = publish_command._staged(run_dir, "export")
    said = json.loads((staged.folder / publishing.CARD).read_text())
    assert said == {"licence": {"license": "mit"}, "parity": ACCEPTED}


# ---- a folder of the user


def export(run_dir: RunDir, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_commands, "make_merged", lambda _: make(run_dir, "merged"))
    monkeypatch.setattr(artifact_commands, "_make_export", lambda *_, **__: make(run_dir, "export"))
    artifact_commands.export("done", folder, as_json=True)


def export_for_ollama(run_dir: RunDir, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_folder(run_dir: RunDir, *_: Any) -> OllamaFolder:
        path = artifacts.begin(run_dir, "ollama")
        (path / "model.safetensors").write_bytes(WEIGHTS)
        artifacts.record_parity(run_dir, "ollama", ACCEPTED)
        return OllamaFolder(path, "done-q8_0.gguf", "go", 0, None, licence={})

    monkeypatch.setattr(quantized, "require", lambda *_: None)
    monkeypatch.setattr(artifact_commands, "whole_model", lambda _: run_dir.final)
    monkeypatch.setattr(ollama, "ready_gguf", lambda *_: run_dir.final / "adapter_model.safetensors")
    monkeypatch.setattr(ollama, "make", make_folder)
    monkeypatch.setattr(model_card, "text", lambda *_: CARD)
    ollama_command.export("done", folder, "q8_0", as_json=True)


@pytest.mark.parametrize("command", [export, export_for_ollama])
@pytest.mark.parametrize("folder", [".", "..", "../other", "./"])
def test_an_export_goes_into_a_folder_that_is_named_by_dots(
    run_dir: RunDir,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    folder: str,
    command: Callable[[RunDir, str, pytest.MonkeyPatch], None],
) -> None:
    here = tmp_path / "outer" / "inner"
    target = (here / folder).resolve()
    target.mkdir(parents=True, exist_ok=True)
    (target / model_card.FILE_NAME).write_text(CARD)  # of an earlier export
    here.mkdir(exist_ok=True)
    monkeypatch.chdir(here)
    command(run_dir, folder, monkeypatch)
    assert (target / "model.safetensors").read_bytes() == WEIGHTS
    assert json.loads(capsys.readouterr().out)["path"] == str(target)
    assert not list(tmp_path.rglob(".*.tmp"))


@pytest.mark.parametrize(
    ("command", "replaced"),
    [(export, ("Modelfile", "other-q8_0.gguf")), (export_for_ollama, ("other-q8_0.gguf", "chat_template.jinja"))],
)
def test_an_export_leaves_no_file_of_an_earlier_one_and_every_file_of_the_user(
    run_dir: RunDir,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Callable[[RunDir, str, pytest.MonkeyPatch], None],
    replaced: tuple[str, ...],
) -> None:
    target = tmp_path / "shared"
    target.mkdir()
    (target / model_card.FILE_NAME).write_text(CARD)
    earlier = {"model-00001-of-00002.safetensors", "model.safetensors.index.json", "added_tokens.json", *replaced}
    users = {"notes.md", "mine-q8_0.gguf", "model-card.png", "adapter_model.safetensors", "images"}
    for name in earlier | users - {"images"}:
        (target / name).write_text("of another model")
    (target / "images").mkdir()
    facts = ollama.OllamaFacts(plain=False, samples=[], trims=False, clock=False, start="", stops=[], system=None,
                               settings={}, context=None, licence={})  # fmt: skip
    (target / "Modelfile").write_text(ollama.modelfile(run_dir, "other-q8_0.gguf", None, None, facts))
    command(run_dir, str(target), monkeypatch)
    assert {path.name for path in target.iterdir()} == {"model.safetensors", model_card.FILE_NAME, *users}


def test_a_modelfile_of_the_user_stays(run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "shared"
    target.mkdir()
    (target / model_card.FILE_NAME).write_text(CARD)
    for name, text in {"Modelfile": "FROM ./mine.gguf\n", "mine.gguf": "gguf"}.items():
        (target / name).write_text(text)
    export(run_dir, str(target), monkeypatch)
    assert {"Modelfile", "mine.gguf"} < {path.name for path in target.iterdir()}
