"""Rows 2 and 8 of the issue: every command of the README's tour, in order, and what it must have done."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.rundir import events

ROOT = Path(__file__).resolve().parents[2]
MARGIN_NATS = 0.5
"""How far below the unigram entropy the eval loss of `scratch_tiny` must end."""


def commands(readme: str) -> list[str]:
    text = (ROOT / readme).read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def run(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    words = shlex.split(command)
    while "=" in words[0]:  # a variable in front of the command
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    assert words[0] == "stoker"
    settings = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "80", "STOKER_LANG": "en", **environment}
    argv = [sys.executable, "-m", "stoker", *words[1:]]
    return subprocess.run(argv, cwd=folder, env=settings, capture_output=True, text=True, timeout=600, check=False)


def test_both_readmes_have_the_same_commands() -> None:
    assert commands("README.md") == commands("README.zh-CN.md")
    assert len(commands("README.md")) > 12


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, subprocess.CompletedProcess[str]]]:
    folder = tmp_path_factory.mktemp("tour")
    answers = {}
    for command in commands("README.md"):
        if command.startswith("pip install"):
            continue  # what is installed is what is tested
        done = run(command, folder)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        answers[command] = done
    return folder, answers


def test_the_tour_runs_and_the_model_learns_from_real_text(tour: tuple) -> None:
    folder, _ = tour
    report = json.loads((folder / "runs/scratch_tiny/data/report.json").read_text())
    figures = json.loads(run("stoker eval scratch_tiny --json", folder).stdout)
    assert figures["eval_loss"] < report["unigram_entropy"] - MARGIN_NATS


def test_scratch_tiny_trains_in_under_forty_seconds_of_steps(tour: tuple) -> None:
    folder, _ = tour
    assert sum(e["seconds"] for e in events.steps(folder / "runs/scratch_tiny/events.jsonl").values()) < 40


def test_the_adapter_learned_to_answer(tour: tuple) -> None:
    folder, answers = tour
    rows = [
        json.loads(line) for line in (ROOT / "src/stoker/config/recipes/text/answers.jsonl").read_text().splitlines()
    ]
    pairs = {row["messages"][0]["content"]: row["messages"][1]["content"] for row in rows}
    assert answers['stoker chat sft_tiny "Who are you?"'].stdout.strip() == pairs["Who are you?"]
    assert answers['stoker chat sft_tiny "Who are you?" --artifact export'].stdout.strip() == pairs["Who are you?"]
    base = run('stoker chat scratch_tiny "Who are you?" --max-tokens 12', folder).stdout
    assert pairs["Who are you?"] not in base


def test_a_stopped_run_ends_with_the_same_weights(tour: tuple) -> None:
    folder, _ = tour
    adapters = [folder / f"runs/{name}/artifacts/final/adapter_model.safetensors" for name in ("sft_tiny", "night")]
    assert adapters[0].read_bytes() == adapters[1].read_bytes()


def test_the_json_plan_is_json(tour: tuple) -> None:
    _, answers = tour
    plan = json.loads(answers["stoker plan paper_r64 --card A100-80-SXM4 --json"].stdout)
    assert plan["steps"]["total"] == 120
