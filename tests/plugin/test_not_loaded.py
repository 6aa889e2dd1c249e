"""Commands that do not need a plugin do not run its code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from installed_package import install

from stoker import plugins

GROUPS = (plugins.PLACES, plugins.STORES, plugins.RECIPES, plugins.FORMATS, plugins.OBJECTIVES)
COMMANDS = {
    "help": ["--help"],
    "help of a command": ["train", "--help"],
    "schema": ["schema"],
    "plan": ["plan", "lora_qwen2.5_7b_rank64", "--card", "RTX4090"],
    "plan for every card": ["plan", "lora_qwen2.5_7b_rank64"],
    "runs": ["runs"],
    "gpus": ["gpus"],
    "a name that does not exist": ["plan", "no_such_recipe"],
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS.keys())
def test_a_command_runs_no_code_of_a_plugin_it_does_not_need(words: list[str], tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    install(tmp_path, "acme-all", {group: {"acme": "ACME"} for group in GROUPS}, f"open({str(loaded)!r}, 'w')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "STOKER_RUNS": str(tmp_path / "runs")}
    done = subprocess.run(
        [sys.executable, "-m", "stoker", *words], cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert done.returncode == (1 if "no_such_recipe" in words else 0), done.stderr
    assert not loaded.exists()
