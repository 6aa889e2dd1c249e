"""The hub and its mirrors are played by servers on this machine; no other address may be reached."""

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stoker.doctor import network

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])


@contextmanager
def server(status: int = 200) -> Iterator[str]:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:  # http.server's name
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # http.server's name
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()
            thread.join()


@pytest.fixture
def closed() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_ENDPOINT", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_hub_that_answers_is_timed(monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    with server() as hub, server(404) as other:
        monkeypatch.setenv("HF_ENDPOINT", hub + "/")
        found = network.findings(mirror=closed, other=other)
    assert [(f.key, f.status) for f in found] == [
        ("doctor.hub", "ok"),
        ("doctor.mirror.not_needed", "ok"),
        ("doctor.mirror", "ok"),
    ]
    assert found[0].fields["milliseconds"] < 3000


def test_mirror_that_answers_is_proposed(monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    with server(503) as hub, server() as mirror:
        monkeypatch.setenv("HF_ENDPOINT", hub)
        found = network.findings(mirror=mirror, other=closed)
    assert [(f.key, f.status) for f in found] == [("doctor.hub.mirror_answers", "warn"), ("doctor.mirror", "ok")]
    assert "HTTP 503" in found[0].what
    assert f"HF_ENDPOINT={mirror}" in found[0].hint


def test_other_hub_is_proposed_where_the_mirror_is_silent(monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", closed)
    with server(500) as mirror, server() as other:
        found = network.findings(mirror=mirror, other=other)
    assert [f.key for f in found] == ["doctor.hub.other_answers", "doctor.mirror"]
    assert "modelscope:" in found[0].hint


def test_silence_everywhere_is_a_warning_with_the_reason(monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", closed)
    with server(500) as mirror, server(502) as other:
        (found,) = network.findings(mirror=mirror, other=other)
    assert (found.key, found.status) == ("doctor.hub.none_answers", "warn")
    assert "refused" in found.what


def test_offline_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(network, "ask", lambda urls: pytest.fail("asked"))
    assert [f.key for f in network.findings()] == ["doctor.hub.offline"]


def test_address_without_http_is_not_opened() -> None:
    answer = network.ask(["file:///etc/passwd"])["file:///etc/passwd"]
    assert "file:" in answer.problem


def test_name_server_that_hangs_does_not_hold_up_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(network, "_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(network, "_ask", lambda url: release.wait(30) and network.Answer())
    assert network.ask(["http://hangs"])["http://hangs"].problem == "0.1 s"
    release.set()
