"""The pages about rented places: commands that are run somewhere, and no others; commands that exist."""

import re
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

PAGES = ROOT / "docs" / "how-to"
BLOCK = re.compile(r"^```console\n(.*?)^```", re.M | re.S)
SPOKEN = re.compile(r"`(stoker [^`]+)`")


def lines(page: str) -> list[str]:
    """The commands of a page that are run."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return [line for body in BLOCK.findall(text) for line in body.splitlines()]


def shape(command: str) -> list[str]:
    """A command without its names: of host, address and run."""
    words = shlex.split(command)
    if words[1:3] == ["hosts", "add"]:
        words[3:5] = ["NAME", "ADDRESS"]
    return ["NAME" if before == "--on" else word for before, word in zip(["", *words], words, strict=False)]


@pytest.mark.parametrize("page", ["featurize", "runpod-vast", "mac"])
def test_other_pages_have_no_other_commands(page: str) -> None:
    """Those of the pages about AutoDL and about a plain box are run in tests/nightly/docs."""
    run = [shape(line) for line in lines("autodl")]
    assert lines(page)
    assert [line for line in lines(page) if shape(line) not in run] == []


def spoken() -> list[str]:
    """Every command that the page of manual steps names."""
    found = []
    for name in ("from-the-guides.md", "from-the-guides.zh.md"):
        found += SPOKEN.findall((PAGES / name).read_text(encoding="utf-8"))
    return sorted(set(found))


@pytest.mark.parametrize("command", spoken())
def test_a_command_that_replaces_a_manual_step_is_one(command: str) -> None:
    import reference

    known = reference.commands()
    words = shlex.split(command)[1:]
    name = " ".join(words[:2]) if words[0] == "hosts" else words[0]
    given = words[len(name.split()) :]
    if not given:
        assert name in known
        return
    known[name].make_context(name, given)


def test_the_table_of_manual_steps_has_both_languages() -> None:
    english, chinese = ((PAGES / f"from-the-guides{end}.md").read_text(encoding="utf-8") for end in ("", ".zh"))
    rows = [
        [line.startswith("| ") for line in text.splitlines() if line.startswith(("## ", "| "))]
        for text in (english, chinese)
    ]
    assert rows[0] == rows[1]
    assert sum(rows[0]) > 40
    commands = [sorted(SPOKEN.findall(text)) for text in (english, chinese)]
    assert commands[0] == commands[1]
