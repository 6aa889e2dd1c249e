"""Programs as users: every command has `--json`, and whatever goes wrong is one JSON object of one schema on stdout."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_runs
import pytest
import yaml
from made_runs import LANGUAGES, CommandLine, Outcome
from pydantic import ValidationError

from stoker.agents import guide_page
from stoker.agents.error_schema import ErrorAnswer
from stoker.cli import main
from stoker.messages import CATALOGUES
from stoker.rundir import checkpoints

MISSING = ("nothing-of-this-name",)
"""A run, a run file or a host that is not there."""
WRONG: dict[str, tuple[str, ...]] = {
    "bench": MISSING,
    "bundle": MISSING,
    "chat": MISSING,
    "eval": MISSING,
    "export": MISSING,
    "gpus": ("--sort", "taste"),
    "hosts add": ("box", "not an address"),
    "hosts check": MISSING,
    "hosts off": MISSING,
    "hosts on": MISSING,
    "hosts remove": MISSING,
    "hosts tunnel": MISSING,
    "init": ("there.yaml",),
    "logs": MISSING,
    "merge": MISSING,
    "plan": MISSING,
    "prepare": MISSING,
    "prove": ("--share",),
    "publish": MISSING,
    "pull": MISSING,
    "push": MISSING,
    "quantize": MISSING,
    "report": MISSING,
    "runs": ("--on", *MISSING),
    "serve": MISSING,
    "stop": MISSING,
    "train": MISSING,
    "verify": MISSING,
    "watch": MISSING,
}
"""What each command refuses for a reason of its own; what has none refuses an unknown flag."""
WITHOUT = ("doctor", "guide", "hosts list", "mcp", "models", "recipes", "schema")


def commands(group: Any = None, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command that a user sees, by its whole name."""
    for name, one in (group or main._group()).commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, f"{before}{name} ")
        elif not one.hidden:
            yield f"{before}{name}", one


NAMES = sorted(name for name, _ in commands())


def failed(outcome: Outcome) -> ErrorAnswer:
    """The one object of a command that failed."""
    answer = ErrorAnswer.model_validate_json(outcome.out)
    assert answer.exit_code == outcome.code != 0
    assert answer.error.message
    assert answer.error.hint
    return answer


@pytest.fixture
def here(stoker: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    (tmp_path / "there.yaml").touch()
    return stoker


def test_every_command_has_json() -> None:
    without = [name for name, one in commands() if not any("--json" in part.opts for part in one.params)]
    assert not without
    assert sorted([*WRONG, *WITHOUT]) == NAMES


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", NAMES)
def test_an_error_is_one_object_of_the_schema(here: CommandLine, name: str, language: str) -> None:
    outcome = here(*name.split(), *WRONG.get(name, ("--no-such-flag",)), "--json", language=language)
    assert failed(outcome).exit_code == 1
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("name", NAMES)
def test_a_command_line_that_cannot_be_read_is_such_an_object_too(here: CommandLine, name: str) -> None:
    answer = failed(here(*name.split(), "--jsno", "--json"))
    assert (answer.error.code, answer.error.choices) == ("STK506", ["--json"])


def test_an_answer_of_another_shape_is_noticed() -> None:
    whole = {"ok": False, "exit_code": 1, "error": {"code": "STK101", "message": "a", "hint": "b"}}
    with pytest.raises(ValidationError):
        ErrorAnswer.model_validate(whole)


def test_a_surprise_is_such_an_object_with_its_traceback_beside_it(
    here: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.config.run.Run.model_json_schema", lambda: 1 / 0)
    outcome = here("schema", "--json")
    assert (failed(outcome).error.code, outcome.code) == ("STK900", 2)
    assert "Traceback" in outcome.err


def test_all_problems_of_a_file_are_listed_with_place_and_choices(here: CommandLine, tmp_path: Path) -> None:
    text = "model: {shape: llama}\ndata: {train: a.txt}\ntrain:\n  epohcs: 1\n  schedule: cosin\n"
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
    found = failed(here("plan", "run.yaml", "--json")).error.errors
    by_key = {one.key: one for one in found}
    key = by_key["train.epohcs"]
    assert (key.file, key.line, key.choices) == (
        "run.yaml",
        text[: text.index("epohcs")].count("\n") + 1,
        ["train.epochs"],
    )
    choice = by_key["train.schedule"]
    assert choice.choices[0] == "cosine"
    assert len(choice.choices) > 1


def test_what_is_close_is_offered_as_data(here: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    text = "model: Qwen/Qwen2.5-0.5B\ndata: {train: trian.jsonl}\n"
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
    made_runs.make_run(tmp_path / "runs", "medical")
    offered = {
        ("plan", "run.yaml"): "train.jsonl",
        ("plan", "rnu.yaml"): "run.yaml",
        ("plan", "scratch_tiny", "--card", "RTX490"): "RTX4090",
        ("watch", "medcal"): "medical",
        ("wacth", "medical"): "watch",
    }
    for words, meant in offered.items():
        assert meant in failed(here(*words, "--json")).error.choices, words


# ---- answers


@pytest.fixture
def trained(runs: Path) -> Path:
    """A run that was stopped, with a log; its checkpoint is damaged."""
    folder = made_runs.make_run(runs, "medical")
    (folder / "run.yaml").write_text("model: m\ndata: {train: a.txt}\n", encoding="utf-8")
    made_runs.write_events(folder, made_runs.attempt(4), made_runs.step(2, 1.5), made_runs.end("stopped", 2))
    (folder / "logs").mkdir()
    (folder / "logs" / "train-1-rank0.log").write_text("one\n10%\r100%\nthree\n", encoding="utf-8")
    broken = folder / "checkpoints" / "step-00000002"
    broken.mkdir(parents=True)
    (broken / checkpoints.COMMIT_NAME).write_text("{}", encoding="utf-8")
    return folder


def test_answers_are_one_value_and_talk_is_elsewhere(here: CommandLine, trained: Path) -> None:
    asked = {
        ("stop", "medical"): ("name", "state", "step", "was_running"),
        ("logs", "medical", "--lines", "2"): ("name", "log", "lines"),
        ("init", "new.yaml", "--yes"): ("path", "objective", "method", "commands"),
        ("guide",): ("page",),
        ("guide", "--skill", "skills"): ("path",),
        ("gpus", "--set", "autodl RTX4090 1.88CNY/h"): ("path", "kept", "offers"),
        ("schema", "--errors"): ("properties",),
    }
    for words, keys in asked.items():
        outcome = here(*words, "--json")
        assert outcome.code == 0, (words, outcome)
        assert set(keys) <= set(json.loads(outcome.out)), words
    assert json.loads(here("logs", "medical", "--lines", "2", "--json").out)["lines"] == ["100%", "three"]


def test_what_verify_found_comes_with_its_error(here: CommandLine, trained: Path) -> None:
    answer = failed(here("verify", "medical", "--json"))
    assert answer.error.code == "STK662"
    assert [one["verified"] for one in answer.result["local"]] == [False]


def test_a_log_is_not_followed_as_json(here: CommandLine, trained: Path) -> None:
    assert failed(here("logs", "medical", "--follow", "--json")).error.code == "STK558"


def test_nobody_to_ask_is_an_error(here: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.hosts.keys.offered", lambda _: ["ssh-ed25519 AAAA"])
    monkeypatch.setattr("stoker.hosts.keys.fingerprint", lambda _: "SHA256:x")
    outcome = here("hosts", "add", "box", "ssh://root@203.0.113.7:22", "--json")
    assert failed(outcome).error.code == "STK550"
    assert "SHA256:x" in outcome.err


# ---- the guide


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_guide_is_one_page_that_names_every_command(here: CommandLine, language: str) -> None:
    page = here("guide", language=language).out
    assert len(page.splitlines()) <= 150
    for name in NAMES:
        assert f"- `{name}" in page, name
    assert not [code for code in guide_page._ERROR.findall(page) if code not in CATALOGUES[language]]
    assert "{commands}" not in page
    assert "{keys}" not in page
    assert "`learning_rate`" in page


def test_the_skill_in_the_repository_is_the_page(here: CommandLine, tmp_path: Path) -> None:
    here("guide", "--skill", "skills", language="zh")
    written = (tmp_path / "skills" / "stoker" / "SKILL.md").read_text(encoding="utf-8")
    kept = Path(__file__).resolve().parents[2] / "skills" / "stoker" / "SKILL.md"
    assert written == kept.read_text(encoding="utf-8"), "stoker guide --skill skills"
    front = yaml.safe_load(written.split("---")[1])
    assert front["name"] == kept.parent.name
    assert 0 < len(front["description"]) <= 1024
