"""A store in a folder: whole files or none, going on after a cut, and no folder made up for a missing mount."""

import contextlib
import hashlib
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from store_case import HASTY, make_run, open_folder, shown

from stoker.errors import StokerError
from stoker.rundir import files
from stoker.store import directory, opening, store_protocol
from stoker.store.directory import DirectoryStore
from stoker.store.store_protocol import Bandwidth, Fault, Patience, Patient


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_folder_that_is_not_there_is_no_store_without_runs(tmp_path: Path) -> None:
    store = open_folder(tmp_path / "nosuch")
    with pytest.raises(StokerError, match=r"nosuch does not exist.*STK652"):
        store.names("")
    assert store.names("run") == {}, "a run that is not copied yet"


def test_an_upload_is_there_whole(tmp_path: Path) -> None:
    store, source = open_folder(tmp_path / "store"), tmp_path / "a"
    source.write_bytes(b"x" * 4321)
    store.upload(source, "run/a", digest(source.read_bytes()))
    assert store.names("run") == {"run/a": 4321}
    assert store.sha256("run/a", 4321) == digest(source.read_bytes())


def test_an_upload_goes_on_where_it_was_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, source = open_folder(tmp_path / "store"), tmp_path / "a"
    source.write_bytes(bytes(range(256)) * 40)
    real, moved = directory._copy_chunk, []

    def cut(*words: Any) -> int:
        if len(moved) == 3:
            moved.append(0)
            raise OSError(107, "Transport endpoint is not connected")
        moved.append(real(*words))
        return moved[-1]

    monkeypatch.setattr(directory, "_copy_chunk", cut)
    store.upload(source, "run/a", digest(source.read_bytes()))
    assert sum(moved) == source.stat().st_size
    assert store.read("run/a") == source.read_bytes()


def test_until_it_is_whole_an_upload_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, source = open_folder(tmp_path / "store"), tmp_path / "a"
    source.write_bytes(b"x" * 5000)

    def broken(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(directory, "_copy_chunk", broken)
    with pytest.raises(Fault):
        store.upload(source, "run/a", digest(source.read_bytes()))
    assert shown(tmp_path / "store") == []
    assert store.names("run") == {}


def test_a_part_with_wrong_bytes_is_not_accepted(tmp_path: Path) -> None:
    store, source = open_folder(tmp_path / "store"), tmp_path / "a"
    source.write_bytes(b"x" * 5000)
    part = tmp_path / "store" / "run" / f".a.{digest(source.read_bytes())[:16]}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"y" * 2000)
    store.upload(source, "run/a", digest(source.read_bytes()))  # found out, thrown away, sent again
    assert store.read("run/a") == source.read_bytes()
    part.write_bytes(b"y" * 2000)
    once = DirectoryStore(tmp_path / "store", HASTY, Bandwidth())
    with pytest.raises(Fault, match="reads back otherwise"):
        once.upload(source, "run/b", "0" * 64)
    assert "run/b" not in store.names("run")


def test_a_download_goes_on_where_it_ended(tmp_path: Path) -> None:
    store = open_folder(tmp_path / "store")
    store.write("run/a", b"0123456789" * 300)
    target = tmp_path / "a"
    target.write_bytes(b"0123456789" * 100)
    store.download("run/a", target, 3000)
    assert target.read_bytes() == b"0123456789" * 300


def test_a_file_is_created_once(tmp_path: Path) -> None:
    inner = DirectoryStore(tmp_path / "store", HASTY, Bandwidth())
    assert inner.create("run/lease", b"one")
    assert not inner.create("run/lease", b"two")
    assert inner.read("run/lease") == b"one"


def test_a_file_is_swapped_only_if_it_is_the_same(tmp_path: Path) -> None:
    store = open_folder(tmp_path / "store")
    store.write("run/lease", b"one")
    assert not store.swap("run/lease", b"other", b"two")
    assert store.swap("run/lease", b"one", b"two")
    assert store.read("run/lease") == b"two"


def test_a_missing_mount_is_an_error_and_no_new_folder(tmp_path: Path) -> None:
    with pytest.raises(Fault, match="does not exist; create it"):
        open_folder(tmp_path / "drive" / "MyDrive" / "copies")
    assert not (tmp_path / "drive").exists()


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="no second disk")  # a mount, nothing is put there
def test_a_store_that_is_the_mount_itself_is_on_its_own_disk(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "box", Path("/dev/shm"))
    assert not opening.same_disk(run_dir.run(), run_dir)
    store = DirectoryStore(Path("/dev/shm"), HASTY, Bandwidth())
    assert store._disk == Path("/dev/shm").stat().st_dev


def test_a_mount_that_went_away_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_folder(tmp_path / "store")
    monkeypatch.setattr(store.inner, "_disk", -1)
    with pytest.raises(Fault, match="no longer mounted"):
        store.write("run/a", b"1")
    assert not (tmp_path / "store").exists()


def test_a_mount_that_hangs_is_given_up(tmp_path: Path) -> None:
    patience = Patience(stall_seconds=0.2, least_bytes_per_second=1e9, tries=1)
    store = Patient(DirectoryStore(tmp_path / "store", patience, Bandwidth()), patience)
    hanging = threading.Event()
    started = time.monotonic()
    with pytest.raises(Fault, match="no response"):
        store.inner._do(hanging.wait)  # type: ignore[attr-defined]
    assert time.monotonic() - started < 5
    hanging.set()


def test_a_mount_on_which_even_an_open_hangs_is_given_up(tmp_path: Path) -> None:
    """A pipe that nobody writes to behaves so."""
    patience = Patience(stall_seconds=0.2, least_bytes_per_second=1e9, tries=1)
    store = DirectoryStore(tmp_path / "store", patience, Bandwidth())
    (tmp_path / "store").mkdir()
    os.mkfifo(tmp_path / "store" / "hangs")
    said: list[BaseException] = []

    def download() -> None:
        try:
            store.download("hangs", tmp_path / "target", 10)
        except Fault as fault:
            said.append(fault)

    thread = threading.Thread(target=download, daemon=True)
    thread.start()
    thread.join(10)
    with contextlib.suppress(OSError):
        os.close(os.open(tmp_path / "store" / "hangs", os.O_WRONLY | os.O_NONBLOCK))
    assert [str(one) for one in said] == ["no response within 0 s"]


def test_an_upload_is_synced_and_then_read_back_from_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, source = open_folder(tmp_path / "store"), tmp_path / "a"
    source.write_bytes(b"x" * 4321)
    done: list[str] = []
    sync, sha256 = files.sync_file, files.sha256

    def synced(path: Path) -> None:
        done.append("sync")
        sync(path)

    def read(path: Path, *, from_disk: bool = False) -> str:
        done.append("read from disk" if from_disk else "read")
        return sha256(path, from_disk=from_disk)

    monkeypatch.setattr(files, "sync_file", synced)
    monkeypatch.setattr(files, "sha256", read)
    store.upload(source, "run/a", digest(source.read_bytes()))
    assert done == ["sync", "read from disk"]


def test_sweeping_removes_parts_and_empty_folders_but_not_what_is_current(tmp_path: Path) -> None:
    store = open_folder(tmp_path / "store")
    for name in ("run/old/.a.part", "run/now/.a.part"):
        path = tmp_path / "store" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"1")
    store.sweep("run", "run/now")
    assert not (tmp_path / "store/run/old").exists()
    assert (tmp_path / "store/run/now/.a.part").exists()


def test_tries_are_bounded_and_start_anew_after_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(store_protocol.time, "sleep", pauses.append)
    patient = Patient(None, Patience(tries=3, first_pause_seconds=1, longest_pause_seconds=60))  # type: ignore[arg-type]
    gains = iter([0, 0, 5, 0, 0])

    def attempt() -> None:
        raise Fault("cut", gained_bytes=next(gains))

    with pytest.raises(Fault):
        patient._persist(attempt)
    assert pauses == [1, 2, 1, 2]


def test_bandwidth_is_capped_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(store_protocol.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(store_protocol.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    capped = Bandwidth(1000)
    for _ in range(11):
        capped.spend(500)
    assert clock[0] == pytest.approx(5.0)
