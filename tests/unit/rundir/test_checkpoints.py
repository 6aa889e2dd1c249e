"""Committed or it does not exist; the newest that verifies; nothing old goes before something newer is read back."""

import errno
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from failing_disk import unlistable

from stoker.rundir import checkpoints, file_check, files
from stoker.rundir.checkpoints import COMMIT_NAME, Checkpoint

FACTS: dict[str, Any] = {"data_digest": "d", "order_version": 1, "world": 1, "fingerprint": {"torch": "2"}}
WEIGHTS = b"weights" * 100


def commit(folder: Path, step: int, weights: bytes = WEIGHTS) -> Checkpoint:
    with checkpoints.writing(folder, step, **FACTS) as aside:
        (aside / "model.safetensors").write_bytes(weights + str(step).encode())
        (aside / "inner").mkdir()
        (aside / "inner" / "state.json").write_text(str(step))
    return next(one for one in checkpoints.committed(folder) if one.step == step)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def steps(folder: Path) -> list[int]:
    return [one.step for one in checkpoints.committed(folder)]


# ---- commit


def test_what_cannot_be_listed_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pathlib would pass over it from Python 3.12 on, and the record would be of what is left."""

    def save() -> None:
        with checkpoints.writing(tmp_path, 2, **FACTS) as aside:
            (aside / "model.safetensors").write_bytes(WEIGHTS)
            unlistable(monkeypatch, aside)

    with pytest.raises(OSError, match="Input/output"):
        save()
    monkeypatch.undo()
    assert steps(tmp_path) == []


def test_a_record_of_no_files_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="files"), checkpoints.writing(tmp_path, 2, **FACTS):
        pass
    one = commit(tmp_path, 3)
    record = files.read_json(one.path / COMMIT_NAME)
    files.write_json(one.path / COMMIT_NAME, checkpoints.sealed({**record, "files": {}}))
    assert steps(tmp_path) == []


def test_a_commit_lists_every_file_with_size_and_digest(tmp_path: Path) -> None:
    made = commit(tmp_path, 500)
    assert made.path.name == "step-00000500"
    assert set(made.commit.files) == {"model.safetensors", "inner/state.json"}
    for name, entry in made.commit.files.items():
        assert entry.bytes == (made.path / name).stat().st_size
        assert entry.sha256 == files.sha256(made.path / name)
    assert made.commit.total_bytes == sum((made.path / name).stat().st_size for name in made.commit.files)
    assert (made.commit.data_digest, made.commit.world, made.commit.fingerprint) == ("d", 1, {"torch": "2"})
    assert checkpoints.verify(made) == ""
    assert names(tmp_path) == ["step-00000500"]


def test_what_is_being_written_does_not_exist(tmp_path: Path) -> None:
    commit(tmp_path, 1)
    with checkpoints.writing(tmp_path, 2, **FACTS) as aside:
        (aside / "x").write_text("x")
        assert steps(tmp_path) == [1]
        assert checkpoints.newest_verified(tmp_path)[0].step == 1  # type: ignore[union-attr]
    assert steps(tmp_path) == [1, 2]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError()])
def test_an_error_while_writing_leaves_nothing_behind(tmp_path: Path, error: BaseException) -> None:
    def fail() -> None:
        with checkpoints.writing(tmp_path, 2, **FACTS) as aside:
            (aside / "x").write_text("x")
            raise error

    commit(tmp_path, 1)
    with pytest.raises(type(error)):
        fail()
    assert names(tmp_path) == ["step-00000001"]


def test_the_manifest_is_written_after_every_file_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    plain_sync, plain_write = files.sync_file, files.write_text
    monkeypatch.setattr(files, "sync_file", lambda path: (done.append(path.name), plain_sync(path)))
    monkeypatch.setattr(files, "write_text", lambda path, value: (done.append(path.name), plain_write(path, value)))
    commit(tmp_path, 1)
    assert set(done[:2]) == {"state.json", "model.safetensors"}
    assert done[2:] == [COMMIT_NAME]


def test_another_state_of_the_same_step_puts_the_old_one_aside(tmp_path: Path) -> None:
    commit(tmp_path, 5, b"old")
    made = commit(tmp_path, 5, b"new")
    assert (made.path / "model.safetensors").read_bytes() == b"new5"
    assert checkpoints.verify(made) == ""
    assert names(tmp_path) == [".quarantine", "step-00000005"]
    aside = tmp_path / ".quarantine" / "step-00000005.1"
    assert (aside / "model.safetensors").read_bytes() == b"old5"
    assert "replaced" in files.read_json(aside / "REASON.json")["reason"]


def test_the_same_state_again_leaves_the_committed_one_alone(tmp_path: Path) -> None:
    first = commit(tmp_path, 5)
    before = (first.path / COMMIT_NAME).stat().st_ino
    assert (commit(tmp_path, 5).path / COMMIT_NAME).stat().st_ino == before
    assert names(tmp_path) == ["step-00000005"]


def test_an_old_reader_ignores_what_a_newer_writer_adds(tmp_path: Path) -> None:
    path = commit(tmp_path, 5).path / COMMIT_NAME
    files.write_json(path, checkpoints.sealed({**json.loads(path.read_text()), "news": 1}))
    assert steps(tmp_path) == [5]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"world": 2}, "was changed"),
        ({"format": 1}, "format 1"),
        ({"step": 6}, "of step 6"),
        ({"files": {"../x": {"bytes": 0, "sha256": ""}}}, "outside"),
        ({"files": {"/x": {"bytes": 0, "sha256": ""}}}, "outside"),
    ],
)
def test_a_record_that_is_not_what_was_written_is_none(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = commit(tmp_path, 5).path / COMMIT_NAME
    changed = {**json.loads(path.read_text()), **change}
    files.write_json(path, changed if reason == "was changed" else checkpoints.sealed(changed))
    found, rejected = checkpoints.newest_verified(tmp_path)
    assert found is None
    assert reason in rejected[0].reason


# ---- verify

Damage = Callable[[Path], None]
DAMAGES: dict[str, tuple[Damage, str]] = {
    "a file is missing": (lambda path: (path / "model.safetensors").unlink(), "is missing"),
    "an inner file is missing": (lambda path: (path / "inner" / "state.json").unlink(), "is missing"),
    "a file is cut": (lambda path: os.truncate(path / "model.safetensors", 10), "10 bytes instead of"),
    "a file is empty": (lambda path: os.truncate(path / "model.safetensors", 0), "0 bytes instead of"),
    "a file is longer": (
        lambda path: (path / "model.safetensors").write_bytes(WEIGHTS * 2),
        "bytes instead of",
    ),
    "a bit is flipped": (lambda path: flip(path / "model.safetensors", 3), "another digest"),
    "the last bit is flipped": (lambda path: flip(path / "model.safetensors", -1), "another digest"),
    "the manifest is missing": (lambda path: (path / COMMIT_NAME).unlink(), f"{COMMIT_NAME} is missing"),
    "the manifest is cut": (lambda path: os.truncate(path / COMMIT_NAME, 30), "cannot be read"),
    "the manifest is empty": (lambda path: os.truncate(path / COMMIT_NAME, 0), "cannot be read"),
    "the manifest is of something else": (lambda path: (path / COMMIT_NAME).write_text("[]"), "cannot be read"),
    "the folder is empty": (lambda path: [f.unlink() for f in path.iterdir() if f.is_file()], "is missing"),
}


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", DAMAGES)
def test_resume_takes_the_newest_that_verifies_and_says_what_it_passed_over(tmp_path: Path, name: str) -> None:
    damage, reason = DAMAGES[name]
    for step in (10, 20, 30):
        commit(tmp_path, step)
    damage(tmp_path / "step-00000030")
    found, rejected = checkpoints.newest_verified(tmp_path)
    assert found is not None
    assert found.step == 20
    assert [one.path.name for one in rejected] == ["step-00000030"]
    assert reason in rejected[0].reason


@pytest.mark.parametrize("name", DAMAGES)
def test_what_was_passed_over_is_said_in_the_users_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("STOKER_LANG", "zh")
    commit(tmp_path, 30)
    DAMAGES[name][0](tmp_path / "step-00000030")
    (rejected,) = checkpoints.newest_verified(tmp_path)[1]
    assert any("\u4e00" <= letter <= "\u9fff" for letter in rejected.reason)


def test_several_broken_ones_are_passed_over(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        commit(tmp_path, step)
    flip(tmp_path / "step-00000030" / "model.safetensors", 0)
    (tmp_path / "step-00000020" / COMMIT_NAME).unlink()
    found, rejected = checkpoints.newest_verified(tmp_path)
    assert found is not None
    assert (found.step, len(rejected)) == (10, 2)


def test_none_that_verifies_is_not_the_same_as_none_at_all(tmp_path: Path) -> None:
    assert checkpoints.newest_verified(tmp_path / "no such folder") == (None, [])
    assert checkpoints.newest_verified(tmp_path) == (None, [])
    commit(tmp_path, 10)
    flip(tmp_path / "step-00000010" / "model.safetensors", 0)
    found, rejected = checkpoints.newest_verified(tmp_path)
    assert found is None
    assert len(rejected) == 1


def test_files_and_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    commit(tmp_path, 10)
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "step-best").mkdir()
    (tmp_path / "step-99").mkdir()
    found, rejected = checkpoints.newest_verified(tmp_path)
    assert found is not None
    assert (found.step, rejected) == (10, [])
    assert checkpoints.sweep(tmp_path) == []
    assert steps(tmp_path) == [10]


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000, 5):
        commit(tmp_path, step)
    assert steps(tmp_path) == [5, 99_999_999, 100_000_000]
    found, _ = checkpoints.newest_verified(tmp_path)
    assert found is not None
    assert found.step == 100_000_000


# ---- what the disk does not hand out


def refuse(monkeypatch: pytest.MonkeyPatch, name: str, number: int = errno.EIO, times: int = 1000) -> None:
    """Files of this name cannot be opened so many times."""
    opened, left = io.open, [times]

    def refusing(file: Any, *how: Any, **options: Any) -> Any:
        if Path(str(file)).name == name and left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number), str(file))
        return opened(file, *how, **options)

    monkeypatch.setattr(io, "open", refusing)
    monkeypatch.setattr(file_check, "_PAUSES_SECONDS", (0.0, 0.0))


@pytest.mark.parametrize("name", [COMMIT_NAME, "model.safetensors"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.EIO])
def test_what_cannot_be_read_now_is_neither_damaged_nor_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    for step in (10, 20):
        commit(tmp_path, step)
    refuse(monkeypatch, name, number)
    with pytest.raises(files.Unreadable) as caught:
        checkpoints.newest_verified(tmp_path)
    assert caught.value.named().code == "STK440"
    assert caught.value.named().fields == {
        "path": str(tmp_path / "step-00000020" / name),
        "reason": os.strerror(number),
    }


def test_records_that_cannot_be_read_now_are_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(tmp_path, 10)
    refuse(monkeypatch, COMMIT_NAME)
    for look in (checkpoints.committed, checkpoints.next_found):
        with pytest.raises(files.Unreadable):
            look(tmp_path)
    (seen,) = checkpoints.examine(tmp_path)
    assert seen.reason == f"{COMMIT_NAME} cannot be read: Input/output error"


def test_a_disk_that_is_back_in_a_moment_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (10, 20):
        commit(tmp_path, step)
    refuse(monkeypatch, "model.safetensors", times=2)
    found, rejected = checkpoints.newest_verified(tmp_path)
    assert found is not None
    assert (found.step, rejected) == (20, [])


def test_a_sweep_deletes_nothing_that_it_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(tmp_path, 10)
    (tmp_path / "step-00000010").rename(tmp_path / ".step-00000010.1.tmp")
    with monkeypatch.context() as for_now:
        refuse(for_now, "model.safetensors")
        with pytest.raises(files.Unreadable):
            checkpoints.sweep(tmp_path)
    checkpoints.sweep(tmp_path)
    assert steps(tmp_path) == [10]


def test_the_best_step_is_not_none_for_want_of_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = commit(tmp_path, 10)
    assert checkpoints.best_step(made) is None
    files.write_json(made.path / "trainer_state.json", {"best_global_step": 8})
    assert checkpoints.best_step(made) == 8
    refuse(monkeypatch, "trainer_state.json")
    with pytest.raises(files.Unreadable):
        checkpoints.best_step(made)


# ---- rotate


def test_rotation_keeps_the_newest_and_the_protected(tmp_path: Path) -> None:
    for step in range(10, 80, 10):
        commit(tmp_path, step)
    assert checkpoints.rotate(tmp_path, 2, {20}) == [10, 30, 40, 50]
    assert steps(tmp_path) == [20, 60, 70]
    assert names(tmp_path) == ["step-00000020", "step-00000060", "step-00000070"]


def test_a_protected_step_among_the_newest_takes_no_place_of_another(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        commit(tmp_path, step)
    assert checkpoints.rotate(tmp_path, 2, {30}) == [10]


def test_nothing_goes_while_there_are_few(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        commit(tmp_path, step)
    assert checkpoints.rotate(tmp_path, 3, set()) == []
    assert checkpoints.rotate(tmp_path / "no such folder", 3, set()) == []
    assert steps(tmp_path) == [10, 20, 30]


@pytest.mark.parametrize("name", [name for name in DAMAGES if not name.startswith(("the manifest", "the folder"))])
def test_nothing_is_deleted_while_the_newest_does_not_verify(tmp_path: Path, name: str) -> None:
    for step in (10, 20, 30, 40):
        commit(tmp_path, step)
    DAMAGES[name][0](tmp_path / "step-00000040")
    with pytest.raises(OSError, match=DAMAGES[name][1]):
        checkpoints.rotate(tmp_path, 2, set())
    assert steps(tmp_path) == [10, 20, 30, 40]


def test_a_folder_without_a_manifest_does_not_count_as_the_newest(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        commit(tmp_path, step)
    (tmp_path / "step-00000040" / COMMIT_NAME).unlink()
    assert checkpoints.rotate(tmp_path, 2, set()) == [10]
    assert steps(tmp_path) == [20, 30]


# ---- sweep


def test_what_a_crashed_writer_left_is_swept(tmp_path: Path) -> None:
    commit(tmp_path, 10)
    for name in (".step-00000020.77.tmp", ".step-00000005.77.gone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_text("x")
    assert len(checkpoints.sweep(tmp_path)) == 2
    assert names(tmp_path) == ["step-00000010"]
    assert checkpoints.sweep(tmp_path / "no such folder") == []


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


def killed_at_rename(folder: Path, step: int, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit, but die at rename `number`, without any cleaning up."""
    plain, count = Path.rename, 0

    def rename(self: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == number:
            raise Killed
        return plain(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", rename)
        patched.setattr(checkpoints.shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(Killed):
            commit(folder, step, b"new")


@pytest.mark.parametrize("number", [1, 2])
def test_a_kill_while_the_only_checkpoint_is_replaced_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    commit(tmp_path, 5, b"old")
    killed_at_rename(tmp_path, 5, number, monkeypatch)
    checkpoints.sweep(tmp_path)
    found, rejected = checkpoints.newest_verified(tmp_path)
    assert found is not None
    assert (found.step, rejected) == (5, [])
    kept = b"old5" if number == 1 else b"new5"
    assert (found.path / "model.safetensors").read_bytes() == kept
    assert [name for name in names(tmp_path) if name != ".quarantine"] == ["step-00000005"]


def test_a_checkpoint_that_was_whole_but_not_yet_named_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(tmp_path, 5)
    killed_at_rename(tmp_path, 6, 1, monkeypatch)
    assert steps(tmp_path) == [5]
    expected = checkpoints.next_found(tmp_path)
    assert expected is not None
    assert expected.step == 6  # a plan that is made before the start knows it
    checkpoints.sweep(tmp_path)
    assert steps(tmp_path) == [5, 6]


def test_a_rotated_checkpoint_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (10, 20, 30):
        commit(tmp_path, step)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints.shutil, "rmtree", lambda *_, **__: None)
        assert checkpoints.rotate(tmp_path, 2, set()) == [10]
    assert steps(tmp_path) == [20, 30]
    newest = checkpoints.next_found(tmp_path)
    assert newest is not None
    assert newest.step == 30
    checkpoints.sweep(tmp_path)
    assert names(tmp_path) == ["step-00000020", "step-00000030"]


# ---- quarantine


def test_a_rejected_folder_goes_into_quarantine_with_its_reason(tmp_path: Path) -> None:
    for step in (1, 2):
        commit(tmp_path, step)
    os.truncate(tmp_path / "step-00000002" / "model.safetensors", 3)
    _, (rejected,) = checkpoints.newest_verified(tmp_path)
    put = checkpoints.quarantine(rejected.path, rejected.reason)
    assert "3 bytes instead of" in files.read_json(put / "REASON.json")["reason"]
    assert steps(tmp_path) == [1]
    commit(tmp_path, 2)
    assert steps(tmp_path) == [1, 2]


def test_a_file_named_like_a_checkpoint_is_rejected_not_an_exception(tmp_path: Path) -> None:
    commit(tmp_path, 1)
    (tmp_path / "step-00000002").write_text("?")
    found, (rejected,) = checkpoints.newest_verified(tmp_path)
    assert found is not None
    assert found.step == 1
    assert checkpoints.quarantine(rejected.path, rejected.reason).read_text() == "?"


@pytest.mark.parametrize(
    ("name", "foreign"), [("notes.txt", True), (COMMIT_NAME, False), (".writing", False), ("state.json", False)]
)
def test_a_folder_is_a_strangers_if_nothing_of_a_checkpoint_is_in_it(tmp_path: Path, name: str, foreign: bool) -> None:
    path = tmp_path / "step-00000007"
    path.mkdir()
    (path / name).touch()
    assert checkpoints.is_foreign(path) == foreign


def test_quarantine_does_not_fill_the_disk(tmp_path: Path) -> None:
    for step in range(1, 6):
        checkpoints.quarantine(commit(tmp_path, step).path, "test")
    assert sorted(p.name for p in (tmp_path / ".quarantine").iterdir()) == ["step-00000004.4", "step-00000005.5"]


# ---- where a rename is not one step


def in_place(folder: Path, step: int) -> Checkpoint:
    with checkpoints.writing(folder, step, renames=False, **FACTS) as own:
        assert own.name == f"step-{step:08d}"
        (own / "model.safetensors").write_bytes(WEIGHTS + str(step).encode())
        assert step not in steps(folder)
    return next(one for one in checkpoints.committed(folder) if one.step == step)


def test_without_renames_the_record_is_the_commit(tmp_path: Path) -> None:
    assert checkpoints.verify(in_place(tmp_path, 5)) == ""
    assert not (tmp_path / "step-00000005" / ".writing").exists()


def test_without_renames_a_folder_with_nothing_in_it_is_swept(tmp_path: Path) -> None:
    """Killed between making the folder and marking it."""
    commit(tmp_path, 2)
    (tmp_path / checkpoints.folder_name(4)).mkdir()
    assert len(checkpoints.sweep(tmp_path)) == 1
    found, rejected = checkpoints.newest_verified(tmp_path)
    assert found is not None
    assert (found.step, rejected) == (2, [])


@pytest.mark.parametrize("record", [None, "", '{"format": 2'])
def test_without_renames_what_is_half_written_is_swept(tmp_path: Path, record: str | None) -> None:
    in_place(tmp_path, 5)
    half = tmp_path / "step-00000006"
    half.mkdir()
    (half / ".writing").touch()
    (half / "model.safetensors").write_text("x")
    if record is not None:
        (half / COMMIT_NAME).write_text(record)
    checkpoints.sweep(tmp_path)
    assert names(tmp_path) == ["step-00000005"]


def test_without_renames_a_kill_before_the_marker_went_loses_nothing(tmp_path: Path) -> None:
    (in_place(tmp_path, 5).path / ".writing").touch()
    checkpoints.sweep(tmp_path)
    assert steps(tmp_path) == [5]
    assert not (tmp_path / "step-00000005" / ".writing").exists()


def test_without_renames_a_deleted_one_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (10, 20, 30):
        in_place(tmp_path, step)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints.shutil, "rmtree", lambda *_, **__: None)
        assert checkpoints.rotate(tmp_path, 2, set(), renames=False) == [10]
    assert steps(tmp_path) == [20, 30]
    checkpoints.sweep(tmp_path)
    assert names(tmp_path) == ["step-00000020", "step-00000030"]


def test_without_renames_a_committed_name_is_not_used_again(tmp_path: Path) -> None:
    in_place(tmp_path, 5)
    with pytest.raises(FileExistsError):
        in_place(tmp_path, 5)
    assert checkpoints.verify(checkpoints.committed(tmp_path)[0]) == ""


# ---- the store


def test_the_newest_copy_in_the_store_is_kept_here_too(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        made = commit(tmp_path, step)
        if step in (1, 2):
            checkpoints.mark_stored(tmp_path, step, made.commit.digest)
        if step == 3:
            checkpoints.mark_stored(tmp_path, step, "of another checkpoint")
    assert checkpoints.rotate(tmp_path, 2, set()) == [1, 3]
    assert steps(tmp_path) == [2, 4, 5]


@pytest.mark.parametrize("marks", ["", "[]", "{", '{"x": 1}'])
def test_marks_that_cannot_be_read_are_none(tmp_path: Path, marks: str) -> None:
    (tmp_path / ".store.json").write_text(marks)
    assert checkpoints.stored(tmp_path) == {}


def test_a_whole_copy_is_adopted_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    copy = commit(tmp_path / "elsewhere", 5).path.rename(tmp_path / "copy")
    assert checkpoints.adopt(tmp_path / "checkpoints", copy).step == 5
    damaged = commit(tmp_path / "elsewhere", 6).path.rename(tmp_path / "copy")
    flip(damaged / "model.safetensors", 3)
    with pytest.raises(OSError, match="another digest"):
        checkpoints.adopt(tmp_path / "checkpoints", damaged)
    assert steps(tmp_path / "checkpoints") == [5]
