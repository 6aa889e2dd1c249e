"""A tiny training whose answers vLLM generates, and what tests look at."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asked_run
import pytest
import tiny_run

from stoker import tools
from stoker.engine import vllm_sampler
from stoker.rundir import events
from stoker.rundir.layout import RunDir

LARGEST_GAP = 1e-3
"""The bar, in fp32."""
NEEDS_VLLM = pytest.mark.skipif(tools.find(tools.VLLM) is None, reason="STOKER_TOOLS has no vLLM")
_END_SECONDS = 30.0


def text(base: Path, **options: Any) -> str:
    asked = {"save": "100 steps", **options, "options": f", sampler: vllm{options.get('options', '')}"}
    return asked_run.text(base, **asked)


def gaps(run_dir: RunDir) -> list[float]:
    """Of every step: mean absolute difference of log-probabilities between sampler and training."""
    return [step["figures"]["gap"] for step in events.steps(run_dir.events_file).values()]


@contextlib.contextmanager
def recorded(folder: Path) -> Iterator[Path]:
    """Children that are forked meanwhile leave the pids of their vLLMs in this file."""
    path = folder / "vllm.pids"

    def started(plain: Any, process: Any, *words: Any) -> None:
        plain(process, *words)
        with path.open("a") as file:
            file.write(f"{process._process.pid}\n")

    with tiny_run.replaced(vllm_sampler._Process, "__init__", started):
        yield path


def left(pids: Path) -> list[int]:
    """Those of the recorded processes that do not end by themselves."""
    found = [int(line) for line in pids.read_text().split()]
    assert found
    until = time.monotonic() + _END_SECONDS
    while running := [pid for pid in found if _runs(pid)]:
        if time.monotonic() > until:
            break
        time.sleep(0.1)
    return running


def _runs(pid: int) -> bool:
    """Whether it computes; what only waits to be buried by the machine's first process does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def kill_within(question: int) -> Any:
    """For `_Process.ask`: kills the training while vLLM works on this question; the rehearsal's is the first."""
    asked: list[int] = []

    def ask(plain: Any, process: Any, order: dict[str, Any], beat: Any) -> Any:
        if "prompts" in order:
            asked.append(1)
            if len(asked) == question:
                order = {**order, "longest": 10 * order["longest"], "stops": []}  # it shall not be done before
                threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return plain(process, order, beat)

    return ask
