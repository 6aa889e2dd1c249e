"""The page about AutoDL: its commands work against a box like AutoDL's."""

import re
import shlex

import pytest
from launched import Launch
from tour import ROOT

BLOCK = re.compile(r"^```console\n(.*?)^```", re.M | re.S)


def lines(page: str) -> list[str]:
    """The commands of a page that are run."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return [line for body in BLOCK.findall(text) for line in body.splitlines()]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("page", "run", "words"),
    [
        ("how-to/autodl", "night", {"hosts", "train", "watch", "logs", "pull"}),
        ("tutorial/rent-an-evening", "evening", {"plan", "prepare", "hosts", "train", "watch", "logs", "pull"}),
    ],
)
def test_every_command_of_a_page_about_autodl_works(launched: Launch, page: str, run: str, words: set[str]) -> None:
    """The run was sent and trained by then: the commands find it done, and bring it home again."""
    box, mine = launched.box, launched.laptop
    if not box.alive:
        box.power_on()
    address = f"ssh -p {box.port} root@{box.address}"
    said = {}
    for command in lines(page):
        asked = command.replace("ssh -p 12345 root@connect.westb.seetacloud.com", address)
        asked = asked.replace(f"{run}.yaml", "tiny.yaml").replace(run, "tiny").replace("autodl-1", f"page-{run}")
        done = mine.stoker(*shlex.split(asked)[1:])
        said[shlex.split(command)[1]] = done.stdout + done.stderr
    assert set(said) == words
    assert "AutoDL" in said["hosts"]
    assert "40/40" in said["watch"]
