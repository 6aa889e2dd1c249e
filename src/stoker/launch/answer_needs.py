"""What a training on generated answers needs beside its model: asked before anything is prepared or loaded."""

from pathlib import Path

from stoker import tools
from stoker.config import objectives
from stoker.config.run import Run
from stoker.rewards import scorer


def check(run: Run, folder: Path) -> None:
    """Refuse rewards that cannot be computed on this machine, and a sampler that is not installed.

    Args:
        run: The run.
        folder: The run file's, where files of functions are.
    """
    if not objectives.facts(run.train.objective).prompts:
        return
    if run.train.answers.sampler == "vllm":
        tools.require(tools.VLLM, f"train.{run.train.objective}.sampler")
    with scorer.opened(run.train.grpo.rewards or [], folder):
        pass  # each has started, and has loaded its function
