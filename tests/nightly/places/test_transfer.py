"""Files to a box over a slow line: as fast as bare rsync, and after a cut only what is missing is sent."""

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import boxes
import pytest

from stoker.errors import StokerError
from stoker.hosts import known, shell
from stoker.hosts.shell import SILENT, Ssh
from stoker.rundir import files

MIB = 1 << 20
SHARDS = 3
RATE, RATE_BYTES = "40mbit", 5_000_000


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[boxes.Box]:
    with boxes.autodl(tmp_path_factory.mktemp("box"), python="") as one:
        yield one


@pytest.fixture
def ssh(box: boxes.Box, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Ssh]:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(short := Path(f"/tmp/stoker-test-{os.getpid()}")))
    short.mkdir()
    host = known.Host(name="box", host=box.address, user="root", port=box.port, key=str(box.key))
    known.pin("box", [(box.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().strip()])
    opened = Ssh(host)
    yield opened
    opened.close()
    shutil.rmtree(short)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Prepared data does not compress."""
    folder = tmp_path_factory.mktemp("data")
    names = [f"train/shard-{number:05}/tokens.bin" for number in range(SHARDS)]
    for name in names:
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(os.urandom(4 * MIB))
    return {name: folder / name for name in names}


def arrived(box: boxes.Box, folder: str, sent: dict[str, Path]) -> bool:
    there = box.root / folder.lstrip("/")
    return all((there / name).exists() and files.sha256(there / name) == files.sha256(sent[name]) for name in sent)


def bare_rsync(ssh: Ssh, source: Path, target: str) -> float:
    began = time.monotonic()
    words = ["rsync", "-a", "--rsh", " ".join(ssh.command()), f"{source}/", f"{ssh.host.host}:{target}/"]
    subprocess.run(words, check=True)
    return time.monotonic() - began


def test_data_arrives_about_as_fast_as_by_bare_rsync(box: boxes.Box, ssh: Ssh, shards: dict[str, Path]) -> None:
    """The exact figure is measured by `benchmarks/launch.py`, on a quiet machine."""
    box.throttle(RATE)
    try:
        bare = bare_rsync(ssh, next(iter(shards.values())).parents[2], "/root/autodl-tmp/bare")
        before = box.moved[0]
        began = time.monotonic()
        ssh.send(shards, "/root/autodl-tmp/ours")
        ours = time.monotonic() - began
        sent = box.moved[0] - before
    finally:
        box.throttle("")
    assert arrived(box, "/root/autodl-tmp/ours", shards)
    size = sum(path.stat().st_size for path in shards.values())
    assert bare > 0.8 * size / RATE_BYTES, "the line was not slow"
    assert sent < 1.1 * size
    assert bare / ours > 0.7


def test_what_is_there_is_not_sent_again(box: boxes.Box, ssh: Ssh, shards: dict[str, Path]) -> None:
    ssh.send(shards, "/root/autodl-tmp/again")
    before = box.moved[0]
    ssh.send(shards, "/root/autodl-tmp/again")
    assert box.moved[0] - before < 64 << 10


@pytest.mark.parametrize("how", ["dead", "closed"])
def test_after_a_cut_only_the_rest_is_sent(
    how: str, box: boxes.Box, ssh: Ssh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "_ALIVE_SECONDS", 1)
    large = tmp_path / "tokens.bin"
    large.write_bytes(os.urandom(8 * MIB))
    sent, target = {"train/tokens.bin": large}, f"/root/autodl-tmp/{how}"
    ssh.run("true")
    before = box.moved[0]
    box.throttle(RATE)
    problems: list[StokerError] = []

    def sending() -> None:
        try:
            ssh.send(sent, target)
        except StokerError as error:
            problems.append(error)

    thread = threading.Thread(target=sending)
    thread.start()
    while box.moved[0] - before < 5 * MIB:
        time.sleep(0.02)
    if how == "dead":
        box.cut()
    else:
        box.run(["pkill", "-KILL", "-f", "sshd: root@"])
    thread.join(60)
    cut_at = box.moved[0] - before
    box.mend()
    assert [error.code in SILENT for error in problems] == [True]
    box.throttle("")
    ssh.close()
    ssh.send(sent, target)
    assert arrived(box, target, sent)
    again = box.moved[0] - before - cut_at
    assert again < 8 * MIB - 3 * MIB, f"{again} bytes after a cut at {cut_at}"
