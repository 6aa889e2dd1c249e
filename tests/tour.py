"""The commands of the README's tour, run in order, once for all tests that look at what came of them."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ANSWERS = "answers.json"


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
    own = {"STOKER_HOME": str(folder / ".stoker")}  # a page may set prices: they are not this user's
    settings = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "80", "STOKER_LANG": "en", **own, **environment}
    settings.pop("STOKER_RUNS", None)  # a user's runs are where the commands are given
    argv = [sys.executable, "-m", "stoker", *words[1:]]
    return subprocess.run(argv, cwd=folder, env=settings, capture_output=True, text=True, timeout=1800, check=False)


def walk(folder: Path) -> None:
    """Every command; what each printed is kept beside the runs."""
    answers = {}
    for command in commands("README.md"):
        if command.startswith("pip install"):
            continue  # what is installed is what is tested
        done = run(command, folder)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        answers[command] = done.stdout
    (folder / ANSWERS).write_text(json.dumps(answers), encoding="utf-8")
