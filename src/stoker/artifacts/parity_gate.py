"""The parity gate: no artifact is accepted before it answers as the trained model does.

`compare` observes a folder through the engine (or another tool's Python) and a served model through its endpoint,
judges by `stoker.artifacts.parity_verdict`, writes `artifacts/parity.json`, and raises the problems.
"""

import math
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any, Protocol

from stoker import messages
from stoker.artifacts import endpoint as served
from stoker.artifacts import llamacpp, parity_verdict
from stoker.artifacts.endpoint import Endpoint, EndpointError
from stoker.artifacts.llamacpp import LlamaCpp
from stoker.errors import StokerError, StokerErrors
from stoker.launch import programs
from stoker.plan import parity_limits
from stoker.plan.parity_limits import Observation, Prompt, Reference
from stoker.rundir import artifacts, files, in_place
from stoker.rundir.events import EventCallback
from stoker.rundir.layout import RunDir

_REACH_AFTER_PARTING = 4
_OBSERVE = Path(__file__).parents[1] / "engine" / "foreign" / "observe.py"


def compare(
    run_dir: RunDir,
    name: str,
    endpoint: Endpoint | None = None,
    on_event: EventCallback = lambda _: None,
    *,
    python: Path | None = None,
    folder: Path | None = None,
    reference: Reference | None = None,
) -> dict[str, Any]:
    """Compare an artifact with the trained model; returns its entry of parity.json.

    Args:
        run_dir: The run.
        name: A name of `plan.parity_limits.KINDS`.
        endpoint: Where it is served; without one its folder is loaded.
        on_event: Receives `parity` events: part, done, of.
        python: Of the environment whose transformers loads the folder; by default ours.
        folder: Where it is, if neither being made nor accepted.
        reference: Of `make_reference`, if made before the endpoint started.
    """
    started = time.monotonic()
    place = folder or _place(run_dir, name)
    if endpoint is not None:
        reference, seen = _ask(endpoint, reference or make_reference(run_dir, on_event), name, on_event)
    elif python is not None:
        reference = make_reference(run_dir, on_event)
        seen = _look_elsewhere(python, run_dir, place)
    else:
        seen = _look(run_dir, name, place, on_event)
        reference = _read(run_dir)
    verdict = parity_verdict.judge(name, reference, seen)
    figures = {**verdict.figures, "seconds": round(time.monotonic() - started, 1)}
    artifacts.record_parity(run_dir, name, figures)
    if verdict.problems:
        raise StokerErrors(verdict.problems) if len(verdict.problems) > 1 else verdict.problems[0]
    return figures


def _place(run_dir: RunDir, name: str) -> Path:
    """Where the artifact is being made, else where it was accepted."""
    aside = artifacts.aside(run_dir, name)
    return aside if aside.is_dir() else artifacts.folder(run_dir, name)


def make_reference(run_dir: RunDir, on_event: EventCallback = lambda _: None) -> Reference:
    """The trained model's answers, computed if missing: before a server takes the memory."""
    programs.run_engine("parity", run_dir, on_event)
    return _read(run_dir)


def _read(run_dir: RunDir) -> Reference:
    return files.read_record(artifacts.reference_file(run_dir), Reference)


# ---- a folder


def _look(run_dir: RunDir, name: str, folder: Path, on_event: EventCallback) -> Observation:
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "seen.json"
        programs.run_engine("parity", run_dir, on_event, name, str(folder), str(out))
        return Observation.model_validate(files.read_json(out))


def _look_elsewhere(python: Path, run_dir: RunDir, folder: Path) -> Observation:
    """Through another environment's transformers: for formats that only a tool's own packages read."""
    log = run_dir.logs / "parity.log"
    with tempfile.TemporaryDirectory() as temporary, in_place.appending(log, run_dir.path) as words:
        out = Path(temporary) / "seen.json"
        command = [python, "-I", "-X", "utf8", _OBSERVE, folder, artifacts.reference_file(run_dir), out]
        done = subprocess.run(  # noqa: S603  # our own program, no shell
            list(map(str, command)), stdin=subprocess.DEVNULL, stdout=words, stderr=words, check=False
        )
        if done.returncode:
            raise StokerError("STK409", program="parity", exit_code=done.returncode, log=log)
        return Observation.model_validate(files.read_json(out))


# ---- an endpoint


@dataclass(frozen=True)
class _Completion:
    """What a server answered to one request."""

    tokens: list[int]
    lines: list[dict[int, float]]
    """Log-probabilities by token, for each of the tokens."""
    ended: bool
    """By a stop token, not by the token limit."""


class _Served(Protocol):
    """A server that accepts and returns token ids."""

    at_once: int
    """Concurrent requests: batched as in real use."""

    def room(self) -> int:
        """Its context length in tokens."""

    def render(self, prompt: Prompt) -> tuple[str, list[int]]:
        """A conversation or a plain text as the server renders and tokenizes it."""

    def complete(self, ids: list[int], wanted: int) -> _Completion:
        """The greedy continuation of a prompt."""

    def loss(self, sequence: list[int]) -> tuple[float, int]:
        """Summed loss over the counted tokens of a sequence, and their number."""


class _Vllm:
    """vLLM's OpenAI server."""

    at_once = 8
    _greedy = {  # noqa: RUF012  # a constant
        "temperature": 0,
        "top_p": 1,
        "min_p": 0,
        "repetition_penalty": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "skip_special_tokens": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    """Pure greedy decoding, overriding the model's generation settings."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._root = replace(endpoint, url=endpoint.url.removesuffix("/v1"))

    def room(self) -> int:
        return int(served.ask(self._root, "tokenize", {"prompt": "a"})["max_model_len"])

    def render(self, prompt: Prompt) -> tuple[str, list[int]]:
        """Through the same endpoints as clients."""
        if prompt.messages is None:
            (choice,) = self._ask("completions", {"prompt": prompt.text, "max_tokens": 1})["choices"]
            return prompt.text, choice["prompt_token_ids"]
        body = {"messages": prompt.messages, "max_tokens": 1, "return_prompt_text": True}
        reply = self._ask("chat/completions", body)
        return reply.get("prompt_text") or "", reply["prompt_token_ids"]

    def complete(self, ids: list[int], wanted: int) -> _Completion:
        (choice,) = self._ask("completions", {"prompt": ids, "max_tokens": wanted, "logprobs": parity_limits.TOP})[
            "choices"
        ]
        lines = [
            {int(word.removeprefix("token_id:")): value for word, value in line.items()}
            for line in choice["logprobs"]["top_logprobs"]
        ]
        return _Completion(choice["token_ids"], lines, choice["finish_reason"] == "stop")

    def loss(self, sequence: list[int]) -> tuple[float, int]:
        ids = [~token if token < 0 else token for token in sequence]
        (choice,) = self._ask("completions", {"prompt": ids, "max_tokens": 1, "prompt_logprobs": 0})["choices"]
        lines = choice["prompt_logprobs"]
        counted = [at for at, token in enumerate(sequence) if token >= 0 and at > 0]
        return -math.fsum(lines[at][str(ids[at])]["logprob"] for at in counted), len(counted)

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return served.ask(self._endpoint, path, {**self._greedy, **body})


class _Llama:
    """llama.cpp's server, by its native API."""

    at_once = 1

    def __init__(self, endpoint: LlamaCpp) -> None:
        self._endpoint = endpoint

    def room(self) -> int:
        return llamacpp.CONTEXT_TOKENS

    def render(self, prompt: Prompt) -> tuple[str, list[int]]:
        return llamacpp.prompt_ids(self._endpoint, prompt.messages, prompt.text)

    def complete(self, ids: list[int], wanted: int) -> _Completion:
        return _Completion(*llamacpp.complete(self._endpoint, ids, wanted))

    def loss(self, sequence: list[int]) -> tuple[float, int]:
        return llamacpp.loss(self._endpoint, sequence)


def _ask(endpoint: Endpoint, reference: Reference, name: str, on_event: EventCallback) -> tuple[Reference, Observation]:
    """A served model's answers to every prompt that fits its context, and the reference of these."""
    server: _Served = _Llama(endpoint) if isinstance(endpoint, LlamaCpp) else _Vllm(endpoint)
    try:
        reference = _fitting(reference, server.room())
        return reference, _follow_all(server, reference, endpoint.url, name, on_event)
    except (OSError, HTTPException, EndpointError, KeyError, ValueError) as error:
        raise StokerError("STK648", url=endpoint.url, reason=f"{type(error).__name__}: {error}") from error


def _fitting(reference: Reference, room: int) -> Reference:
    """The reference restricted to prompts that fit the context with their answers."""
    prompts = [one for one in reference.prompts if len(one.ids) + len(one.answer) < room]
    if len(prompts) < parity_limits.LEAST_PROMPTS:
        raise StokerError("STK649", room=room, fitting=len(prompts), least=parity_limits.LEAST_PROMPTS)
    if any(len(sequence) >= room for sequence in reference.corpus):
        return reference.model_copy(update={"prompts": prompts, "corpus": []})
    return reference.model_copy(update={"prompts": prompts})


def _follow_all(server: _Served, reference: Reference, url: str, name: str, on_event: EventCallback) -> Observation:
    with ThreadPoolExecutor(server.at_once) as pool:
        asked = [pool.submit(_follow, server, prompt, reference.stops) for prompt in reference.prompts]
        followed = []
        for done, one in enumerate(asked):
            followed.append(one.result())
            on_event({"event": "parity", "part": name, "done": done, "of": len(asked)})
        losses = list(pool.map(server.loss, reference.corpus))
    return Observation(
        through=url,
        tokens=[one.tokens for one in followed],
        logprobs=[one.logprobs for one in followed],
        ended_elsewhere=[at for at, one in enumerate(followed) if one.ended_elsewhere],
        rendered={at: one.rendered for at, one in enumerate(followed) if one.rendered is not None},
        corpus_loss=sum(loss for loss, _ in losses) / sum(count for _, count in losses) if losses else None,
    )


@dataclass
class _Followed:
    """One prompt's answer, teacher-forced along the reference."""

    rendered: str | None
    """The prompt as the server renders it, if its tokens differ."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[list[float | None]] = field(default_factory=list)
    ended_elsewhere: bool = False


def _follow(server: _Served, prompt: Prompt, stops: list[int]) -> _Followed:
    """Greedy answers; where a token differs, it is recorded and decoding restarts after the reference's own token."""
    followed = _Followed(_rendered(server, prompt))
    reach = len(prompt.answer)
    while (done := len(followed.tokens)) < len(prompt.answer):
        expected = prompt.answer[done : done + reach]
        # One token more than a reference that stopped by itself: does this answer stop too?
        wanted = len(expected) + (prompt.stopped and done + reach >= len(prompt.answer))
        answer = server.complete([*prompt.ids, *prompt.answer[:done]], wanted)
        agreed = _take(followed, prompt, expected, _with_end(answer, expected, stops))
        if len(followed.tokens) == done:
            raise ValueError(messages.text("parity.silent", done=done))
        # A prompt that diverged once may diverge again: short requests, doubled while they agree.
        reach = 2 * reach if agreed else _REACH_AFTER_PARTING
    return followed


def _rendered(server: _Served, prompt: Prompt) -> str | None:
    if prompt.source != "shipped":
        return None
    text, ids = server.render(prompt)
    return None if ids == prompt.ids else text


def _with_end(answer: _Completion, expected: list[int], stops: list[int]) -> _Completion:
    """The answer with the stop token that ended it, if the server does not return it."""
    if not answer.ended or (answer.tokens and answer.tokens[-1] in stops):
        return answer
    at = len(answer.tokens)
    end = expected[at] if at < len(expected) and expected[at] in stops else stops[0]
    return _Completion([*answer.tokens, end], [*answer.lines, {}], ended=True)


def _take(followed: _Followed, prompt: Prompt, expected: list[int], answer: _Completion) -> bool:
    """Take tokens up to and including the first that differs; returns whether none did."""
    start = len(followed.tokens)
    for at, (token, line) in enumerate(zip(answer.tokens[: len(expected)], answer.lines, strict=False)):
        followed.tokens.append(token)
        followed.logprobs.append([line.get(one) for one in prompt.top[start + at]])
        if token != expected[at]:
            return False
    whole = len(followed.tokens) == len(prompt.answer)
    followed.ended_elsewhere |= answer.ended != (whole and prompt.stopped)
    return True
