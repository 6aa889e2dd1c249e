"""Row 8 of the issue: the tutorial is executed, in the order it is read. Both languages have the same blocks."""

import re
from pathlib import Path

import pytest
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
    "large-data": {"stoker prepare clean.yaml": r"MinHash stage 4: 5 documents in, 1 dropped"},
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
    "page",
    [
        *("plan-for-a-card", "data-formats", "resume", "several-devices", "after-training", "store", "prove"),
        *("large-data", "prepared-sets"),
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
