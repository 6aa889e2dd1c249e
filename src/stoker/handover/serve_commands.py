"""`stoker serve` and `stoker bench`: an OpenAI endpoint for a trained model, and how fast it answers."""

import datetime
import importlib.util
from dataclasses import asdict
from typing import Any

from rich.table import Table

from stoker import env, messages
from stoker.artifacts import benchmark, model_server, ports
from stoker.artifacts.benchmark import BenchLoad
from stoker.artifacts.model_server import Server
from stoker.artifacts.serving_choices import Serving
from stoker.errors import StokerError
from stoker.handover import parity_lines, writing_models
from stoker.launch import programs
from stoker.plan.parity_limits import Reference
from stoker.rundir import files, layout
from stoker.rundir.layout import RunDir
from stoker.terminal import console

_PERCENTILES = ("p50", "p90", "p99")
_WAYS = {
    "transformers": "bench.way.transformers",
    "vllm": "bench.way.vllm",
    "vllm_batched": "bench.way.vllm_batched",
}


def serve(name: str, port: int, overrides: list[str], *, stop: bool, as_json: bool) -> None:
    """Start a server, or stop the running one."""
    run_dir = writing_models.find(name, "stoker serve")
    if stop:
        _stop(run_dir, as_json=as_json)
        return
    if not run_dir.final.is_dir():  # before anything is asked to be installed
        raise layout.unfinished(run_dir)
    running = model_server.find(run_dir)
    if running is None:
        ports.require_free(port)  # before minutes are spent on the trained model's answers
    asks = model_server.find_engine()[0] == "vllm" and running is None
    reference = parity_lines.make_reference(run_dir) if asks else None
    with console.status() as status:

        def show(seconds: float) -> None:
            status.show(messages.text("serve.starting", seconds=round(seconds)))

        show(0.0)
        server, plan = model_server.start(run_dir, port, overrides, show)
    try:
        _hand_over(run_dir, server, plan, reference, as_json=as_json)
    except BaseException:
        # Not compared, or nobody was told of it: a terminal or a pipe that is closed would leave a server behind.
        model_server.stop(run_dir, server)
        raise


def _hand_over(run_dir: RunDir, server: Server, plan: Serving, reference: Reference | None, *, as_json: bool) -> None:
    """Compare what is served with the trained model, then say where it is."""
    if not as_json:
        _explain(plan)
    compared = _compare(run_dir, server, reference)
    if as_json:
        shown = {**asdict(server), "url": server.url, "token_file": _token_file(run_dir), "plan": plan.model_dump()}
        console.data_json({**shown, "parity": compared})
        return
    console.talk("serve.ready", name=run_dir.name, url=server.url, log=server.log)
    console.talk("serve.ask", token=_token_words(run_dir), url=server.url, model=server.model, name=run_dir.name)
    console.data(server.url)


def _stop(run_dir: RunDir, *, as_json: bool) -> None:
    ended = model_server.stop(run_dir)
    if as_json:
        console.data_json({"stopped": asdict(ended) if ended else None})
    elif ended:
        console.talk("serve.stopped", name=run_dir.name, url=ended.url)
    else:
        console.talk("serve.idle", name=run_dir.name)


def _explain(plan: Serving) -> None:
    for reason in plan.reasons:
        console.talk("serve.reason", about=reason.about, text=reason.text)


def _compare(run_dir: RunDir, server: Server, reference: Reference | None) -> dict[str, Any] | None:
    """The parity gate; transformers' own server is not compared."""
    if server.engine != "vllm":
        console.talk("serve.unchecked")
        return None
    return parity_lines.compare(run_dir, "served", model_server.endpoint(run_dir, server), reference)


def _token_file(run_dir: RunDir) -> str | None:
    return None if env.read(env.API_TOKEN) else str(run_dir.token_file)


def _token_words(run_dir: RunDir) -> str:
    """How a shell finds the token."""
    return f"${env.API_TOKEN.name}" if env.read(env.API_TOKEN) else f"$(cat {run_dir.token_file})"


def bench(name: str, clients: str, requests: int, max_tokens: int, overrides: list[str], *, as_json: bool) -> None:
    """Measure, write `bench.json` and the picture, print."""
    run_dir = writing_models.find(name, "stoker bench")
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
        raise StokerError(
            "STK506", problem=messages.text("usage.bad", name="--clients", value=text), command="stoker bench"
        )
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
    """Draw the picture, if matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    programs.run_engine("plot", run_dir, lambda _: None)
    return True
