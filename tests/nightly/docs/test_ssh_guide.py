"""Every command of the guide for a plain box, in its order, against a plain box; with a run of eight steps."""

import json
import re
import shlex
import time
from pathlib import Path

import boxes
from laptop import Laptop, laptop
from tour import ROOT

GUIDE = ROOT / "docs/how-to/ssh-box.md"
BLOCK = re.compile(r"^```console\n(.*?)^```", re.M | re.S)
SAYS = {
    "stoker watch tiny --once": r"8/8",
    "stoker pull tiny": r"artifacts/final",
    "stoker hosts list": r"^lab +ssh://root@",
    "stoker hosts check lab": r"^folder +/root/stoker",
}
"""What a command must say, as patterns."""


def _await_done(own: Laptop) -> None:
    until = time.monotonic() + 240
    while time.monotonic() < until:
        if json.loads(own.stoker("watch", "tiny", "--once", "--json").stdout)["state"] == "done":
            return
        time.sleep(1)
    raise AssertionError("the run does not end")


def test_every_command_of_the_guide_works(tmp_path: Path) -> None:
    commands = [line for body in BLOCK.findall(GUIDE.read_text(encoding="utf-8")) for line in body.splitlines()]
    assert len(commands) == 8
    with boxes.plain(tmp_path) as box, laptop(tmp_path) as own:
        own.knows(box, "lab")  # the key is in the user's ssh config, as the guide takes for granted
        own.stoker("hosts", "remove", "lab")
        own.writes("tiny")
        for command in commands:
            asked = command.replace("203.0.113.7", box.address)
            asked = asked.replace("train scratch_tiny", "train tiny.yaml").replace("scratch_tiny", "tiny")
            yes = ["--yes"] if " --on " in command or " add " in command else []  # nobody is there to answer
            done = own.stoker(*shlex.split(asked)[1:], *yes)
            if asked in SAYS:
                assert re.search(SAYS[asked], done.stdout + done.stderr, re.M), (asked, done.stdout, done.stderr)
            if " --on " in command:
                _await_done(own)
        assert (own.runs / "tiny/artifacts/final/model.safetensors").exists()
        assert own.stoker("hosts", "list", "--json").stdout.strip() == "[]"
