"""From what the README's tour exports (scratch_tiny, LoRA, merge, export) over a real vLLM to an OpenAI client. One
server for all tests.

What is served answers as `stoker chat` does, listens on loopback only, wants its token on every path, shows its secret
nowhere, and leaves nothing when it is stopped.
"""

import http.client
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stoker import tools
from stoker.artifacts import endpoint
from stoker.artifacts.endpoint import Endpoint
from stoker.supervise import processes

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(tools.find(tools.VLLM) is None, reason="STOKER_TOOLS has no vLLM"),
]

QUESTIONS = ["Who are you?", "What can you do?"]
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}
LISTEN = "0A"


@dataclass(frozen=True)
class Served:
    folder: Path
    port: int
    said: dict[str, Any]
    err: str

    @property
    def run(self) -> Path:
        return self.folder / "runs" / "sft_tiny"

    @property
    def token(self) -> str:
        return (self.run / "serve.token").read_text().strip()

    @property
    def client(self) -> Endpoint:
        return Endpoint(self.said["url"], self.token, self.said["model"])


def stoker(folder: Path, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, "HF_HUB_OFFLINE": "1", "STOKER_LANG": "en", "OMP_NUM_THREADS": "1"}
    settings.pop("STOKER_API_TOKEN", None)
    done = subprocess.run(
        [sys.executable, "-m", "stoker", *words],
        cwd=folder,
        env=settings,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def served(toured: Path) -> Iterator[Served]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    try:
        done = stoker(toured, "serve", "sft_tiny", "--port", str(port), "--json")
        yield Served(toured, port, json.loads(done.stdout), done.stderr)
    finally:
        stoker(toured, "serve", "sft_tiny", "--stop")


def status(served: Served, method: str, path: str, token: str | None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    body = json.dumps({"model": "sft_tiny", "prompt": "a", "max_tokens": 1}) if method == "POST" else None
    connection.request(method, path, body, headers)
    try:
        return connection.getresponse().status
    finally:
        connection.close()


def name_behind(link: Path) -> str:
    try:
        return link.readlink().name
    except OSError:
        return ""


def listeners(pids: list[int]) -> set[tuple[str, int]]:
    """Address and port of every TCP socket the processes listen on: what `ss -ltnp` reads."""
    inodes = {name_behind(link) for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTEN and f"socket:[{words[9]}]" in inodes:
                address, port = words[1].split(":")
                found.add((address, int(port, 16)))
    return found


def test_the_exported_model_is_what_is_served(served: Served) -> None:
    assert served.said["source"] == "export"
    assert served.said["engine"] == "vllm"
    assert served.said["plan"]["dtype"] == "float32"


def test_every_token_is_the_trained_models(served: Served) -> None:
    parity = json.loads((served.run / "artifacts" / "parity.json").read_text())["served"]
    assert parity["prompts"] >= 50
    assert parity["tokens"] > 500
    assert parity["agree"] == parity["tokens"]
    assert parity["template_same"] is True


def test_a_conversation_over_the_endpoint_is_the_one_chat_has(served: Served) -> None:
    asked = "\n".join(QUESTIONS) + "\n"
    spoken = json.loads(stoker(served.folder, "chat", "sft_tiny", "--max-tokens", "40", "--json", stdin=asked).stdout)
    assert [turn["content"] for turn in spoken if turn["role"] == "user"] == QUESTIONS
    answers = [turn["content"] for turn in spoken if turn["role"] == "assistant"]
    assert all(answers)
    history: list[dict[str, str]] = []
    for question, answer in zip(QUESTIONS, answers, strict=True):
        history.append({"role": "user", "content": question})
        body = {"messages": history, "max_tokens": 40, "temperature": 0}
        whole = endpoint.ask(served.client, "chat/completions", body)["choices"][0]["message"]["content"]
        pieces = [
            piece["choices"][0]["delta"].get("content") or ""
            for piece in endpoint.stream(served.client, "chat/completions", body)
            if piece["choices"]
        ]
        assert whole == "".join(pieces) == answer
        history.append({"role": "assistant", "content": answer})


def test_nothing_listens_but_on_loopback(served: Served) -> None:
    pids = processes.group_members(served.said["pid"])
    assert len(pids) >= 2  # the server and its engine
    found = listeners(pids)
    assert ("0100007F", served.port) in found
    assert {address for address, _ in found} <= LOOPBACK


def test_a_listener_elsewhere_would_be_found() -> None:
    with socket.socket() as open_to_all:
        open_to_all.bind(("0.0.0.0", 0))
        open_to_all.listen()
        assert {address for address, _ in listeners([os.getpid()])} - LOOPBACK == {"00000000"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("POST", "/v1/completions"),
        ("POST", "/invocations"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
    ],
)
def test_every_path_wants_the_token(served: Served, method: str, path: str) -> None:
    assert status(served, method, path, None) == 401
    assert status(served, method, path, served.token + "x") == 401
    assert status(served, method, path, served.token) == 200


def test_the_secret_stands_in_no_command_line_no_log_no_event_and_no_answer(served: Served) -> None:
    secret = served.token.encode()
    assert stat.S_IMODE((served.run / "serve.token").stat().st_mode) == 0o600
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    assert not [pid for pid in pids if served.token in " ".join(processes.words_of(pid))]
    holds_it = [path.name for path in served.run.rglob("*") if path.is_file() and secret in path.read_bytes()]
    assert holds_it == ["serve.token"]
    assert served.token not in json.dumps(served.said) + served.err


def test_the_log_is_in_the_run_directory(served: Served) -> None:
    (log,) = (served.run / "logs").glob("serve-*.log")
    assert "Application startup complete" in log.read_text()


def test_stopping_leaves_nothing(served: Served) -> None:
    pids = processes.group_members(served.said["pid"])
    said = json.loads(stoker(served.folder, "serve", "sft_tiny", "--stop", "--json").stdout)
    assert said["stopped"]["pid"] == served.said["pid"]
    assert processes.group_members(served.said["pid"]) == []
    assert not [pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists() and processes.words_of(pid)]
    assert not (served.run / "serving.json").exists()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", served.port)) != 0
    again = stoker(served.folder, "serve", "sft_tiny", "--stop")
    assert "not being served" in again.stderr
