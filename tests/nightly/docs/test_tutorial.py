"""Row 8 of the issue: the tutorial is executed, in the order it is read. Both languages have the same blocks."""

import re
from pathlib import Path

import pytest
import tiny_families
from tour import ROOT, run

PAGE = ROOT / "docs/tutorial/first-run.md"
EXPECTED = {
    "several-devices": {"stoker watch moved --once": r"resume +EXACT"},
    "store": {
        "stoker runs --store copies": r"^stored +(10, )?20 +✓",
        "stoker verify stored": r"^store +20 .* intact",
        "stoker verify stored --json": r'"folder": "artifacts/final"',
    },
    "prove": {
        "stoker prove": r"^✓ passed  20 steps, killed and resumed, with `train.deterministic`$",
        "stoker prove --share": r'"outcome": "passed"',
    },
    "watch-and-report": {
        "stoker watch scratch_tiny --once": r"^ *\d+\.\d │",
        "stoker report scratch_tiny": r"report\.html$",
        "stoker report scratch_tiny --json": r'"name": "tokens_per_second"',
    },
    "large-data": {"stoker prepare clean.yaml": r"MinHash stage 4: 5 documents in, 1 dropped"},
    "data-report": {
        "stoker prepare report.yaml": r"train.jsonl:1 ≈ train.jsonl:3(?s:.*)train.jsonl:2 ≠ train.jsonl:4",
        "stoker prepare drop.yaml": r"left out of train by `data.duplicates: drop`: 1 row",
    },
    "after-training": {
        "stoker eval sft_tiny --task questions.jsonl": r"2 of 2 answers match",
        'stoker chat sft_tiny "Who are you?" --artifact export': r"^I am a small model\.$",
    },
}
"""What a how-to's command must have said, as patterns."""

BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.M | re.S)


def test_every_command_of_the_tutorial_works(tmp_path: Path) -> None:
    answers = {}
    for language, title, body in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if title:
            (tmp_path / title).write_text(body, encoding="utf-8")
        elif language == "console":
            for command in body.splitlines():
                if command.startswith("pip "):
                    continue  # what is installed is what is tested
                done = run(command, tmp_path)
                assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
                answers[command] = done.stdout.strip()
    assert answers['stoker chat questions "Who is the wife of Marcius?"'] == "Virgilia."
    shown = answers["stoker prepare questions.yaml --show 2"]
    trained = re.findall(r"\{\+(.*?)\+\}", shown, re.S)
    assert trained == ["Volumnia.<|im_end|>", "Tullus Aufidius.<|im_end|>", "text"], "two completions, then the legend"
    assert "Who is the mother of Marcius?" in shown


@pytest.mark.parametrize(
    ("page", "model", "made"),
    [
        ("own-data", "Qwen3-0.6B", ("support/artifacts/export/model.safetensors", "support/report.html")),
        ("continue-pretraining", "Qwen3-0.6B-Base", ("manuals/artifacts/final/adapter_model.safetensors",)),
    ],
)
def test_every_command_of_a_tutorial_on_a_model_of_the_hub_works(
    page: str, model: str, made: tuple[str, ...], tmp_path: Path
) -> None:
    """With a tiny stand-in for the model, where the hub's client looks for what it has downloaded."""
    cached, commit = tmp_path / f"hub/hub/models--Qwen--{model}", "0" * 40
    tiny_families.save(cached / "snapshots" / commit, "qwen3")
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text(commit, encoding="utf-8")
    for language, title, body in BLOCK.findall((PAGE.parent / f"{page}.md").read_text(encoding="utf-8")):
        if title:
            (tmp_path / title).parent.mkdir(exist_ok=True)
            (tmp_path / title).write_text(body, encoding="utf-8")
        for command in body.splitlines() if language == "console" else ():
            done = run(command, tmp_path, HF_HOME=str(tmp_path / "hub"), OMP_NUM_THREADS="1")
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    for name in made:
        assert (tmp_path / "runs" / name).is_file(), name


@pytest.mark.parametrize(
    "page",
    [
        *("plan-for-a-card", "data-formats", "resume", "several-devices", "after-training", "store", "prove"),
        *("large-data", "prepared-sets", "watch-and-report", "data-report", "preference"),
    ],
)
def test_every_command_of_a_how_to_works(page: str, tmp_path: Path) -> None:
    text = (PAGE.parents[1] / "how-to" / f"{page}.md").read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    for _, title, body in blocks:
        if title:
            (tmp_path / title).write_text(body, encoding="utf-8")
    commands = [line for kind, _, body in blocks if kind == "console" for line in body.splitlines()]
    assert commands
    answers = {}
    for command in commands:
        done = run(command, tmp_path, OMP_NUM_THREADS="1")
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        answers[command] = done.stdout
    for command, expected in EXPECTED.get(page, {}).items():
        assert re.search(expected, answers[command], re.M), answers[command]
