"""The keeper holds the lease while the run is supervised or trained, and gives it back."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from store_case import make_run, open_folder

from stoker.rundir import events
from stoker.store import lease_keeper
from stoker.store.store_protocol import Fault


def keeping(monkeypatch: pytest.MonkeyPatch, busy: list[bool], during: Any = None) -> None:
    """So the run's locks are seen, look after look, the last for good; `during` happens at each."""
    looks = itertools.chain(busy, itertools.repeat(busy[-1]))

    def is_busy(_: object) -> bool:
        if during is not None:
            during()
        return next(looks)

    monkeypatch.setattr(lease_keeper, "_is_busy", is_busy)
    monkeypatch.setattr(lease_keeper, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(lease_keeper, "_AGAIN_SECONDS", 0.01)


def test_it_holds_the_lease_until_the_run_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = make_run(tmp_path / "box", tmp_path / "store")
    store, seen = open_folder(tmp_path / "store"), []
    keeping(monkeypatch, [False, True, True, False], lambda: seen.append("tiny/lease.json" in store.names("tiny")))
    assert lease_keeper.main(run_dir.path) == 0
    assert seen == [True] * 4
    assert store.names("tiny") == {}


def test_it_holds_the_lease_of_a_run_that_is_being_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = make_run(tmp_path / "box", tmp_path / "store")
    looks: list[bool] = []

    def rename() -> None:
        looks.append(True)
        if len(looks) == 2:
            run_dir.path.rename(tmp_path / "renamed")
        elif len(looks) == 4:
            run_dir.path.symlink_to(tmp_path / "renamed")

    keeping(monkeypatch, [True, True, False, False, True, False], rename)
    assert lease_keeper.main(run_dir.path) == 0
    assert len(looks) == 6


def test_a_second_keeper_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import contextlib

    run_dir = make_run(tmp_path / "box", tmp_path / "store")
    monkeypatch.setattr(lease_keeper.lock, "held", lambda path, **_: contextlib.nullcontext(False))
    assert lease_keeper.main(run_dir.path) == 0
    assert not (tmp_path / "store").exists()


def test_a_lease_that_is_anothers_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = make_run(tmp_path / "box", tmp_path / "store")
    monkeypatch.setattr(lease_keeper.lease, "SECONDS", 0.1)
    monkeypatch.setattr(lease_keeper.Renewing, "__init__", _impatient(lease_keeper.Renewing.__init__))
    store = open_folder(tmp_path / "store")

    def stolen() -> None:
        store.write("tiny/lease.json", b'{"token": "other", "at": "2099-01-01T00:00:00+00:00", "beat": "1"}')

    keeping(monkeypatch, [True] * 1000, stolen)
    assert lease_keeper.main(run_dir.path) == 1
    (event,) = events.read(run_dir.events_file)
    assert (event["event"], event["copied"], event["code"]) == ("store", False, "STK656")


def _impatient(real: Any) -> Any:
    return lambda self, own, seconds=0.1, **words: real(self, own, 0.1, **words)


def test_it_waits_for_a_store_that_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = make_run(tmp_path / "box", tmp_path / "store")
    keeping(monkeypatch, [True, True, True, False])
    real, tries = lease_keeper.Lease.acquire, []

    def later(self: Any, *words: Any) -> None:
        tries.append(1)
        if len(tries) < 3:
            raise Fault("the line is cut")
        real(self, *words)

    monkeypatch.setattr(lease_keeper.Lease, "acquire", later)
    assert lease_keeper.main(run_dir.path) == 0
    assert len(tries) == 3


def test_it_waits_for_a_store_that_cannot_even_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = make_run(tmp_path / "box", tmp_path / "drive" / "store")
    looks: list[bool] = []

    def mounted_later() -> None:
        looks.append(True)
        if len(looks) == 2:
            (tmp_path / "drive").mkdir()

    keeping(monkeypatch, [True, True, True, False], mounted_later)
    assert lease_keeper.main(run_dir.path) == 0
    assert (tmp_path / "drive" / "store").exists()
