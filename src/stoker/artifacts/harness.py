"""Runs lm-evaluation-harness on a model folder, here or in an environment of its own, with its own task names."""

import subprocess
from pathlib import Path
from typing import Any

from stoker import tools
from stoker.errors import StokerError
from stoker.rundir import files, in_place
from stoker.rundir.layout import RunDir
from stoker.tools import Tool

TOOL = Tool("lm_eval", "lm_eval", '"lm-eval[hf]"')


def run(run_dir: RunDir, folder: Path, task_names: str, device: str, *, chat: bool) -> dict[str, dict[str, Any]]:
    """Run tasks; returns the harness' own results by task.

    Args:
        run_dir: The run; log and results go there.
        folder: A whole model.
        task_names: The harness' names, comma-separated; a custom task file by its path.
        device: `cuda`, `mps` or `cpu`.
        chat: Whether prompts are rendered by the chat template.
    """
    python = tools.require(TOOL)
    results = run_dir.evals / "harness"
    log = run_dir.logs / "harness.log"
    before = set(results.rglob("results_*.json"))
    command = [
        *(str(python), "-X", "utf8", "-m", "lm_eval", "run"),
        *("--model", "hf", "--model_args", f"pretrained={folder.resolve()},dtype=auto"),
        *("--tasks", task_names, "--device", device, "--batch_size", "auto" if device == "cuda" else "1"),
        *("--output_path", str(results.resolve())),
        *(["--apply_chat_template"] if chat else []),
    ]
    with in_place.appending(log, run_dir.path) as words:
        done = subprocess.run(  # noqa: S603  # the tool's own program, no shell
            command, stdin=subprocess.DEVNULL, stdout=words, stderr=words, check=False
        )
    made = sorted(set(results.rglob("results_*.json")) - before)
    if done.returncode or not made:
        raise StokerError("STK409", program="lm_eval", exit_code=done.returncode, log=log)
    found: dict[str, dict[str, Any]] = files.read_json(made[-1])["results"]
    return found
