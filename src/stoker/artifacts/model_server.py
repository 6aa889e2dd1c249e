"""Serves a trained model: vLLM (or transformers' server) as a process of its own, on loopback only, with a token.

The process outlives the terminal and logs to a file (law 9). It counts as ready only once it has generated a token:
the list of models can answer while the engine is about to crash. The token travels by environment and a 0600 file.
"""

import datetime
import http.client
import importlib.util
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stoker import env, tools
from stoker.artifacts import exclusive, ports, server_log
from stoker.artifacts.endpoint import Endpoint, EndpointError, ask
from stoker.artifacts.serving_choices import Engine, ServedAdapter, Serving, ServingInputs, make_serving
from stoker.config import load
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.facts import machine
from stoker.launch import programs, weighing
from stoker.plan import choices
from stoker.plan.plan import Plan
from stoker.rundir import artifacts, files, in_place, lock
from stoker.rundir.layout import RunDir
from stoker.supervise import processes, starting

HOST = ports.LOOPBACK
_READY_SECONDS = 3600.0
_LOOK_SECONDS = 0.5
_LAST_LINES = 12
_TOKEN = re.compile(r"[\x21-\x7e]{8,}")
_FOREIGN = Path(__file__).parent.parent / "engine" / "foreign"
_TRANSFORMERS = ("transformers", "fastapi", "uvicorn", "openai")
_PLAIN_FLAGS = ("disable_log_stats", "aggregate_engine_logging")
"""vLLM's switches that have no `--no-` form."""
_BESIDE = {"use_dora": False, "lora_bias": False, "modules_to_save": None, "bias": "none", "layer_replication": None}
"""Adapter options that vLLM requires to serve an adapter beside its base."""
_EMBEDDINGS = {"lm_head", "embed_tokens", "wte"}
"""With an adapter on the output layer vLLM 0.32 crashes when a client asks for prompt log-probabilities."""
_OUT_OF_MEMORY = (
    "out of memory",
    "No available memory",
    "Free memory on device",
    "Cannot allocate memory",
    "KV cache is",
)


@dataclass(frozen=True)
class Model:
    """What is served: a whole model, or an adapter beside its base."""

    source: Literal["export", "merged", "final", "adapter"]
    folder: Path
    """The whole model, or the base."""
    adapter: Path | None = None
    settings: Path | None = None
    """Folder with generation settings, if the model's own lack the end of turn."""


@dataclass(frozen=True)
class Server:
    """A server of a run, as recorded in `serving.json`."""

    pid: int
    port: int
    engine: Engine
    source: str
    folder: str
    model: str
    """The name clients ask for."""
    log: str
    started: str

    @property
    def url(self) -> str:
        """Where clients ask."""
        return f"http://{HOST}:{self.port}/v1"


def start(run_dir: RunDir, port: int, overrides: list[str], on_wait: Callable[[float], None]) -> tuple[Server, Serving]:
    """Start a server and return when it has generated a token."""
    with claimed(run_dir):
        run = run_as_asked(run_dir, overrides)
        engine, python = find_engine()
        ports.require_free(port)
        model = find_model(run_dir, run, engine)
        serving = plan(run_dir, run, model, engine)
        server, process = launch(run_dir, model, serving, python, port)
    try:
        wait_until_ready(process, server, endpoint(run_dir, server), on_wait)
    except BaseException:
        end(run_dir, server, process)
        raise
    return server, serving


@contextmanager
def claimed(run_dir: RunDir) -> Iterator[None]:
    """Hold the lock of a run without a server until there is the record of one: else another would replace it."""
    with exclusive.starting_server(run_dir):
        if running := find(run_dir):
            raise StokerError("STK623", name=run_dir.name, url=running.url, pid=running.pid)
        yield


def end(run_dir: RunDir, server: Server, process: "subprocess.Popen[bytes]") -> None:
    """End a server that this process has started."""
    processes.terminate(server.pid)
    process.wait()
    _forget(run_dir, server)


def stop(run_dir: RunDir, started: Server | None = None) -> Server | None:
    """End the server of a run with everything it started; None where there is none.

    Args:
        run_dir: The run.
        started: The only one to end: another may have been started since.
    """
    recorded = _recorded(run_dir)
    if recorded is None or started not in (None, recorded):
        return None
    server = recorded if is_ours(recorded) else None
    if server:
        processes.terminate(server.pid)
    _forget(run_dir, recorded)
    return server


def _forget(run_dir: RunDir, server: Server) -> None:
    """Remove the record of a server, unless it is of another one by now, or is about to be."""
    with lock.held(exclusive.serving_lock(run_dir)) as is_alone:
        if is_alone and _recorded(run_dir) == server:
            run_dir.serving_file.unlink(missing_ok=True)


def find(run_dir: RunDir) -> Server | None:
    """The running server by its recorded pid; a recycled pid is not ours."""
    server = _recorded(run_dir)
    return server if server and is_ours(server) else None


def _recorded(run_dir: RunDir) -> Server | None:
    try:
        return Server(**files.read_json(run_dir.serving_file))
    except (OSError, ValueError, TypeError):
        return None


def endpoint(run_dir: RunDir, server: Server) -> Endpoint:
    """The server's endpoint."""
    return Endpoint(server.url, token(run_dir), server.model)


def token(run_dir: RunDir) -> str:
    """The token clients must send: from the environment, else generated once and kept in a file with mode 0600."""
    given = env.read(env.API_TOKEN)
    if given:
        if not _TOKEN.fullmatch(given):
            raise StokerError("STK627", variable=env.API_TOKEN.name)
        return given
    path = run_dir.token_file
    with os.fdopen(in_place.descriptor(path, os.O_RDWR, mode=0o600), "r+", encoding="utf-8") as file:
        path.chmod(0o600)
        kept = file.read().strip()
        if not kept:
            kept = secrets.token_urlsafe(32)
            file.write(kept + "\n")
    return kept


def find_engine() -> tuple[Engine, Path]:
    """The vLLM of the tools folder, else transformers' server in this environment."""
    python = tools.find(tools.VLLM)
    if python:
        return "vllm", python
    if has_transformers_server():
        return "transformers", Path(sys.executable)
    raise StokerError("STK628", folder=tools.folder() / tools.VLLM.name, packages=tools.VLLM.packages)


def has_transformers_server() -> bool:
    """Whether `transformers[serving]` is installed here."""
    return all(importlib.util.find_spec(name) for name in _TRANSFORMERS)


def find_model(run_dir: RunDir, run: Run, engine: Engine) -> Model:
    """The exported model, else the merged one, else what training made."""
    if not run_dir.final.is_dir():
        raise StokerError("STK502", name=run_dir.name)
    for name in ("export", "merged"):
        folder = artifacts.folder(run_dir, name)
        # Older than the finished model: it belongs to an earlier training of this name.
        if (folder / "config.json").is_file() and folder.stat().st_mtime >= run_dir.final.stat().st_mtime:
            return Model(name, artifacts.folder(run_dir, name).resolve())
    adapter_config = run_dir.final / "adapter_config.json"
    if engine == "transformers":
        # Its server reads no settings but the model's: a model that was not exported would not stop at the end of turn.
        raise StokerError("STK604", name=run_dir.name)
    if adapter_config.is_file():
        _check_beside(run_dir, run, files.read_object(adapter_config))
    programs.run_engine("serving", run_dir, lambda _: None)
    settings = artifacts.aside(run_dir, "serving").resolve()
    if not adapter_config.is_file():
        return Model("final", run_dir.final.resolve(), settings=settings)
    base = Path(files.read_json(settings / "base.json")["folder"])
    return Model("adapter", base, adapter=run_dir.final.resolve(), settings=settings)


def _check_beside(run_dir: RunDir, run: Run, adapter: dict[str, Any]) -> None:
    """Refuse an adapter that vLLM cannot serve beside its base as it was trained."""
    option = ""
    if run.tune.method == "qlora":
        option = "tune.method: qlora"
    for name, plain in _BESIDE.items():
        if adapter.get(name, plain) != plain:
            option = f"{name}: {adapter[name]}"
    if touched := _EMBEDDINGS.intersection(_targets(adapter)):
        option = f"tune.targets: {sorted(touched)}"
    if option:
        raise StokerError("STK625", option=option, name=run_dir.name)


def plan(run_dir: RunDir, run: Run, model: Model, engine: Engine) -> Serving:
    """How the model is served on this machine."""
    config = files.read_object(model.folder / "config.json")
    shape = weighing.resolve(str(model.folder), Path()).shape
    dtype = config.get("dtype") or config.get("torch_dtype") or "float32"
    adapter = None
    if model.adapter:
        dtype = files.read_record(run_dir.plan_file, Plan).native.model["dtype"]
        adapter = _adapter(files.read_object(model.adapter / "adapter_config.json"))
    return make_serving(
        ServingInputs(
            name=run_dir.name,
            shape=shape,
            machine=choices.machine(run, machine.examine()).value,
            engine=engine,
            dtype=dtype,
            length=min(run.data.length, shape.context or run.data.length),
            adapter=adapter,
            native=run.native.vllm,
        )
    )


def _adapter(adapter: dict[str, Any]) -> ServedAdapter:
    ranks: dict[str, int] = adapter.get("rank_pattern") or {}
    return ServedAdapter(max([int(adapter["r"]), *ranks.values()]), tuple(sorted(_targets(adapter))))


def _targets(adapter: dict[str, Any]) -> set[str]:
    """Names of the adapted layers: `q_proj` for `model.layers.0.self_attn.q_proj`; none for a pattern."""
    named = adapter["target_modules"]
    return {name.rpartition(".")[2] for name in named} if isinstance(named, list) else set()


def launch(
    run_dir: RunDir, model: Model, serving: Serving, python: Path, port: int
) -> tuple[Server, "subprocess.Popen[bytes]"]:
    """Start the server in its own session; output goes to `logs/serve-<n>.log`."""
    log = run_dir.logs / f"serve-{1 + len(list(run_dir.logs.glob('serve-*.log')))}.log"
    with in_place.appending(log, run_dir.path) as output:
        process = subprocess.Popen(  # noqa: S603  # a known program, no shell
            [str(python), *command(model, serving, run_dir.name, port)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env.child_environment(environment(serving, token(run_dir))),
            **starting.DETACHED,
        )
    server = Server(
        pid=process.pid,
        port=port,
        engine=serving.engine,
        source=model.source,
        folder=str(model.folder),
        model=run_dir.name if serving.engine == "vllm" else str(model.folder),
        log=str(log),
        started=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    )
    files.write_json(run_dir.serving_file, vars(server))
    return server, process


def command(model: Model, serving: Serving, name: str, port: int) -> list[str]:
    """The server's arguments, without any secret."""
    if serving.engine == "transformers":
        return [str(_FOREIGN / "transformers_server.py"), str(model.folder), str(port)]
    options: dict[str, Any] = {
        "model": str(model.folder),
        "served_model_name": f"{name}-base" if model.adapter else name,
        "host": HOST,
        "port": port,
        "middleware": "stoker_guard.Guard",
        **serving.options,
    }
    if model.adapter:
        options["tokenizer"] = str(model.adapter)
        options["lora_modules"] = {"name": name, "path": str(model.adapter)}
    if model.settings:
        options["generation_config"] = str(model.settings)
    words = ["-m", "vllm.entrypoints.openai.api_server"]
    for option, value in options.items():
        words += _flag(option, value)
    return words


def _flag(option: str, value: Any) -> list[str]:
    """An option as vLLM's command line has it."""
    flag = "--" + option.replace("_", "-")
    if value is True:
        return [flag]
    if value is False:
        return [] if option in _PLAIN_FLAGS else [flag.replace("--", "--no-", 1)]
    if value is None:
        return []
    if isinstance(value, list) and not any(isinstance(one, dict | list) for one in value):
        return [flag, *map(str, value)]
    return [flag, json.dumps(value) if isinstance(value, dict | list) else str(value)]


def environment(serving: Serving, secret: str) -> dict[str, str]:
    """The token, and everything the server's processes need to stay on the loopback interface."""
    return {
        **tools.vllm_variables(),
        env.VLLM_API_KEY.name: secret,
        env.PYTHONPATH.name: str(_FOREIGN),
        **({env.CUDA_VISIBLE_DEVICES.name: ",".join(map(str, serving.gpus))} if serving.gpus else {}),
        # Numbered as by the driver, not by speed.
        env.CUDA_DEVICE_ORDER.name: "PCI_BUS_ID",
    }


def run_as_asked(run_dir: RunDir, overrides: list[str]) -> Run:
    """The run with `--set` overrides: only how it is served may change."""
    if not overrides:
        return run_dir.run()
    for override in overrides:
        if not override.startswith(("native.vllm.", "where.gpus=")):
            raise StokerError("STK629", override=override)
    asked = [*run_dir.manifest().overrides, *overrides]
    return load.parse(run_dir.file().text, "run.yaml", asked)


# ---- ready, or dead


def wait_until_ready(
    process: "subprocess.Popen[bytes]", server: Server, asked: Endpoint, on_wait: Callable[[float], None]
) -> None:
    """Return once a token was generated; raise with the log's last lines if the process ended first."""
    began = time.monotonic()
    while True:
        generated = generates(asked)
        if process.poll() is not None:
            raise died(process.returncode, server, asked.token)
        if generated:
            return
        elapsed = time.monotonic() - began
        if elapsed > _READY_SECONDS:
            raise StokerError("STK626", minutes=round(elapsed / 60), log=server.log)
        on_wait(elapsed)
        time.sleep(_LOOK_SECONDS)


def generates(asked: Endpoint) -> bool:
    """Whether the server answers with a token of its model."""
    try:
        answer = ask(asked, "completions", {"prompt": "a", "max_tokens": 1, "temperature": 0})
    except (OSError, http.client.HTTPException, EndpointError, ValueError):
        return False
    return bool(answer.get("choices")) and answer.get("usage", {}).get("completion_tokens", 0) >= 1


def died(code: int, server: Server, secret: str) -> StokerError:
    """Why the server crashed, from its log."""
    text = Path(server.log).read_text(encoding="utf-8", errors="replace").replace(secret, "***")
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    cause = server_log.cause(lines, code)
    fields: dict[str, Any] = {"cause": cause.sentence, "log": server.log}
    if code == -9 or any(word in line for word in _OUT_OF_MEMORY for line in lines):
        return StokerError("STK622", exit_code=code, **fields)
    if server.source == "adapter" and cause.of_adapter:
        return StokerError("STK478", name=server.model, **fields)
    return StokerError("STK621", exit_code=code, lines="\n".join(lines[-_LAST_LINES:]), **fields)


def is_ours(server: Server) -> bool:
    """Whether the recorded process is alive and has the recorded arguments."""
    running = processes.words_of(server.pid)
    return server.folder in running and str(server.port) in running
