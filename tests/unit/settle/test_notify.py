"""News by webhook, AutoDL's message and a command: delivered, and without a secret anywhere else."""

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from stoker.settle import notify
from stoker.settle.notify import News

NEWS = News("tiny", "done", "Stoker: tiny", "The run is done. 完成")
TOKEN = "autodl-secret-token-0123456789"


class Server:
    """Takes what is posted; answers as told."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.status, self.answer, self.location = 200, b'{"code": "Success"}', ""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.got.append({"path": self.path, "headers": dict(self.headers), "body": json.loads(body)})
                self.send_response(server.status)
                if server.location:
                    self.send_header("Location", server.location)
                self.end_headers()
                self.wfile.write(server.answer)

            do_GET = do_POST  # noqa: N815  # the library's name

            def log_message(self, *_: Any) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}/hook/very-secret-path"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("STOKER_WEBHOOK", "STOKER_AUTODL_TOKEN", "STOKER_NOTIFY_COMMAND", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def test_without_a_hook_nobody_is_told(server: Server) -> None:
    assert notify.tell(NEWS) == {}


def test_a_webhook_gets_json(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_WEBHOOK", server.address)
    assert notify.tell(NEWS) == {}
    (got,) = server.got
    assert got["body"] == {"run": "tiny", "event": "done", "title": "Stoker: tiny", "text": NEWS.text}


def test_autodl_gets_the_token_in_a_header_and_three_words(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "AUTODL_ADDRESS", server.address)
    monkeypatch.setenv("STOKER_AUTODL_TOKEN", TOKEN)
    assert notify.tell(NEWS) == {}
    (got,) = server.got
    assert got["headers"]["Authorization"] == TOKEN
    assert got["body"] == {"title": "Stoker: tiny", "name": "tiny", "content": NEWS.text}


def test_autodl_that_refuses_is_a_problem_without_the_token(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "AUTODL_ADDRESS", server.address)
    monkeypatch.setenv("STOKER_AUTODL_TOKEN", TOKEN)
    server.answer = f'{{"code": "AuthFailed", "msg": "{TOKEN}"}}'.encode()
    assert notify.tell(NEWS) == {"STOKER_AUTODL_TOKEN": "not accepted"}


def test_a_redirect_takes_no_token_elsewhere(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = Server()
    server.status, server.location = 302, elsewhere.address
    monkeypatch.setattr(notify, "AUTODL_ADDRESS", server.address)
    monkeypatch.setenv("STOKER_AUTODL_TOKEN", TOKEN)
    assert notify.tell(NEWS) == {"STOKER_AUTODL_TOKEN": "HTTP 302"}
    assert elsewhere.got == []
    elsewhere.http.shutdown()
    elsewhere.http.server_close()


def test_a_command_gets_the_text_on_its_standard_input(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())"
    monkeypatch.setenv("STOKER_NOTIFY_COMMAND", f"{sys.executable} -c \"{code}\" '{tmp_path / 'the mail'}'")
    assert notify.tell(NEWS) == {}
    assert (tmp_path / "the mail").read_text(encoding="utf-8") == f"Stoker: tiny\n\n{NEWS.text}\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STOKER_WEBHOOK", "http://127.0.0.1:1/very-secret-path"),
        ("STOKER_WEBHOOK", "file:///very-secret-path"),
        ("STOKER_WEBHOOK", "http://127.0.0.1:very-secret-path/"),
        ("STOKER_NOTIFY_COMMAND", "no-such-command very-secret-path"),
        ("STOKER_NOTIFY_COMMAND", "false very-secret-path"),
        ("STOKER_NOTIFY_COMMAND", "'very-secret-path"),
    ],
)
def test_what_fails_is_named_without_its_secret(
    server: Server, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    problems = notify.tell(NEWS)
    assert list(problems) == [name]
    assert "very-secret-path" not in problems[name]


def test_one_hook_that_fails_does_not_keep_the_others(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_WEBHOOK", server.address)
    monkeypatch.setenv("STOKER_NOTIFY_COMMAND", "false")
    assert list(notify.tell(NEWS)) == ["STOKER_NOTIFY_COMMAND"]
    assert len(server.got) == 1


def test_a_server_that_answers_by_drops_is_not_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(notify, "_HOOK_SECONDS", 0.2)
    monkeypatch.setattr(notify, "_post", lambda *_: over.wait(20))
    monkeypatch.setenv("STOKER_WEBHOOK", server.address)
    assert notify.tell(NEWS) == {"STOKER_WEBHOOK": "no answer"}
    over.set()
