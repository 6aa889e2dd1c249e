"""Every kind of store against a real server on this machine: one contract, and what only one of them can get wrong."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3.session
import pytest
import store_servers
from botocore.exceptions import ClientError
from network import DOWN, UP, Cut, proxied
from store_case import commit, lease_of, make_run
from store_servers import BUCKET, Server

from stoker.errors import StokerError
from stoker.store import copies, opening, push, store_protocol
from stoker.store.s3 import S3Store
from stoker.store.store_protocol import Fault, Patience, Patient

PART = 64 << 10
QUICK = Patience(stall_seconds=60, tries=3, first_pause_seconds=0.05, part_bytes=PART)


@dataclass(frozen=True)
class Place:
    """A store that can be opened again and again, as from several machines."""

    address: str
    open: Callable[[], Patient]


@pytest.fixture(scope="module")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if not store_servers.has_rclone():
        pytest.skip("no rclone")
    with (
        store_servers.rclone(tmp_path_factory.mktemp("rclone") / "data") as server,
        store_servers.reached(server.settings),
    ):
        yield server


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if not store_servers.has_moto():
        pytest.skip("no moto")
    with store_servers.moto(tmp_path_factory.mktemp("moto")) as server, store_servers.reached(server.settings):
        boto3.session.Session().client("s3", endpoint_url=server.settings["AWS_ENDPOINT_URL"]).create_bucket(
            Bucket=BUCKET
        )
        yield server


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if not store_servers.has_sshd():
        pytest.skip("no sshd")
    with store_servers.sshd(tmp_path_factory.mktemp("sshd")) as server, store_servers.reached(server.settings):
        yield server


@pytest.fixture(params=["directory", "rclone", "moto", "sshd"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    kind = request.param
    server = request.getfixturevalue(kind) if kind != "directory" else None
    (tmp_path / "a b").mkdir()
    address = {
        "directory": str(tmp_path / "a b" / "copies"),
        "sshd": f"ssh://127.0.0.1:{server.port if server else 0}{tmp_path}/a%20b/copies",
    }.get(kind, f"s3://{BUCKET}/{tmp_path.name}")
    settings = server.settings if server else {}

    def opened() -> Patient:
        with store_servers.reached(settings):
            return opening.open_store(address, tmp_path, patience=QUICK)

    return Place(address, opened)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_files_go_there_and_come_back(place: Place, tmp_path: Path) -> None:
    store, source = place.open(), tmp_path / "source"
    source.write_bytes(os.urandom(5 * PART + 17))
    sha256, size = digest(source.read_bytes()), source.stat().st_size
    assert store.names("run") == {}
    store.upload(source, "run/deep/er/big", sha256)
    store.write("run/small", b"one")
    store.write("run/small", b"two")
    assert store.names("run") == {"run/deep/er/big": size, "run/small": 3}
    assert store.read("run/small") == b"two"
    assert store.sha256("run/deep/er/big", size) == sha256
    target = tmp_path / "target"
    target.write_bytes(source.read_bytes()[: PART + 5])
    store.download("run/deep/er/big", target, size)
    assert target.read_bytes() == source.read_bytes()
    with pytest.raises(FileNotFoundError):
        store.read("run/none")
    store.remove(["run/small", "run/none", "run/deep/er/big"])
    store.sweep("run", "run/none")
    assert store.names("run") == {}


def test_an_empty_file_is_a_file(place: Place, tmp_path: Path) -> None:
    store, source = place.open(), tmp_path / "empty"
    source.write_bytes(b"")
    store.upload(source, "run/empty", digest(b""))
    assert store.names("run") == {"run/empty": 0}


def test_of_several_that_create_one_file_one_does(place: Place) -> None:
    stores = [place.open() for _ in range(4)]
    won = []

    def create(number: int) -> None:
        if stores[number].create("run/lease.json", f"machine {number}".encode()):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = stores[0].read("run/lease.json").decode()
    if "127.0.0.1" not in os.environ.get("AWS_ENDPOINT_URL", "") or not place.address.startswith("s3://"):
        assert len(won) == 1
    # A server that ignores the condition may let two pass; what stands there then decides, before every record.
    assert held in [f"machine {number}" for number in won]


def test_a_second_machine_stays_away_from_a_run_that_is_written(place: Place, tmp_path: Path) -> None:
    here, there = make_run(tmp_path / "here", tmp_path), make_run(tmp_path / "there", tmp_path)
    first, second = place.open(), place.open()
    own, other = lease_of(first, token="here", seconds=60), lease_of(second, token="there", seconds=60)
    own.acquire()
    push.copy_checkpoint(first, here, commit(here, 10), own)
    with pytest.raises(StokerError) as caught:
        push.copy_checkpoint(second, there, commit(there, 10, b"other"), other)
    assert caught.value.code == "STK656"
    (copy,) = copies.committed(second, "tiny", second.names("tiny"))
    assert copy.commit == commit(here, 10).commit or copy.commit.step == 10
    assert own.renew()
    assert not other.renew()


def test_an_upload_goes_on_in_another_process(place: Place, tmp_path: Path) -> None:
    """The first store is forgotten with its connections, as after a crash; the second finds what it left."""
    source = tmp_path / "source"
    source.write_bytes(os.urandom(6 * PART))
    store = place.open()
    sent = _cut_after(store, 3)
    with pytest.raises(Fault):
        store.inner.upload(source, "run/big", digest(source.read_bytes()))
    assert len(sent) == 3
    assert "run/big" not in store.names("run")
    again = place.open()
    sent = _cut_after(again, 99)
    again.upload(source, "run/big", digest(source.read_bytes()))
    assert len(sent) == 3
    assert again.sha256("run/big", 6 * PART) == digest(source.read_bytes())


def test_a_file_that_arrived_is_not_sent_again(place: Place, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(3 * PART))
    place.open().upload(source, "run/big", digest(source.read_bytes()))
    again = place.open()
    sent = _cut_after(again, 0)
    again.upload(source, "run/big", digest(source.read_bytes()))
    assert sent == []


def test_what_is_too_large_is_not_read_into_memory(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    store = place.open()
    store.write("run/lease.json", b" " * 3000)
    monkeypatch.setattr(store_protocol, "LARGEST_SMALL_BYTES", 2000)
    with pytest.raises(StokerError) as caught:
        store.read("run/lease.json")
    assert caught.value.code == "STK658"


def _cut_after(store: Patient, parts: int) -> list[int]:
    """Let so many parts of a file through; those that went."""
    sent: list[int] = []
    inner: Any = store.inner

    def counted(size: int) -> None:
        if len(sent) == parts:
            raise Fault("cut")
        sent.append(size)

    if isinstance(inner, S3Store):
        plain = inner._call

        def call(method: str, size: int = 0, /, **options: Any) -> Any:
            if method == "upload_part":
                counted(size)
            return plain(method, size, **options)

        inner._call = call  # type: ignore[method-assign]
    else:
        inner._bandwidth.spend = counted
    return sent


# ---- S3


@pytest.mark.parametrize("kind", ["rclone", "moto"])
def test_an_upload_whose_last_answer_was_lost_is_not_sent_again(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with store_servers.reached(request.getfixturevalue(kind).settings):
        store = opening.open_store(f"s3://{BUCKET}/{tmp_path.name}", tmp_path, patience=QUICK)
    source = tmp_path / "source"
    source.write_bytes(os.urandom(3 * PART))
    sent = _cut_after(store, 99)
    inner: Any = store.inner
    call, lost = inner._call, []

    def losing(method: str, size: int = 0, /, **options: Any) -> Any:
        answer = call(method, size, **options)
        if method == "complete_multipart_upload" and not lost:
            lost.append(method)
            raise Fault("no answer")
        return answer

    inner._call = losing
    store.upload(source, "run/big", digest(source.read_bytes()))
    assert lost
    assert len(sent) == 3


def test_tags_that_are_no_digests_are_the_servers_own(moto: Server, tmp_path: Path) -> None:
    """As where a bucket encrypts what it is given; moto does not, so its tags are exchanged on the way."""
    with store_servers.reached(moto.settings):
        store = opening.open_store(f"s3://{BUCKET}/{tmp_path.name}", tmp_path, patience=QUICK)
    source = tmp_path / "source"
    source.write_bytes(os.urandom(3 * PART + 5))
    inner: Any = store.inner
    call = plain = inner._call
    real: dict[str, str] = {}

    def foreign(tag: str) -> str:
        shown = f'"{hashlib.sha256(tag.encode()).hexdigest()[:32].upper()}"'
        real[shown] = tag
        return shown

    def encrypting(method: str, size: int = 0, /, **options: Any) -> Any:
        for part in options.get("MultipartUpload", {}).get("Parts", ()):
            part["ETag"] = real[part["ETag"]]
        answer = call(method, size, **options)
        for one in (answer, *answer.get("Parts", ())):
            if "ETag" in one:
                one["ETag"] = foreign(one["ETag"])
        return answer

    _cut_after(store, 2)
    call = inner._call
    inner._call = encrypting
    with pytest.raises(Fault):
        inner.upload(source, "run/big", digest(source.read_bytes()))
    call = plain
    store.upload(source, "run/big", digest(source.read_bytes()))
    assert store.sha256("run/big", source.stat().st_size) == digest(source.read_bytes())


def test_a_server_that_offers_no_conditions_is_written_to_all_the_same(moto: Server, tmp_path: Path) -> None:
    with store_servers.reached(moto.settings):
        store = opening.open_store(f"s3://{BUCKET}/{tmp_path.name}", tmp_path, patience=QUICK)
    inner: Any = store.inner
    real = inner._client.put_object

    def without(**options: Any) -> Any:
        if options.keys() & {"IfNoneMatch", "IfMatch"}:
            raise ClientError({"Error": {"Code": "NotImplemented"}}, "PutObject")
        return real(**options)

    inner._client.put_object = without
    assert store.create("run/lease.json", b"one")
    assert not store.create("run/lease.json", b"two")
    assert store.swap("run/lease.json", b"one", b"three")
    assert store.read("run/lease.json") == b"three"


def test_a_wrong_key_is_refused_and_not_repeated(rclone: Server, tmp_path: Path) -> None:
    with store_servers.reached({**rclone.settings, "AWS_SECRET_ACCESS_KEY": "canary-wrong-secret"}):
        store = opening.open_store(f"s3://{BUCKET}/x", tmp_path, patience=QUICK)
        with pytest.raises(StokerError) as caught:
            store.names("run")
    assert caught.value.code == "STK653"
    assert "canary" not in str(caught.value)


def test_no_key_at_all_is_refused(rclone: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", rclone.settings["AWS_ENDPOINT_URL"])
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StokerError) as caught:
        opening.open_store(f"s3://{BUCKET}/x", tmp_path, patience=QUICK).names("run")
    assert caught.value.code == "STK653"


def test_a_bucket_that_is_not_there_is_an_error_at_once(moto: Server, tmp_path: Path) -> None:
    with store_servers.reached(moto.settings), pytest.raises(StokerError) as caught:
        opening.open_store("s3://no-such-bucket/x", tmp_path, patience=QUICK).names("run")
    assert caught.value.code == "STK652"


def test_a_server_with_conditions_lets_one_of_many_create(moto: Server, tmp_path: Path) -> None:
    with store_servers.reached(moto.settings):
        store = opening.open_store(f"s3://{BUCKET}/{tmp_path.name}", tmp_path, patience=QUICK)
    inner = store.inner
    assert inner._put_if("run/lease.json", b"one", IfNoneMatch="*")  # type: ignore[attr-defined]
    assert not inner._put_if("run/lease.json", b"two", IfNoneMatch="*")  # type: ignore[attr-defined]
    assert not inner._put_if("run/lease.json", b"two", IfMatch='"0"')  # type: ignore[attr-defined]
    assert store.read("run/lease.json") == b"one"


def test_unfinished_uploads_are_given_up(moto: Server, tmp_path: Path) -> None:
    with store_servers.reached(moto.settings):
        store = opening.open_store(f"s3://{BUCKET}/{tmp_path.name}", tmp_path, patience=QUICK)
    source = tmp_path / "source"
    source.write_bytes(os.urandom(4 * PART))
    for name in ("run/checkpoints/old/big", "run/checkpoints/now/big"):
        _cut_after(store, 2)
        with pytest.raises(Fault):
            store.inner.upload(source, name, digest(source.read_bytes()))
    store.sweep("run/checkpoints", "run/checkpoints/now")
    left = store.inner._unfinished(f"{tmp_path.name}/run/")  # type: ignore[attr-defined]
    assert [one["Key"] for one in left] == [f"{tmp_path.name}/run/checkpoints/now/big"]


# ---- SSH


def test_an_unknown_host_is_refused(sshd: Server, tmp_path: Path) -> None:
    config = tmp_path / "config"
    known = Path(sshd.settings["STOKER_SSH_CONFIG"]).read_text(encoding="utf-8")
    config.write_text(known.replace("known_hosts\n", "unknown\n"), encoding="utf-8")
    with store_servers.reached({"STOKER_SSH_CONFIG": str(config)}), pytest.raises(StokerError) as caught:
        opening.open_store(f"ssh://127.0.0.1:{sshd.port}{tmp_path}/x", tmp_path, patience=QUICK).names("run")
    assert caught.value.code == "STK653"


def test_a_host_whose_key_changed_is_refused(sshd: Server, tmp_path: Path) -> None:
    folder = Path(sshd.settings["STOKER_SSH_CONFIG"]).parent
    other = (folder / "user_key.pub").read_text(encoding="utf-8")
    (tmp_path / "hosts").write_text(f"stoker-test {other}", encoding="utf-8")
    known = (folder / "ssh_config").read_text(encoding="utf-8")
    config = tmp_path / "config"
    config.write_text(known.replace(str(folder / "known_hosts"), str(tmp_path / "hosts")), encoding="utf-8")
    with store_servers.reached({"STOKER_SSH_CONFIG": str(config)}), pytest.raises(StokerError) as caught:
        opening.open_store(f"ssh://127.0.0.1:{sshd.port}{tmp_path}/x", tmp_path, patience=QUICK).names("run")
    assert caught.value.code == "STK653"


def test_without_sha256sum_there_files_are_read_back(sshd: Server, tmp_path: Path) -> None:
    with store_servers.reached(sshd.settings):
        store = opening.open_store(f"ssh://127.0.0.1:{sshd.port}{tmp_path}/x", tmp_path, patience=QUICK)
        source = tmp_path / "source"
        source.write_bytes(os.urandom(2 * PART))
        store.inner._digest_there = lambda path, size: ""  # type: ignore[attr-defined]
        store.upload(source, "run/a", digest(source.read_bytes()))
        with pytest.raises(Fault, match="reads back otherwise"):
            store.inner.upload(source, "run/b", "0" * 64)
    assert store.names("run") == {"run/a": 2 * PART}


def test_a_folder_that_is_not_mounted_there_is_not_made(sshd: Server, tmp_path: Path) -> None:
    with store_servers.reached(sshd.settings):
        store = opening.open_store(f"ssh://127.0.0.1:{sshd.port}{tmp_path}/disk/copies", tmp_path, patience=QUICK)
        with pytest.raises(Fault):
            store.write("run/a", b"1")
    assert not (tmp_path / "disk").exists()


def test_nothing_listens_and_it_is_said_soon(tmp_path: Path) -> None:
    patience = Patience(stall_seconds=5, tries=2, first_pause_seconds=0.05)
    port = store_servers.free_port()
    started = time.monotonic()
    with pytest.raises(Fault, match="refused"):
        opening.open_store(f"ssh://127.0.0.1:{port}{tmp_path}/x", tmp_path, patience=patience).names("run")
    assert time.monotonic() - started < 30


# ---- whole programs


def test_a_push_that_is_killed_goes_on_when_it_is_called_again(sshd: Server, tmp_path: Path) -> None:
    with proxied(lambda _: sshd.port) as proxy:
        address = f"ssh://127.0.0.1:{proxy.port}{tmp_path}/copies"
        run_dir = make_run(tmp_path / "box", Path("store"), **{"store: store": f"store: '{address}'"})
        one = commit(run_dir, 10, os.urandom(24 << 20))
        environment = {**os.environ, **sshd.settings, "STOKER_LANG": "en"}
        command = [sys.executable, "-m", "stoker", "push", str(run_dir.path)]
        proxy.arm([Cut("stall", UP, 20 << 20)])
        killed = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.PIPE)
        until = time.monotonic() + 120
        while not proxy.fired and time.monotonic() < until:
            time.sleep(0.05)
        assert proxy.fired
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate()
        proxy.heal()
        # The killed process' token is this run directory's own, so nothing has to expire.
        assert (tmp_path / "copies" / "tiny" / "lease.json").exists()
        before = proxy.moved[UP]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        total = one.commit.total_bytes
        assert proxy.moved[UP] - before < total - (16 << 20) + (9 << 20)
    with store_servers.reached(sshd.settings):
        store = opening.open_store(f"ssh://127.0.0.1:{sshd.port}{tmp_path}/copies", tmp_path, patience=QUICK)
        (copy,) = copies.committed(store, "tiny", store.names("tiny"))
    assert copy.commit == one.commit


def test_answers_that_never_come_are_given_up(rclone: Server, tmp_path: Path) -> None:
    hurried = Patience(stall_seconds=1, least_bytes_per_second=1e6, tries=1)
    with proxied(lambda _: rclone.port) as proxy:
        with store_servers.reached({**rclone.settings, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"}):
            store = opening.open_store(f"s3://{BUCKET}/{tmp_path.name}", tmp_path, patience=hurried)
            proxy.arm([Cut("stall", DOWN, 10)])
            started = time.monotonic()
            with pytest.raises(Fault):
                store.names("run")
        assert time.monotonic() - started < 15
