"""A reward model writes nothing: every command that needs a model that writes says so at once, in both languages."""

import json
from pathlib import Path

import pytest
from made_runs import LANGUAGES, CommandLine, make_run

COMMANDS = {
    "chat": ("chat", "scores", "Hi"),
    "merge": ("merge", "scores"),
    "quantize": ("quantize", "scores", "--int8"),
    "export": ("export", "scores"),
    "ollama": ("export", "scores", "--ollama"),
    "publish": ("publish", "scores", "--to", "hf:owner/name"),
    "serve": ("serve", "scores"),
    "serve elsewhere": ("serve", "scores", "--on", "box"),
    "bench": ("bench", "scores"),
    "tasks": ("eval", "scores", "--task", "a.jsonl"),
    "samples": ("eval", "scores", "--samples", "2"),
}
TEXT = (
    "model: {model}\ndata: {{train: a.jsonl, pack: false, rows: 10, tokens: 1000}}\ntrain: {{objective: {objective}}}\n"
)


def made(runs: Path, name: str, objective: str) -> None:
    """A finished run with an objective."""
    folder = make_run(runs, name)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    text = TEXT.format(model="owner/base", objective=objective)
    (folder / "manifest.json").write_text(json.dumps({**manifest, "text": text}), encoding="utf-8")
    (folder / "artifacts" / "final").mkdir(parents=True)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_command_that_needs_a_model_that_writes_refuses_it(
    runs: Path, stoker: CommandLine, words: tuple[str, ...], language: str
) -> None:
    made(runs, "scores", "reward")
    outcome = stoker(*words, language=language)
    assert outcome.code == 1
    said = " ".join(outcome.err.split())
    assert "STK444" in said
    assert f"`stoker {words[0]}" in said


def test_a_model_that_writes_is_not_refused(runs: Path, stoker: CommandLine) -> None:
    made(runs, "writes", "dpo")
    assert "STK444" not in stoker("merge", "writes").err


def test_a_reward_model_is_no_base_of_a_model_that_writes(runs: Path, stoker: CommandLine, tmp_path: Path) -> None:
    made(runs, "scores", "reward")
    run_file = tmp_path / "run.yaml"
    run_file.write_text(TEXT.format(model="run:scores", objective="dpo"), encoding="utf-8")
    outcome = stoker("plan", str(run_file))
    assert outcome.code == 1
    assert "STK444" in outcome.err
    assert "`train.objective: dpo`" in " ".join(outcome.err.split())
