"""`stoker bench`: throughput and latency against the number of clients, as a table, as JSON and as a picture."""

import datetime
import importlib.util
from typing import Any

from rich.table import Table

from stoker import messages
from stoker.artifacts import benchmark
from stoker.artifacts.benchmark import BenchLoad
from stoker.errors import StokerError
from stoker.launch import programs
from stoker.rundir import files, layout
from stoker.rundir.layout import RunDir
from stoker.terminal import console

_PERCENTILES = ("p50", "p90", "p99")
_WAYS = {
    "transformers": "bench.way.transformers",
    "vllm": "bench.way.vllm",
    "vllm_batched": "bench.way.vllm_batched",
}


def bench(name: str, clients: str, requests: int, max_tokens: int, overrides: list[str], *, as_json: bool) -> None:
    """Measure, write down, show."""
    run_dir = layout.find(name)
    load = BenchLoad(_clients(clients), requests, max_tokens)
    with console.status() as status:
        status.show(messages.text("bench.starting"))
        found = benchmark.bench(run_dir, overrides, load, lambda level: status.show(_line(level)))
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    report = {"name": run_dir.name, "date": today, **found}
    path = run_dir.artifacts / "bench.json"
    files.write_json(path, report)
    picture = _draw(run_dir)
    if as_json:
        console.data_json(report)
        return
    console.table(_table(report["levels"]))
    console.talk("bench.times")
    for way in report["left_out"]:
        console.talk("bench.left_out", way=messages.text(_WAYS[way]))
    console.talk("bench.written", path=path)
    console.talk("bench.picture" if picture else "bench.no_picture", path=run_dir.artifacts / "bench.svg")


def _clients(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise StokerError("STK506", problem=messages.text("usage.bad", name="--clients"), command="stoker bench")
    return tuple(int(word) for word in words)


def _line(level: dict[str, Any]) -> str:
    way = messages.text(_WAYS[level["way"]])
    speed = f"{level['tokens_per_second']:,.0f}"
    return messages.text("bench.progress", way=way, clients=level["clients"], speed=speed)


def _table(levels: list[dict[str, Any]]) -> Table:
    """A row per measurement, 80 columns wide; times in milliseconds."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(messages.text("bench.way"), no_wrap=True)
    table.add_column(messages.text("bench.clients"), justify="right", no_wrap=True)
    table.add_column(messages.text("bench.speed"), justify="right", no_wrap=True)
    for key in ("bench.first", "bench.latency"):
        for percentile in _PERCENTILES:
            head = messages.text(key) if percentile == "p50" else ""
            table.add_column(f"{head}\n{percentile.upper()}", justify="right", min_width=6, no_wrap=True)
    for level in levels:
        times = [level[key][one] for key in ("first_token_ms", "latency_ms") for one in _PERCENTILES]
        table.add_row(
            messages.text(_WAYS[level["way"]]),
            str(level["clients"]),
            f"{level['tokens_per_second']:,.0f}",
            *(f"{value:,.0f}" for value in times),
        )
    return table


def _draw(run_dir: RunDir) -> bool:
    """The picture, where matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    programs.run_engine("plot", run_dir, lambda _: None)
    return True
