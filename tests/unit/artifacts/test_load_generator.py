"""The load of a benchmark: percentiles, throughput, and clients that ask in turn or at once."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from stoker.artifacts import load_generator
from stoker.artifacts.load_generator import LoadSpec, RequestTiming

TOKEN = "a-token-of-some-length"


def test_percentiles_lie_between_neighbours_in_proportion() -> None:
    assert load_generator.percentile([3.0], 99) == 3.0
    assert load_generator.percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert load_generator.percentile([4.0, 1.0, 3.0, 2.0], 0) == 1.0
    assert load_generator.percentile([4.0, 1.0, 3.0, 2.0], 100) == 4.0
    assert load_generator.percentile(list(range(101)), 90) == 90


def test_percentiles_are_numpys() -> None:
    numpy = pytest.importorskip("numpy")
    values = [0.3, 7.0, 2.5, 2.5, 9.1, 4.4, 0.1]
    for share in (1, 50, 90, 99):
        assert load_generator.percentile(values, share) == pytest.approx(float(numpy.percentile(values, share)))


def test_throughput_is_all_tokens_over_the_whole_time() -> None:
    found = load_generator.figures([RequestTiming(0.0, 0.5, 1.0, 10), RequestTiming(0.0, 1.0, 2.0, 30)])
    assert (found["tokens"], found["seconds"], found["tokens_per_second"]) == (40, 2.0, 20.0)
    assert found["first_token_ms"]["p50"] == 750.0
    assert found["latency_ms"]["p50"] == 1500.0


class _Endpoint(BaseHTTPRequestHandler):
    at_once = 0
    most = 0
    asked: list[dict[str, Any]] = []  # noqa: RUF012  # one server a test
    lock = threading.Lock()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Authorization"] == f"Bearer {TOKEN}"
        with self.lock:
            type(self).at_once += 1
            type(self).most = max(self.most, self.at_once)
            self.asked.append(body)
        time.sleep(0.05)
        with self.lock:
            type(self).at_once -= 1
        self.send_response(200)
        self.end_headers()
        for piece in ({"choices": [{"text": "a"}]}, {"choices": [], "usage": {"completion_tokens": 7}}):
            self.wfile.write(f"data: {json.dumps(piece)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def url() -> Iterator[str]:
    _Endpoint.at_once, _Endpoint.most = 0, 0
    _Endpoint.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def work(url: str, **facts: Any) -> LoadSpec:
    known = {
        "url": url,
        "token": TOKEN,
        "model": "m",
        "clients": 4,
        "requests": 12,
        "prompts": ["x", "y"],
        "max_tokens": 7,
        "in_turn": False,
        "extra": {"ignore_eos": True},
    }
    return LoadSpec(**{**known, **facts})


def test_so_many_clients_ask_at_once_and_no_more(url: str) -> None:
    answers = load_generator.put_on(work(url))
    assert len(answers) == 12
    assert _Endpoint.most == 4
    assert {one.tokens for one in answers} == {7}
    assert [body["prompt"] for body in _Endpoint.asked].count("x") == 6
    assert all(body["ignore_eos"] and body["max_tokens"] == 7 and body["stream"] for body in _Endpoint.asked)


def test_in_turn_means_one_under_way_and_waiting_counts(url: str) -> None:
    answers = load_generator.put_on(work(url, in_turn=True))
    assert _Endpoint.most == 1
    slowest = max(one.end - one.wanted for one in answers)
    assert slowest >= 0.15  # three others were before it


def test_the_load_comes_from_a_second_process(url: str) -> None:
    found = load_generator.run(work(url))
    assert (found["requests"], found["tokens"]) == (12, 84)
    assert found["tokens_per_second"] > 0
