"""Nothing of the machine a file was written on stands in it, and no file is too large to be read."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LARGEST_BYTES = 250_000
PROVIDERS = ROOT / "src/stoker/facts/data/platforms.json"
"""Facts about providers: where their boxes mount disks."""
TABLES = (ROOT / "benchmarks/data/training_measurements.csv", ROOT / "src/stoker/facts/data/model_parts.json")
"""Tables that programs read: measurements the planner is checked against, and the catalogue's models, weighed."""

PLACES = {
    "a workspace": re.compile(r"(?<![\w.])/" + r"work(space)?/"),
    "root's home": re.compile(r"(?<![\w.])/" + r"root/(?!autodl-|miniconda3|tf-logs|stoker\b|\.ssh/)"),
    "a user's home": re.compile(r"(?<![\w.])/" + r"(home|Users)/[A-Za-z]"),
    "a Windows profile": re.compile(r"[A-Z]:\\+" + r"Users\\"),
    "a private address": re.compile(r"\b(192\.168|10\.\d{1,3})\.\d{1,3}\.\d{1,3}\b"),
}


def tracked() -> list[Path]:
    """Files that are in the repository or would be with the next `git add`."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    return [path for line in listed.stdout.splitlines() if (path := ROOT / line).is_file()]


@pytest.mark.parametrize("what", PLACES)
def test_no_file_names_a_place_on_somebodys_machine(what: str) -> None:
    found = []
    for path in tracked():
        if path == PROVIDERS:
            continue
        text = path.read_bytes().decode("utf-8", errors="ignore")
        found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in PLACES[what].finditer(text)]
    assert found == []


def test_no_file_is_large() -> None:
    large = [path for path in tracked() if path.stat().st_size > LARGEST_BYTES and path not in TABLES]
    assert [f"{path.relative_to(ROOT)}: {path.stat().st_size}" for path in large] == []
