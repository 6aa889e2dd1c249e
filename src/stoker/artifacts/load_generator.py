"""Bounded load on an endpoint, from a process of its own: `python -m stoker.artifacts.load_generator`.

The load specification is JSON on stdin: each client sends its next request when its answer is complete, until all
requests are done. Standard HTTP only; independent of the server. The token comes by stdin, so it is in no command line.
"""

import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from stoker.artifacts import endpoint
from stoker.artifacts.endpoint import Endpoint
from stoker.errors import StokerError
from stoker.supervise import starting

SHARES = (50, 90, 99)


@dataclass(frozen=True)
class LoadSpec:
    """A load: the requests and the number of concurrent clients."""

    url: str
    token: str
    model: str
    clients: int
    requests: int
    prompts: list[str]
    max_tokens: int
    in_turn: bool
    """One request in flight at a time; the others queue on the client."""
    extra: dict[str, Any]
    """Server-specific request fields."""


@dataclass(frozen=True)
class RequestTiming:
    """One request: seconds when it was due, at its first and its last token; and its number of tokens."""

    wanted: float
    first: float
    end: float
    tokens: int


def run(work: LoadSpec) -> dict[str, Any]:
    """Generate the load from a second process; returns the figures."""
    done = subprocess.run(  # noqa: S603  # our own program, no shell
        starting.command("stoker.artifacts.load_generator"),
        input=json.dumps(asdict(work)),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        raise StokerError("STK602", url=work.url, reason=(done.stderr.strip().splitlines() or ["-"])[-1])
    return figures([RequestTiming(*one) for one in json.loads(done.stdout)])


def figures(answers: Sequence[RequestTiming]) -> dict[str, Any]:
    """Throughput over the whole load, and latencies of single requests."""
    seconds = max(one.end for one in answers) - min(one.wanted for one in answers)
    tokens = sum(one.tokens for one in answers)
    first = [(one.first - one.wanted) * 1000 for one in answers]
    whole = [(one.end - one.wanted) * 1000 for one in answers]
    return {
        "requests": len(answers),
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(tokens / seconds, 2),
        "first_token_ms": {f"p{share}": round(percentile(first, share), 1) for share in SHARES},
        "latency_ms": {f"p{share}": round(percentile(whole, share), 1) for share in SHARES},
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The `share`-th percentile, linearly interpolated."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100
    below, above = math.floor(place), math.ceil(place)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def put_on(work: LoadSpec) -> list[RequestTiming]:
    """Send all requests; returns their timings."""
    at = Endpoint(work.url, work.token, work.model)
    prompts = itertools.islice(itertools.cycle(work.prompts), work.requests)
    # A single sender is a FIFO queue.
    with ThreadPoolExecutor(work.clients) as clients, ThreadPoolExecutor(1) as sender:

        def client(prompt: str) -> RequestTiming:
            wanted = time.perf_counter()
            return (
                sender.submit(_ask, at, work, prompt, wanted).result()
                if work.in_turn
                else _ask(at, work, prompt, wanted)
            )

        return list(clients.map(client, prompts))


def _ask(at: Endpoint, work: LoadSpec, prompt: str, wanted: float) -> RequestTiming:
    body = {"prompt": prompt, "max_tokens": work.max_tokens, "temperature": 0, **work.extra}
    first, pieces, counted = 0.0, 0, 0
    for piece in endpoint.stream(at, "completions", body):
        if piece["choices"]:
            first = first or time.perf_counter()
            pieces += 1
        counted = (piece.get("usage") or {}).get("completion_tokens", counted)
    if not first:
        raise ValueError("the server answered without a token")
    return RequestTiming(wanted, first, time.perf_counter(), counted or pieces)


def main() -> None:
    """Read the specification, generate the load, write the timings."""
    work = LoadSpec(**json.loads(sys.stdin.read()))
    sys.stdout.write(json.dumps([(a.wanted, a.first, a.end, a.tokens) for a in put_on(work)]))


if __name__ == "__main__":
    main()
