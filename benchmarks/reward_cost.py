"""What a reward costs in a process of its own: samples per second against the same function called directly.

Writes docs/evidence/reward_cost.json: the median of several batches for each way, and what opening takes.
Usage: python benchmarks/reward_cost.py [--batch N] [--times N] [--out FILE]
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.config.rewards import Reward
from stoker.rewards import scorer, worker_main
from stoker.rewards.scorer import Sample

ROOT = Path(__file__).resolve().parent.parent
SOURCE = """
def contains(completions, answer, **kwargs):
    return [float(right in text) for text, right in zip(completions, answer)]
"""
COMPLETION = "Let me think about this step by step. " * 25
"""About 950 characters: some 256 tokens."""


def main() -> int:
    """Measure every way and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/evidence/reward_cost.json")
    asked = parser.parse_args()
    batch = [Sample(f"What is {n} + 1?", f"{COMPLETION}{n + 1}", {"answer": str(n + 1)}) for n in range(asked.batch)]
    report = {
        "date": datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "batch": asked.batch,
        "times": asked.times,
        "ways": {"called directly": directly(batch, asked.times), **opened(batch, asked.times)},
    }
    asked.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=2))
    return 0


def directly(batch: list[Sample], times: int) -> dict[str, float]:
    function = worker_main.load("rewards.py", SOURCE, "contains")
    samples = [vars(one) for one in batch]
    return measured(lambda: worker_main.call(function, samples, 0), len(batch), times)


def opened(batch: list[Sample], times: int) -> dict[str, dict[str, float]]:
    own: dict[str, Any] = {"function": "rewards.py:contains"}
    code = {"code": {"tests": "tests"}}
    coded = [Sample(one.prompt, "def f(x):\n    return x + 1\n", {"tests": "assert f(1) == 2"}) for one in batch]
    ways: list[tuple[str, dict[str, Any], list[Sample], int]] = [
        ("function, in the sandbox", own, batch, times),
        ("function, isolation: none", {**own, "isolation": "none"}, batch, times),
        ("exact with a pattern", {"exact": {"column": "answer", "pattern": r"(\d+)$"}}, batch, times),
        ("code, in the sandbox", code, coded, max(1, times // 10)),
    ]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "rewards.py").write_text(SOURCE, encoding="utf-8")
        for name, reward, samples, count in ways:
            started = time.perf_counter()
            with scorer.opened([Reward.model_validate(reward)], Path(folder)) as score:
                opening = time.perf_counter() - started
                assert [one.value for one in score(samples)] == [1] * len(samples)
                figures = measured(lambda: score(samples), len(samples), count)  # noqa: B023  # called at once
            found[name] = {**figures, "opening_seconds": round(opening, 3)}
    return found


def measured(work: Callable[[], Any], count: int, times: int) -> dict[str, float]:
    """Median seconds of a batch, and samples per second by it."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    middle = statistics.median(seconds)
    return {"batch_seconds": round(middle, 6), "samples_per_second": round(count / middle, 1)}


if __name__ == "__main__":
    sys.exit(main())
