"""Digests of whole files, remembered: a change anywhere is seen, a file that did not change is not read twice."""

import hashlib
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.rundir import digests, files

ROW = b'{"prompt": "is this right?", "completion": "yes"}\n'
LARGE_ROWS = (70 << 20) // len(ROW)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("STOKER_HOME", str(folder))
    return folder


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that are read."""
    seen: list[Path] = []
    plain = digests._hashed

    def counted(path: Path, *rest: Any) -> Any:
        seen.append(path)
        return plain(path, *rest)

    monkeypatch.setattr(digests, "_hashed", counted)
    return seen


def old(path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that was changed long ago, as digests see it."""
    path.write_bytes(content)
    monkeypatch.setattr(digests, "_now_ns", lambda: time.time_ns() + 60_000_000_000)
    return path


def test_rows_relabelled_at_equal_length_in_a_large_file_change_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(ROW * LARGE_ROWS)
    before = digests.of(path)
    relabelled = ROW.replace(b"yes", b"nay") * 100
    with path.open("r+b") as file:
        # between the blocks of 1 MiB that were once sampled: evenly spread over the file
        for block in range(50):
            end = (path.stat().st_size - (1 << 20)) * block // 63 + (1 << 20)
            file.seek((end // len(ROW) + 1) * len(ROW))
            file.write(relabelled)
    assert digests.of(path) == files.sha256(path) != before


def test_a_file_that_did_not_change_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[Path]
) -> None:
    path = old(tmp_path / "a", b"a" * (1 << 20), monkeypatch)
    assert digests.of(path) == digests.of(path) == hashlib.sha256(b"a" * (1 << 20)).hexdigest()
    assert read == [path]
    path.write_bytes(b"b" * (1 << 20))
    assert digests.of(path) == hashlib.sha256(b"b" * (1 << 20)).hexdigest()


def test_a_change_that_keeps_size_and_mtime_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = old(tmp_path / "a", b"a" * (1 << 20), monkeypatch)
    before, at = digests.of(path), path.stat().st_mtime_ns
    time.sleep(0.02)
    path.write_bytes(b"b" * (1 << 20))
    os.utime(path, ns=(at, at))
    assert path.stat().st_mtime_ns == at
    assert digests.of(path) != before


def test_a_file_changed_a_moment_ago_is_not_remembered(tmp_path: Path, read: list[Path]) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a" * (1 << 20))
    digests.of(path)
    digests.of(path)
    assert read == [path, path], "another change within the same tick of the clock would not show"


def test_a_file_that_changes_while_it_is_read_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    path = old(tmp_path / "a", b"a" * (1 << 20), monkeypatch)
    plain = digests._hashed

    def changed(path: Path, *rest: Any) -> Any:
        found = plain(path, *rest)
        with path.open("ab") as file:
            file.write(b"more")
        return found

    monkeypatch.setattr(digests, "_hashed", changed)
    digests.of(path)
    assert not list(home.rglob("*.json"))


@pytest.mark.parametrize("damage", ["cut", "digit", "nothing", "list", "binary"])
def test_a_damaged_memory_is_read_past(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path, damage: str
) -> None:
    path = old(tmp_path / "a", b"a" * (1 << 20), monkeypatch)
    right = digests.of(path)
    (entry,) = home.rglob("*.json")
    text = entry.read_text()
    other = text.replace(right, ("0" if right[0] != "0" else "1") + right[1:])
    entry.write_bytes(
        {"cut": text[:40], "digit": other, "nothing": "", "list": "[1]", "binary": "\0" * 50}[damage].encode()
    )
    assert digests.of(path) == right


def test_a_home_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("STOKER_HOME", str(blocked))
    path = old(tmp_path / "a", b"a" * (1 << 20), monkeypatch)
    assert digests.of(path) == hashlib.sha256(b"a" * (1 << 20)).hexdigest()


def test_several_files_are_digested_with_progress_to_the_last_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_SHOWN_SECONDS", 0.0)
    paths = [old(tmp_path / str(number), bytes([number]) * (5 << 20), monkeypatch) for number in range(4)]
    shown: list[tuple[int, int]] = []
    found = digests.of_all(paths, lambda done, total: shown.append((done, total)))
    assert found == {path: files.sha256(path) for path in paths}
    assert shown[-1] == (20 << 20, 20 << 20)
    assert [done for done, _ in shown] == sorted(done for done, _ in shown)
    shown.clear()
    digests.of_all(paths, lambda done, total: shown.append((done, total)))
    assert shown == [], "nothing is read, nothing is shown"


def _digest(path: Path, times: int, out: "multiprocessing.Queue[set[str]]") -> None:
    digests._now_ns = lambda: time.time_ns() + 60_000_000_000  # type: ignore[assignment]
    found = set()
    for _ in range(times):
        found.add(digests.of(path))
        for entry in (path.parent / "home").rglob("*.json"):
            entry.unlink(missing_ok=True)
    out.put(found)


def test_processes_at_once_agree(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(os.urandom(1 << 20))
    context = multiprocessing.get_context("fork")
    out = context.Queue()
    processes = [context.Process(target=_digest, args=(path, 20, out)) for _ in range(4)]
    for process in processes:
        process.start()
    found = [out.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert found == [{files.sha256(path)}] * 4
