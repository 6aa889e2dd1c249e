"""One writer per run: a live one keeps others away, a dead one does not, a writer that slept notices."""

import itertools
import subprocess
import threading
import time
from pathlib import Path

import pytest
from store_case import commit, lease_of, make_run, open_folder

from stoker.errors import StokerError
from stoker.store import copies, lease, push
from stoker.store.lease import Renewing
from stoker.store.store_protocol import Patient

SHORT = 0.6


@pytest.fixture
def store(tmp_path: Path) -> Patient:
    return open_folder(tmp_path / "store")


def test_the_first_has_it_and_may_take_it_again(store: Patient) -> None:
    mine = lease_of(store, token="a")
    mine.acquire()
    mine.acquire()
    mine.require()
    assert mine.renew()


def test_another_machine_that_lives_is_respected(store: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "_LOOK_SECONDS", 0.05)
    first, second = lease_of(store, token="a", seconds=SHORT), lease_of(store, token="b", seconds=SHORT)
    first.acquire()
    told: list[float] = []
    with Renewing(first, SHORT):
        with pytest.raises(StokerError) as caught:
            second.acquire(told.append)
        first.require()
    assert caught.value.code == "STK656"
    assert told == [SHORT]


def test_a_machine_that_died_is_replaced_after_its_time(store: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "_LOOK_SECONDS", 0.05)
    first, second = lease_of(store, token="a", seconds=SHORT), lease_of(store, token="b", seconds=SHORT)
    first.acquire()
    started = time.monotonic()
    second.acquire()
    assert time.monotonic() - started >= SHORT * 0.9
    second.require()
    with pytest.raises(StokerError):
        first.require()
    assert not first.renew()


def test_a_holder_whose_clock_is_wrong_is_respected(store: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "_LOOK_SECONDS", 0.05)
    over = threading.Event()

    def beat() -> None:
        for number in itertools.count():
            old = f'{{"token": "a", "at": "2020-01-01T00:00:00+00:00", "beat": "{number}"}}'
            store.write("tiny/lease.json", old.encode())
            if over.wait(SHORT / 4):
                return

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        while "tiny/lease.json" not in store.names("tiny"):
            time.sleep(0.01)
        with pytest.raises(StokerError) as caught:
            lease_of(store, token="b", seconds=SHORT).acquire()
    finally:
        over.set()
        thread.join()
    assert caught.value.code == "STK656"


def test_a_lease_that_cannot_be_read_does_not_lock_the_run_for_ever(
    store: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_LOOK_SECONDS", 0.05)
    store.write("tiny/lease.json", b"\x00 not json")
    lease_of(store, token="b", seconds=SHORT).acquire()


def test_a_writer_that_lost_its_lease_writes_no_record(tmp_path: Path, store: Patient) -> None:
    run_dir = make_run(tmp_path / "box", tmp_path / "store")
    slept = lease_of(store, token="a")
    slept.acquire()
    store.write("tiny/lease.json", b'{"token": "b", "at": "2099-01-01T00:00:00+00:00", "beat": "1"}')
    with pytest.raises(StokerError) as caught:
        push.copy_checkpoint(store, run_dir, commit(run_dir, 10), slept)
    assert caught.value.code == "STK656"
    assert copies.committed(store, "tiny", store.names("tiny")) == []


def test_of_many_at_once_one_gets_it(store: Patient) -> None:
    created: list[str] = []

    def take(token: str) -> None:
        if store.inner.create("tiny/lease.json", token.encode()):
            created.append(token)

    threads = [threading.Thread(target=take, args=(str(number),)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(created) == 1
    assert store.read("tiny/lease.json").decode() == created[0]


def test_two_programs_of_one_run_directory_renew_the_same_lease(store: Patient) -> None:
    keeper, copier = lease_of(store, token="a"), lease_of(store, token="a")
    keeper.acquire()
    copier.acquire()
    assert keeper.renew()
    assert copier.renew()


def test_a_sibling_that_renews_at_the_same_moment_is_no_other_machine(
    store: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_LOOK_SECONDS", 0.05)
    keeper, copier = (lease_of(store, token="a", seconds=SHORT) for _ in range(2))
    keeper.acquire()
    real = store.inner.swap

    def between(name: str, before: bytes, after: bytes) -> bool:
        store.write(name, keeper._content())
        return real(name, before, after)

    monkeypatch.setattr(store.inner, "swap", between)
    with Renewing(keeper, SHORT / 8):
        copier.acquire()
    copier.require()


def test_a_sibling_that_took_over_meanwhile_is_no_other_machine(
    store: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_LOOK_SECONDS", 0.05)
    lease_of(store, token="dead").acquire()
    keeper, copier = (lease_of(store, token="a", seconds=SHORT) for _ in range(2))

    def taken(_: float) -> None:
        store.write("tiny/lease.json", keeper._content())

    copier.acquire(taken)
    copier.require()


def test_a_lease_that_was_given_back_is_not_renewed_again(store: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    own = lease_of(store, token="a", seconds=SHORT)
    own.acquire()
    renewing, real = threading.Event(), own.renew

    def slow() -> bool:
        renewing.set()
        time.sleep(SHORT / 8)
        return real()

    monkeypatch.setattr(own, "renew", slow)
    with Renewing(own, SHORT, gives_back=lambda: True):
        assert renewing.wait(10)
    until = time.monotonic() + 10
    while store.names("tiny") and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(SHORT)
    assert store.names("tiny") == {}


def test_a_lease_that_one_program_gave_back_is_not_taken_by_the_renewal_of_another(store: Patient) -> None:
    keeper, command = lease_of(store, token="a"), lease_of(store, token="a")
    keeper.acquire()
    keeper.release()
    assert command.renew()
    assert store.names("tiny") == {}


def test_a_lease_that_is_given_back_in_the_middle_of_a_renewal_stays_so(
    store: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, command = lease_of(store, token="a"), lease_of(store, token="a")
    keeper.acquire()
    real = store.inner.swap

    def late(name: str, before: bytes, after: bytes) -> bool:
        keeper.release()
        return real(name, before, after)

    monkeypatch.setattr(store.inner, "swap", late)
    assert command.renew()
    assert store.names("tiny") == {}


def test_release_gives_back_only_what_is_ours(store: Patient) -> None:
    lease_of(store, token="a").acquire()
    lease_of(store, token="b").release()
    lease_of(store, token="a").require()
    lease_of(store, token="a").release()
    lease_of(store, token="b").acquire()


def test_a_run_directory_is_the_same_to_all_of_its_programs(tmp_path: Path) -> None:
    path = tmp_path / "run" / ".store" / "token"
    assert lease.own_token(path) == lease.own_token(path)
    (tmp_path / "link").symlink_to(tmp_path / "run")
    assert lease.own_token(tmp_path / "link" / ".store" / "token") == lease.own_token(path)


def test_a_renamed_run_directory_is_the_same(tmp_path: Path) -> None:
    own = lease.own_token(tmp_path / "run" / ".store" / "token")
    (tmp_path / "run").rename(tmp_path / "renamed")
    assert lease.own_token(tmp_path / "renamed" / ".store" / "token") == own


def test_a_copied_run_directory_is_not_the_holder(
    tmp_path: Path, store: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_LOOK_SECONDS", 0.05)
    own = lease.own_token(tmp_path / "run" / ".store" / "token")
    subprocess.run(["cp", "-a", str(tmp_path / "run"), str(tmp_path / "copy")], check=True)
    copied = lease.own_token(tmp_path / "copy" / ".store" / "token")
    first = lease_of(store, token=own, seconds=SHORT)
    first.acquire()
    with Renewing(first, SHORT), pytest.raises(StokerError) as caught:
        lease_of(store, token=copied, seconds=SHORT).acquire()
    assert caught.value.code == "STK656"


def test_a_copy_that_took_the_originals_place_is_not_the_holder(tmp_path: Path) -> None:
    own = lease.own_token(tmp_path / "run" / ".store" / "token")
    subprocess.run(["cp", "-a", str(tmp_path / "run"), str(tmp_path / "copy")], check=True)
    (tmp_path / "run").rename(tmp_path / "away")
    (tmp_path / "copy").rename(tmp_path / "run")
    assert lease.own_token(tmp_path / "run" / ".store" / "token") != own


@pytest.mark.parametrize("differs", ["name", "machine-id", "boot"])
def test_a_cloned_disk_in_another_machine_is_not_the_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, differs: str
) -> None:
    own = lease.own_token(tmp_path / "token")
    other = tmp_path / "other"
    other.write_text("another")
    if differs == "name":
        monkeypatch.setattr(lease.socket, "gethostname", lambda: "clone")
    else:
        kept = lease._MACHINE_FILES
        monkeypatch.setattr(lease, "_MACHINE_FILES", (other, kept[1]) if differs == "machine-id" else (kept[0], other))
    assert lease.own_token(tmp_path / "token") != own
