"""What a disk promises: its kind, whether a rename is one step, and its room."""

import errno
from pathlib import Path

import pytest

from stoker.rundir import filesystem


def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *lines: tuple[str, str]) -> None:
    table = tmp_path / "mountinfo"
    rows = [f"{n} 1 0:1 / {place} rw,relatime shared:1 - {kind} source rw" for n, (place, kind) in enumerate(lines)]
    table.write_text("\n".join(rows) + "\n")
    monkeypatch.setattr(filesystem, "_MOUNTS", table)


def test_the_innermost_mount_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "my drive"
    inner.mkdir()
    mounts(tmp_path, monkeypatch, ("/", "ext4"), (str(inner).replace(" ", "\\040"), "fuse.drive"), ("/no", "nfs4"))
    assert filesystem.kind_of(inner) == "fuse.drive"
    assert filesystem.kind_of(tmp_path) == "ext4"


@pytest.mark.parametrize("kind", ["nfs4", "nfs", "fuse.sshfs", "fuse", "cifs", "9p", "vfat"])
def test_network_and_user_space_disks_commit_by_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    mounts(tmp_path, monkeypatch, ("/", kind))
    found = filesystem.probe(tmp_path)
    assert (found.renames, found.reason) == (False, kind)


def test_a_local_disk_is_tried_and_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts(tmp_path, monkeypatch, ("/", "ext4"))
    (tmp_path / "folder").mkdir()
    assert filesystem.probe(tmp_path / "folder").renames
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_disk_that_cannot_rename_folders_commits_by_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts(tmp_path, monkeypatch, ("/", "odd"))

    def rename(self: Path, target: Path) -> Path:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(Path, "rename", rename)
    found = filesystem.probe(tmp_path)
    assert not found.renames
    assert "cross-device" in found.reason


def test_a_full_disk_is_not_called_unable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts(tmp_path, monkeypatch, ("/", "ext4"))

    def mkdir(self: Path, **_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(OSError, match="No space"):
        filesystem.probe(tmp_path)


def test_too_little_room_is_the_error_the_disk_would_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "room", lambda folder: filesystem.Room(1000, 5))
    filesystem.require(tmp_path, 1000, 5)
    for needed in ((1001, 5), (1000, 6)):
        with pytest.raises(OSError, match="No space") as caught:
            filesystem.require(tmp_path, *needed)
        assert caught.value.errno == errno.ENOSPC
