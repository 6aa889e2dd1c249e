"""Leases instead of record locks: one holder at a time, a dead one is replaced, one that slept ends."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stoker.rundir import lease_file

SHORT = 0.6
FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_file, "SECONDS", SHORT)


def taken(path: Path) -> Any:
    return lease_file.held(path, 1, time.sleep, 0.01)


def _hold(path: Path, ready: Any, machine: str, child: Any) -> None:
    lease_file._machine = lambda: machine  # type: ignore[assignment]
    with taken(path) as alone:
        if child is not None and os.fork() == 0:
            child.set()
            time.sleep(60)
            os._exit(0)
        if alone:
            ready.set()
        time.sleep(60)


@contextmanager
def holder(path: Path, machine: str | None = None, child: Any = None) -> Iterator[int]:
    """A process that holds the lock, on this machine or on one that is called otherwise."""
    ready = FORK.Event()
    process = FORK.Process(target=_hold, args=(path, ready, machine or lease_file._machine(), child))
    process.start()
    assert ready.wait(30)
    assert process.pid is not None
    try:
        yield process.pid
    finally:
        process.kill()
        process.join()


def test_a_second_holder_is_refused_until_the_first_gives_it_back(tmp_path: Path) -> None:
    path = tmp_path / "train.lock"
    assert not lease_file.is_held(path)
    with taken(path) as first:
        assert first
        assert lease_file.is_held(path)
        with taken(path) as second:
            assert not second
    assert not lease_file.is_held(path)
    with taken(path) as third:
        assert third
    assert [one.name for one in tmp_path.iterdir()] == ["train.lock.lease-2"], "old numbers are removed"


def test_a_killed_holder_of_this_machine_is_replaced_at_once_though_its_forked_child_lives(tmp_path: Path) -> None:
    path, child = tmp_path / "train.lock", FORK.Event()
    with holder(path, child=child) as pid:
        assert child.wait(30)
        with taken(path) as alone:
            assert not alone
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        while lease_file.is_held(path):  # until the signal has arrived
            assert time.monotonic() - began < SHORT
        with taken(path) as alone:
            assert alone


def test_a_stopped_holder_of_this_machine_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "train.lock"
    with holder(path) as pid:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(2 * SHORT)
        assert lease_file.is_held(path)
        with taken(path) as alone:
            assert not alone


def test_a_holder_on_another_machine_is_respected_while_it_renews(tmp_path: Path) -> None:
    path = tmp_path / "train.lock"
    with holder(path, machine="other"):
        assert lease_file.is_held(path)
        with taken(path) as alone:
            assert not alone


def test_a_dead_holder_on_another_machine_is_replaced_after_its_time(tmp_path: Path) -> None:
    path = tmp_path / "train.lock"
    with holder(path, machine="other") as pid:
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        with taken(path) as alone:
            assert alone
        assert time.monotonic() - began >= SHORT * 0.9


def test_a_holder_that_slept_and_was_replaced_ends_at_once(tmp_path: Path) -> None:
    path = tmp_path / "train.lock"
    with holder(path, machine="other") as pid:
        os.kill(pid, signal.SIGSTOP)
        with taken(path) as alone:
            assert alone
            os.kill(pid, signal.SIGCONT)
            began = time.monotonic()
            while lease_file._started(pid):
                assert time.monotonic() - began < 20
                time.sleep(0.02)


def test_a_forked_child_that_leaves_the_block_releases_nothing(tmp_path: Path) -> None:
    path = tmp_path / "train.lock"
    mine = taken(path)
    assert mine.__enter__()
    if (child := os.fork()) == 0:
        mine.__exit__(None, None, None)
        os._exit(0)
    os.waitpid(child, 0)
    assert lease_file.is_held(path)
    mine.__exit__(None, None, None)
    assert not lease_file.is_held(path)


@pytest.mark.parametrize("content", [b"", b"\0" * 400, b"[1]", b'{"machine": 5, "pid": "x"}'])
def test_a_lease_that_says_nothing_does_not_lock_for_ever(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train.lock"
    (tmp_path / "train.lock.lease-4").write_bytes(content)
    with taken(path) as alone:
        assert alone
    assert (tmp_path / "train.lock.lease-5").exists()


def _try(path: Path, go: Any, out: Any) -> None:
    go.wait()
    with taken(path) as alone:
        out.put(alone)
        time.sleep(SHORT if alone else 0)


def test_of_many_at_once_one_gets_it(tmp_path: Path) -> None:
    (tmp_path / "train.lock.lease-7").write_text('{"released": true}')
    go, out = FORK.Event(), FORK.Queue()
    processes = [FORK.Process(target=_try, args=(tmp_path / "train.lock", go, out)) for _ in range(8)]
    for process in processes:
        process.start()
    go.set()
    found = [out.get(timeout=30) for _ in processes]
    for process in processes:
        process.join()
    assert sum(found) == 1
