"""`stoker serve --on`: a real sshd and real tunnels; the server there is a stand-in with `stoker serve`'s answers."""

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import store_servers

from stoker.hosts import known
from stoker.hosts.known import Host

pytestmark = pytest.mark.skipif(not store_servers.has_sshd(), reason="no sshd")

TOKEN = "token-of-the-server-0123456789"
STAND_IN = """
import json, os, pathlib, signal, subprocess, sys
words = sys.argv[sys.argv.index("stoker") + 1 :]
run = pathlib.Path(os.environ["STOKER_RUNS"]) / words[1]
record = run / "serving.json"
with open(run.parent / "calls", "a") as calls:
    calls.write(" ".join(words) + "\\\\n")
if "--stop" in words:
    found = json.loads(record.read_text()) if record.exists() else None
    if found:
        os.kill(found["pid"], signal.SIGTERM)
        record.unlink()
    print(json.dumps({"stopped": found}))
    sys.exit()
port = words[words.index("--port") + 1]
server = subprocess.Popen(
    [sys.executable, "-m", "http.server", port, "--bind", "127.0.0.1", "--directory", str(run / "artifacts")],
    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
said = {"pid": server.pid, "port": int(port), "model": words[1], "folder": "artifacts"}
record.write_text(json.dumps(said, indent=1))
(run / "serve.token").write_text("TOKEN\\\\n")
print(json.dumps({**said, "parity": {"agree": 9}}))
"""


@dataclass
class Setting:
    """A laptop and a machine that are both this one, with folders of their own."""

    folder: Path
    port: int
    env: dict[str, str]
    started: list["subprocess.Popen[str]"] = field(default_factory=list)

    @property
    def run(self) -> Path:
        """The run there."""
        return self.folder / "base" / "runs" / "night"

    @property
    def calls(self) -> list[str]:
        path = self.run.parent / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def stoker(self, *words: str) -> "subprocess.Popen[str]":
        argv = [sys.executable, "-m", "stoker", "serve", "night", "--on", "box", "--port", str(self.port), *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(argv, env=self.env, cwd=self.folder, text=True, **pipes)  # type: ignore[call-overload]
        self.started.append(process)
        return process

    def url(self, process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        assert line, process.communicate()[1]
        return str(line)


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setting]:
    base, home = tmp_path / "base", tmp_path / "home"
    (base / "runs" / "night" / "artifacts" / "final").mkdir(parents=True)
    (base / "runs" / "night" / "artifacts" / "hello").write_text("from the server")
    (base / "env" / "bin").mkdir(parents=True)
    (base / "stand_in.py").write_text(STAND_IN.replace("TOKEN", TOKEN).replace("\\\\n", "\\n"))
    python = base / "env" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {base}/stand_in.py "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("STOKER_HOME", str(home))
    with store_servers.sshd(tmp_path / "sshd") as server:
        key = str(tmp_path / "sshd" / "user_key")
        known.save(Host(name="box", host="127.0.0.1", port=server.port, key=key, base=str(base)))
        known.pin("box", [" ".join((tmp_path / "sshd" / "host_key.pub").read_text().split()[:2])])
        settings = {"STOKER_HOME": str(home), "STOKER_RUNS": str(tmp_path / "runs"), "STOKER_LANG": "en"}
        made = Setting(tmp_path, store_servers.free_port(), {**os.environ, **settings, "COLUMNS": "80"})
        try:
            yield made
        finally:
            for process in made.started:
                process.kill()
                process.communicate()
            with contextlib.suppress(OSError, ValueError):
                os.kill(json.loads((made.run / "serving.json").read_text())["pid"], signal.SIGKILL)


def asked(url: str) -> str:
    with urllib.request.urlopen(url.replace("/v1", "/hello"), timeout=10) as answer:
        return str(answer.read().decode())


def until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


# Both machines are this one here, so the server's port is not the tunnel's: `other` is what the server gets.


@pytest.fixture
def elsewhere(setting: Setting) -> Setting:
    """The server there takes another port than the tunnel here."""
    source = setting.folder / "base" / "stand_in.py"
    other = store_servers.free_port()
    text = source.read_text().replace('port = words[words.index("--port") + 1]', f'port = "{other}"')
    source.write_text(text)
    return setting


def test_the_endpoint_is_here_on_loopback_until_ctrl_c(elsewhere: Setting) -> None:
    process = elsewhere.stoker()
    url = elsewhere.url(process)
    assert url == f"http://127.0.0.1:{elsewhere.port}/v1"
    assert asked(url) == "from the server"
    served = json.loads((elsewhere.run / "serving.json").read_text())["port"]
    if shutil.which("ss"):
        said = subprocess.run(["ss", "-ltn"], capture_output=True, text=True, check=True).stdout
        bound = {
            row.split()[3] for row in said.splitlines() if row.split()[3].endswith((f":{elsewhere.port}", f":{served}"))
        }
        assert bound == {f"127.0.0.1:{elsewhere.port}", f"127.0.0.1:{served}"}
    token = elsewhere.folder / "home" / "tokens" / "box-night"
    assert token.read_text().strip() == TOKEN
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert TOKEN not in out + err
    assert "Ctrl-C ends the tunnel and the server" in err
    assert elsewhere.calls[-1].startswith("serve night --stop")
    until(lambda: not is_open(elsewhere.port) and not is_open(served))


def test_a_taken_port_here_is_named_before_anything_starts_there(setting: Setting) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", setting.port))
        taken.listen()
        process = setting.stoker()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "STK620" in err
    assert f"(pid {os.getpid()})" in " ".join(err.split())
    assert setting.calls == []


IN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


def test_a_closed_terminal_ends_the_server_there(elsewhere: Setting) -> None:
    ours, theirs = os.openpty()
    argv = [sys.executable, "-m", "stoker", "serve", "night", "--on", "box", "--port", str(elsewhere.port)]
    process = subprocess.Popen(
        [sys.executable, "-c", IN_TERMINAL, *argv],
        env=elsewhere.env,
        cwd=elsewhere.folder,
        start_new_session=True,
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
    )
    elsewhere.started.append(process)
    os.close(theirs)
    said = b""
    while f"http://127.0.0.1:{elsewhere.port}/v1\r\n".encode() not in said:
        said += os.read(ours, 4096)
    served = json.loads((elsewhere.run / "serving.json").read_text())["port"]
    assert is_open(served)
    os.close(ours)  # the kernel says so by SIGHUP, and every word to the terminal fails
    process.send_signal(signal.SIGHUP)  # as its shell does, too
    until(lambda: process.poll() is not None)
    assert elsewhere.calls[-1].startswith("serve night --stop")
    until(lambda: not is_open(elsewhere.port) and not is_open(served))


def test_a_line_that_breaks_is_opened_again(elsewhere: Setting) -> None:
    process = elsewhere.stoker()
    url = elsewhere.url(process)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True).stdout
    (tunnel,) = children.split()
    os.kill(int(tunnel), signal.SIGKILL)
    until(lambda: not is_open(elsewhere.port))
    until(lambda: is_open(elsewhere.port))
    assert asked(url) == "from the server"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "The line to `box` broke" in err


def test_a_killed_command_leaves_the_server_and_no_tunnel_and_the_next_one_finds_it(elsewhere: Setting) -> None:
    first = elsewhere.stoker()
    elsewhere.url(first)
    first.kill()
    until(lambda: not is_open(elsewhere.port))
    second = elsewhere.stoker("--json")
    assert second.stdout is not None
    started = [call for call in elsewhere.calls if "--stop" not in call]
    until(lambda: is_open(elsewhere.port))
    assert asked(f"http://127.0.0.1:{elsewhere.port}/v1") == "from the server"
    assert len(started) == 1
    stopped = elsewhere.stoker("--stop", "--json")
    out, err = stopped.communicate(timeout=60)
    assert json.loads(out)["stopped"]["model"] == "night", err
    second.send_signal(signal.SIGINT)
    assert second.wait(30) == 0


def test_a_run_that_is_not_finished_there_is_said(setting: Setting) -> None:
    shutil.rmtree(setting.run / "artifacts" / "final")
    process = setting.stoker()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, "STK541" in err) == (1, True)
    assert setting.calls == []


def test_a_place_without_ssh_is_refused(setting: Setting) -> None:
    argv = [sys.executable, "-m", "stoker", "serve", "night", "--on", "kaggle"]
    done = subprocess.run(argv, env=setting.env, cwd=setting.folder, capture_output=True, text=True, check=False)
    assert (done.returncode, "STK540" in done.stderr) == (1, True)
