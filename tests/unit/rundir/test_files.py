"""Small files: replaced in one step, or not at all."""

import contextlib
import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from failing_disk import unlistable
from pydantic import BaseModel

from stoker.errors import StokerError
from stoker.rundir import files


def test_text_is_written_as_utf8_with_plain_line_ends_and_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "run.yaml"
    files.write_text(path, "你好\nx\n")
    assert path.read_bytes() == "你好\nx\n".encode()
    assert [entry.name for entry in path.parent.iterdir()] == ["run.yaml"]


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_failure_leaves_the_old_text_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    path = tmp_path / "x"
    files.write_text(path, "old")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os if fails == "fsync" else Path, fails, full)
        with pytest.raises(OSError, match="No space"):
            files.write_text(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_a_reader_never_sees_half_of_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    files.write_text(path, "old")
    seen = []
    plain = os.fsync

    def look(descriptor: int) -> None:
        seen.append(path.read_text())
        plain(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    files.write_text(path, "new")
    assert seen[0] == "old", "the new text is on the disk before it has the name"
    assert path.read_text() == "new"


def test_json_is_read_back(tmp_path: Path) -> None:
    value = {"name": "模型", "list": [1, None, True, 1.5]}
    files.write_json(tmp_path / "x.json", value)
    assert files.read_json(tmp_path / "x.json") == value
    assert "模型" in (tmp_path / "x.json").read_text(encoding="utf-8")


def test_a_digest_is_that_of_the_whole_file(tmp_path: Path) -> None:
    content = b"ab" * files._CHUNK_BYTES
    (tmp_path / "x").write_bytes(content)
    assert files.sha256(tmp_path / "x") == hashlib.sha256(content).hexdigest()
    (tmp_path / "empty").write_bytes(b"")
    assert files.sha256(tmp_path / "empty") == hashlib.sha256(b"").hexdigest()


def test_windows_has_no_folders_to_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    monkeypatch.setattr(os, "open", lambda *arguments: opened.append(arguments))
    with monkeypatch.context() as patched:
        patched.setattr(os, "name", "nt")
        files.sync_folder(tmp_path)
    assert opened == []


@pytest.mark.parametrize(("number", "matters"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_a_file_system_that_cannot_sync_folders_is_good_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, matters: bool
) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="error") if matters else contextlib.nullcontext():
        files.sync_folder(tmp_path)


class _Counted(BaseModel):
    count: int


@pytest.mark.parametrize("content", [b"\x80\x04\x95", b"cposix\nsystem\n", b"[" * 100_000, b"[]", b'{"count": "many"}'])
def test_a_record_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with pytest.raises(StokerError) as caught:
        files.read_record(path, _Counted)
    assert caught.value.code == "STK512"
    assert str(path) in caught.value.what


def test_a_record_that_is_not_there_is_left_to_the_caller(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.read_record(tmp_path / "record.json", _Counted)


@pytest.mark.parametrize("text", ["", "[]", "{", "1", "[" * 100_000])
def test_what_holds_no_object_reads_as_an_empty_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    assert files.read_if_any(path) == {}
    path.write_text(text, encoding="utf-8")
    assert files.read_if_any(path) == {}


def test_a_record_replaced_without_a_sync_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    files.write_unsynced(path, {"词": 1})
    assert files.read_if_any(path) == {"词": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_numbers_of_a_record_are_durations_and_counts() -> None:
    assert [files.number(value) for value in (1, 2.5, -1, "3", None, float("inf"), float("nan"))] == [
        1,
        2.5,
        0,
        0,
        0,
        0,
        0,
    ]


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a": ' + "9" * 5000 + "}", '{"a": ' + "9" * 30 + "}", '{"a": -' + "9" * 30 + "}"]
)
def test_json_without_end_is_a_value_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"nested|large"):
        files.read_json(path)
    assert files.read_if_any(path) == {}
    with pytest.raises(StokerError, match="STK512"):
        files.read_object(path)


def test_a_json_file_that_is_no_record_by_its_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(StokerError, match="STK512"):
        files.read_object(path)
    assert files.read_if_any(path) == {}


def test_what_a_disk_cannot_list_is_no_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b", "a/d", "a/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert files.below(tmp_path) == [tmp_path / name for name in ("a/c", "a/d", "b")]
    assert files.below(tmp_path / "nowhere") == []
    unlistable(monkeypatch, tmp_path / "a")
    with pytest.raises(OSError, match="Input/output"):
        files.below(tmp_path)


def test_a_disks_own_folders_are_passed_over_and_no_hidden_one_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside, own = tmp_path / ".step-00000002.1.tmp", tmp_path / "lost+found"
    for folder in (aside, own):
        folder.mkdir()
        unlistable(monkeypatch, folder, errno.EACCES)
    assert files.below(tmp_path) == []
    with pytest.raises(PermissionError):
        files.below(aside)
