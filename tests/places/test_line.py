"""A real sshd, real rsync, SFTP and tar: what a line promises."""

import contextlib
import http.server
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import store_servers

from stoker.errors import StokerError
from stoker.hosts import known
from stoker.hosts.known import Host
from stoker.hosts.shell import LocalShell, Ssh

pytestmark = pytest.mark.skipif(not store_servers.has_sshd(), reason="no sshd")


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ssh]:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    with store_servers.sshd(tmp_path / "sshd") as server:
        host = Host(name="box", host="127.0.0.1", port=server.port, key=str(tmp_path / "sshd" / "user_key"))
        known.save(host)
        _pin(tmp_path / "sshd" / "host_key.pub")
        line = Ssh(host)
        yield line
        line.close()


def _pin(public: Path) -> None:
    known.pin("box", [" ".join(public.read_text().split()[:2])])


def test_a_script_runs_in_a_login_shell_and_banners_are_passed_over(line: Ssh) -> None:
    assert line.run("shopt -q login_shell && echo login") == "login\n"


def test_a_secret_stands_in_no_command_line(line: Ssh) -> None:
    said = line.run(
        "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; echo; echo $TOKEN", secrets={"TOKEN": "it's me"}
    )
    assert said.splitlines()[-1] == "it's me"
    assert "it's me" not in "".join(said.splitlines()[:-1])


def test_a_script_that_fails_says_its_last_words(line: Ssh) -> None:
    with pytest.raises(StokerError, match="no such thing") as told:
        line.run("echo no such thing >&2; false; echo not reached")
    assert told.value.code == "STK702"


def test_nothing_in_a_script_reads_the_rest_of_it(line: Ssh) -> None:
    assert line.run("cat; echo after") == "after\n"


def test_a_script_that_hangs_ends_with_the_patience(line: Ssh) -> None:
    with pytest.raises(StokerError) as told:
        line.run("sleep 30", seconds=2)
    assert told.value.code == "STK701"


@pytest.mark.parametrize(("platform", "code"), [("autodl", "STK716"), ("", "STK723")])
def test_a_machine_that_refuses_the_connection_is_probably_off(line: Ssh, platform: str, code: str) -> None:
    gone = line.host.model_copy(update={"port": store_servers.free_port(), "platform": platform})
    for ask in (Ssh(gone).run, Ssh(gone).talk):
        with pytest.raises(StokerError, match="does not respond") as told:
            ask("true")
        assert told.value.code == code


def test_a_session_that_breaks_on_a_machine_that_is_on_was_lost(line: Ssh) -> None:
    host = line.host.model_copy(update={"platform": "autodl"})
    with pytest.raises(StokerError) as told:
        Ssh(host).run("kill -KILL $PPID")
    assert told.value.code == "STK701"


def test_another_host_key_is_refused(line: Ssh, tmp_path: Path) -> None:
    line.close()
    _pin(tmp_path / "sshd" / "user_key.pub")
    with pytest.raises(StokerError) as told:
        line.run("true")
    assert told.value.code == "STK703"


def test_an_agent_is_never_forwarded(line: Ssh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/tmp/none")
    assert line.run("echo agent=$SSH_AUTH_SOCK") == "agent=\n"


@pytest.mark.parametrize("way", ["_rsync_to", "_sftp_to", "_tar_to"])
def test_files_arrive_under_their_names(line: Ssh, tmp_path: Path, way: str) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(300_000))
    target = tmp_path / "there"
    target.mkdir()
    getattr(line, way)({"a b/c": source, "d": source}, str(target))
    assert [(target / name).read_bytes() for name in ("a b/c", "d")] == [source.read_bytes()] * 2


@pytest.mark.parametrize("has_rsync", [True, False])
def test_a_folder_comes_back(line: Ssh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_rsync: bool) -> None:
    monkeypatch.setattr(line, "_has_rsync", lambda: has_rsync)
    (tmp_path / "there" / "inner").mkdir(parents=True)
    (tmp_path / "there" / "inner" / "x").write_text("content")
    line.fetch(str(tmp_path / "there"), tmp_path / "here")
    assert (tmp_path / "here" / "inner" / "x").read_text() == "content"


def test_this_machine_is_spoken_to_in_the_same_way(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("content")
    LocalShell().send({"a/x": tmp_path / "x"}, str(tmp_path / "there"))
    assert LocalShell().run(f"cat {tmp_path}/there/a/x") == "content"


def test_a_kept_connection_s_socket_has_a_short_name(line: Ssh, monkeypatch: pytest.MonkeyPatch) -> None:
    """104 letters on a Mac, 17 of them ssh's own; its TMPDIR alone has 49."""
    monkeypatch.setenv("TMPDIR", "/var/folders/" + "x" * 40 + "/T")
    line.run("true")
    (path,) = [word for word in line._kept() if word.startswith("ControlPath=")]
    assert len(path.removeprefix("ControlPath=")) + 17 < 104


def test_a_socket_that_a_kill_left_behind_is_no_connection(line: Ssh) -> None:
    (path,) = [Path(word.removeprefix("ControlPath=")) for word in line._kept() if word.startswith("ControlPath=")]
    line.close()
    for _ in range(100):  # ssh removes it after it has answered
        if not path.exists():
            break
        time.sleep(0.05)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    assert path.exists()
    assert Ssh(line.host).run("echo yes") == "yes\n"


def test_a_folder_that_may_not_be_written_is_no_matter_of_the_line(line: Ssh, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "here").write_text("y")
    with pytest.raises(StokerError) as told:
        line._rsync_to({"a": tmp_path / "here"}, str(tmp_path / "file"))
    assert told.value.code == "STK702"


def test_a_tunnel_shows_a_port_of_the_box_on_loopback_only(line: Ssh) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as there:
        port = store_servers.free_port()
        forward = f"127.0.0.1:{port}:127.0.0.1:{there.server_port}"
        words = [*line.command("-N", "-L", forward, ExitOnForwardFailure="yes", ClearAllForwardings="no"), "127.0.0.1"]
        with subprocess.Popen(words) as tunnel:
            _until_open(port)
            listening = subprocess.run(["ss", "-ltnp"], capture_output=True, text=True, check=True).stdout
            tunnel.terminate()
    assert [row.split()[3] for row in listening.splitlines() if f":{port} " in row] == [f"127.0.0.1:{port}"]


def _until_open(port: int) -> None:
    for _ in range(100):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise AssertionError(port)
