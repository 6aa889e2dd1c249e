"""Rows 2 and 8 of the issue: every command of the README's tour, in order, and what it must have done."""

import json
from pathlib import Path

import pytest
from tour import ANSWERS, ROOT, commands, run

MARGIN_NATS = 0.5
"""How far below the unigram entropy the eval loss of `scratch_tiny` must end."""


def test_both_readmes_have_the_same_commands() -> None:
    assert commands("README.md") == commands("README.zh-CN.md")
    assert len(commands("README.md")) > 12


@pytest.fixture(scope="module")
def answers(toured: Path) -> dict[str, str]:
    """What each command printed."""
    said: dict[str, str] = json.loads((toured / ANSWERS).read_text(encoding="utf-8"))
    return said


def test_the_tour_runs_and_the_model_learns_from_real_text(toured: Path) -> None:
    report = json.loads((toured / "runs/scratch_tiny/data/report.json").read_text())
    figures = json.loads(run("stoker eval scratch_tiny --json", toured).stdout)
    assert figures["eval_loss"] < report["unigram_entropy"] - MARGIN_NATS


def test_the_adapter_learned_to_answer(toured: Path, answers: dict[str, str]) -> None:
    rows = [
        json.loads(line) for line in (ROOT / "src/stoker/config/recipes/text/answers.jsonl").read_text().splitlines()
    ]
    pairs = {row["messages"][0]["content"]: row["messages"][1]["content"] for row in rows}
    assert answers['stoker chat sft_tiny "Who are you?"'].strip() == pairs["Who are you?"]
    assert answers['stoker chat sft_tiny "Who are you?" --artifact export'].strip() == pairs["Who are you?"]
    base = run('stoker chat scratch_tiny "Who are you?" --max-tokens 12', toured).stdout
    assert pairs["Who are you?"] not in base


def test_a_stopped_run_ends_with_the_same_weights(toured: Path) -> None:
    adapters = [toured / f"runs/{name}/artifacts/final/adapter_model.safetensors" for name in ("sft_tiny", "night")]
    assert adapters[0].read_bytes() == adapters[1].read_bytes()


def test_the_json_plan_is_json(answers: dict[str, str]) -> None:
    plan = json.loads(answers["stoker plan lora_qwen2.5_7b_rank64 --card A100-80-SXM4 --json"])
    assert plan["steps"]["total"] == 120
