"""`stoker hosts` against real sshds: keys pinned and installed, what is found there said in words, switching off."""

import contextlib
import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boxes
import pytest
from laptop import Laptop, laptop
from rich.cells import cell_len


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Laptop]:
    with laptop(tmp_path) as one:
        yield one


def _config(own: Laptop, text: str) -> None:
    """The user's ssh config; none of this machine's keys is offered by accident."""
    path = own.folder / "ssh_config"
    path.write_text(text, encoding="utf-8")
    own.env["STOKER_SSH_CONFIG"] = str(path)


def test_a_box_like_autodls_is_added_recognised_and_switched_off(tmp_path: Path, own: Laptop) -> None:
    with boxes.autodl(tmp_path, cpus=1.0) as box:
        own.knows(box)
        host = json.loads(own.stoker("hosts", "check", "box", "--json").stdout)
        assert host["platform"] == "autodl"
        assert host["instance"] == "a1b2c3-d4e5f6"
        assert host["base"] == "/root/autodl-tmp/stoker"
        assert host["python"] == "/root/miniconda3/bin/python"
        assert host["facts"]["pythons"][0]["packages"]["torch"]
        assert host["facts"]["cpu_count"] == 1
        assert host["facts"]["memory_bytes"] == 8 << 30
        disks = {disk["path"]: disk["survives"] for disk in host["facts"]["disks"]}
        assert disks["/root/autodl-tmp"] == disks["/"] == "stop"
        assert disks["/root/autodl-fs"] == "release"

        for language in ("en", "zh"):
            said = own.stoker("hosts", "check", "box", env={"STOKER_LANG": language}).stdout
            assert max(cell_len(line) for line in said.splitlines()) <= 80
            assert "/root/autodl-tmp/stoker" in said
            assert "/bin/sh /usr/bin/shutdown" in said
        assert "AutoDL" in own.stoker("hosts", "list").stdout

        own.stoker("hosts", "off", "box", "--yes")
        assert not box.alive
        assert [words for _, words in box.calls] == ["shutdown"]


def test_another_machine_at_the_same_address_is_refused(tmp_path: Path, own: Laptop) -> None:
    with boxes.plain(tmp_path) as box:
        own.knows(box)
        own.stoker("hosts", "add", "box", f"ssh://root@{box.address}", "--yes", "--base", "/srv/ours")
        again = json.loads(own.stoker("hosts", "add", "box", f"ssh://{box.address}", "--json").stdout)
        assert again["base"] == "/srv/ours", "the same key at another address is the same machine; nobody is asked"
        before = again["fingerprint"]
        box.replace()
        looked = own.stoker("hosts", "check", "box", check=False)
        assert looked.returncode == 1
        assert "STK703" in looked.stderr
        added = own.stoker("hosts", "add", "box", f"ssh://root@{box.address}", "--yes", check=False)
        assert added.returncode == 1
        assert "STK729" in added.stderr
        own.stoker("hosts", "remove", "box")
        own.stoker("hosts", "add", "box", f"ssh -p {box.port} root@{box.address}", "--yes")
        assert json.loads(own.stoker("hosts", "list", "--json").stdout)[0]["fingerprint"] != before


def test_a_machine_whose_key_nobody_confirmed_gets_no_agent(tmp_path: Path, own: Laptop) -> None:
    """It lets everybody in, with no password at all, and looks at what came along."""
    seen = "/bin/sh -c 'echo agent=${SSH_AUTH_SOCK:-none} >> /tmp/seen'"
    open_to_all = {"PasswordAuthentication": "yes", "PermitEmptyPasswords": "yes", "ForceCommand": seen}
    _config(own, "ForwardAgent yes\n")
    socket = str(own.folder / "agent")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    try:
        with boxes.plain(tmp_path, python="", sshd=open_to_all) as box:
            shadow = box.root / "etc/shadow"
            shadow.write_text(
                "root::19000:0:99999:7:::\n" + shadow.read_text().partition("root:")[2].partition("\n")[2]
            )
            plain = ["ssh", "-F", own.env["STOKER_SSH_CONFIG"], "-o", "StrictHostKeyChecking=no"]
            plain += ["-o", "UserKnownHostsFile=/dev/null", f"root@{box.address}", "true"]
            subprocess.run(plain, env={**os.environ, "SSH_AUTH_SOCK": socket}, capture_output=True, check=True)
            assert "agent=/" in (box.root / "tmp/seen").read_text(), "the agent works, and this config forwards it"
            (box.root / "tmp/seen").unlink()
            words = ["hosts", "add", "box", f"ssh://root@{box.address}"]
            assert own.stoker(*words, env={"SSH_AUTH_SOCK": socket}, check=False).returncode == 1
            assert (box.root / "tmp/seen").read_text().split() == ["agent=none"]
    finally:
        agent.kill()
        agent.wait()


def test_without_a_yes_nothing_is_pinned(tmp_path: Path, own: Laptop) -> None:
    with boxes.plain(tmp_path) as box:
        asked = own.stoker("hosts", "add", "box", f"ssh://root@{box.address}", check=False)
        assert asked.returncode == 1
        assert "SHA256:" in asked.stderr
        assert not (Path(own.env["STOKER_HOME"]) / "known_hosts").exists()


def test_a_password_installs_a_key_once_and_stays_nowhere(tmp_path: Path, own: Laptop) -> None:
    ask = own.folder / "ask"
    ask.write_text(f"#!/bin/sh\necho {boxes.PASSWORD}\n", encoding="utf-8")
    ask.chmod(0o700)
    _config(own, f"IdentityFile {own.folder}/none\nIdentitiesOnly yes\n")
    with boxes.password_only(tmp_path) as box:
        address = f"ssh://root@{box.address}"
        nobody = own.stoker("hosts", "add", "box", address, "--yes", env={"SSH_ASKPASS": "/bin/false"}, check=False)
        assert nobody.returncode == 1
        assert "STK725" in nobody.stderr
        asking = {"SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
        own.stoker("hosts", "add", "box", address, "--yes", env=asking)
        own.stoker("hosts", "add", "box", address, "--yes", env={"SSH_ASKPASS": "/bin/false"})
        entered = box.run(["cat", "/root/.ssh/authorized_keys"]).stdout.split("\n")
        assert len([line for line in entered if line.startswith("ssh-ed25519")]) == 1
    home = Path(own.env["STOKER_HOME"])
    key = home / "id_ed25519"
    assert json.loads((home / "hosts/box.json").read_text())["key"] == str(key)
    assert key.stat().st_mode & 0o077 == 0
    assert not [path for path in home.rglob("*") if path.is_file() and boxes.PASSWORD in path.read_text()]


def _at_a_terminal(own: Laptop, words: list[str], answers: list[tuple[bytes, str]]) -> str:
    """`stoker WORDS` with a terminal of its own, on which each question gets its answer."""
    child, terminal = pty.fork()
    if child == 0:
        os.execve(sys.executable, [sys.executable, "-m", "stoker", *words], own.env)
    heard, said = b"", b""
    with contextlib.suppress(OSError):  # how a terminal says that nobody is at its other end
        while select.select([terminal], [], [], 60)[0] and (piece := os.read(terminal, 4096)):
            heard, said = heard + piece, said + piece
            if answers and answers[0][0] in heard:
                os.write(terminal, answers.pop(0)[1].encode() + b"\n")
                heard = b""
    os.close(terminal)
    assert os.waitpid(child, 0)[1] == 0, said.decode()
    return said.decode()


def test_the_password_is_asked_for_by_ssh_on_the_users_terminal(tmp_path: Path, own: Laptop) -> None:
    _config(own, f"IdentityFile {own.folder}/none\nIdentitiesOnly yes\n")
    with boxes.password_only(tmp_path) as box:
        answers = [(b"> ", "y"), (b"password:", "not it"), (b"password:", boxes.PASSWORD)]
        said = _at_a_terminal(own, ["hosts", "add", "box", f"ssh://root@{box.address}"], answers)
        assert answers == []
        assert boxes.PASSWORD not in said
        assert own.stoker("hosts", "check", "box").returncode == 0


def test_a_host_of_the_users_own_config_is_reached_through_its_jump(tmp_path: Path, own: Laptop) -> None:
    with boxes.plain(tmp_path) as box:
        known = own.folder / "known"
        known.write_text(f"{box.address} {(box.root / 'etc/ssh/ssh_host_ed25519_key.pub').read_text()}")
        every = f"IdentityFile {box.key}\nIdentitiesOnly yes\nUser root\n"
        jump = f"Host jump\nHostName {box.address}\nUserKnownHostsFile {known}\n"
        behind = "Host behind_it\nHostName 127.0.0.1\nProxyJump jump\n"
        _config(own, f"{jump}{behind}Host *\n{every}")
        own.stoker("hosts", "add", "lab", "ssh://behind_it", "--yes")
        host = json.loads(own.stoker("hosts", "check", "lab", "--json").stdout)
        assert host["facts"]["hostname"] == "plain"
        assert host["base"] == "/root/stoker"


def test_a_machine_that_does_not_answer_is_named(own: Laptop) -> None:
    gone = own.stoker("hosts", "add", "box", "ssh://root@127.0.0.1:1", "--yes", check=False)
    assert gone.returncode == 1
    assert "STK723" in gone.stderr
    assert "Connection refused" in gone.stderr
