"""Files written under their own names: no link is followed, nothing but a plain file is opened."""

import os
import sys
from pathlib import Path

import pytest

from stoker.errors import StokerError
from stoker.rundir import events, files, in_place, layout, lock
from stoker.supervise import starting

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "bashrc"
    path.write_text("mine\n", encoding="utf-8")
    return path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    folder = tmp_path / "runs" / "evil"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}", encoding="utf-8")
    return folder


def test_an_event_is_not_written_through_a_link(run: Path, victim: Path) -> None:
    (run / "events.jsonl").symlink_to(victim)
    with pytest.raises(OSError, match="link"):
        events.append(run / "events.jsonl", "error", text="touch pwned")
    assert victim.read_text() == "mine\n"


@pytest.mark.parametrize("name", ["events.jsonl", "logs/train.log"])
def test_a_file_with_a_second_name_is_not_written(run: Path, victim: Path, name: str) -> None:
    (run / "logs").mkdir()
    os.link(victim, run / name)
    with pytest.raises(OSError, match="name"):
        in_place.appending(run / name, run)
    assert victim.read_text() == "mine\n"


def test_a_pipe_does_not_make_a_writer_wait(run: Path) -> None:
    os.mkfifo(run / "events.jsonl")
    with pytest.raises(OSError, match="plain file"):
        events.EventLog(run / "events.jsonl")


def test_a_log_is_not_written_through_a_linked_folder(run: Path, tmp_path: Path) -> None:
    (tmp_path / "autostart").mkdir()
    (run / "logs").symlink_to(tmp_path / "autostart")
    with pytest.raises(OSError, match="link"):
        starting.start([sys.executable, "-c", "print(1)"], run / "logs" / "train.log", detached=False)
    assert not list((tmp_path / "autostart").iterdir())


def test_a_lock_is_not_taken_through_a_link(run: Path, victim: Path, tmp_path: Path) -> None:
    (run / "train.lock").symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="link"), lock.held(run / "train.lock"):
        pass
    assert not (tmp_path / "made").exists()


def test_a_stop_file_is_not_touched_through_a_link(run: Path, tmp_path: Path) -> None:
    (run / "stop").symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="link"):
        in_place.touch(run / "stop")
    assert not (tmp_path / "made").exists()


def test_a_record_is_not_written_through_a_link_at_its_temporary_name(run: Path, victim: Path) -> None:
    (run / f".plan.json.{os.getpid()}.tmp").symlink_to(victim)
    files.write_json(run / "plan.json", {"a": 1})
    files.write_unsynced(run / "plan.json", {"a": 1})
    assert victim.read_text() == "mine\n"
    assert files.read_json(run / "plan.json") == {"a": 1}


@pytest.mark.parametrize(
    "name", ["events.jsonl", "logs", "checkpoints", "data", "artifacts/final/model.safetensors", ".store/token"]
)
def test_a_run_directory_with_a_link_in_it_is_not_opened(run: Path, victim: Path, name: str) -> None:
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).symlink_to(victim)
    for opened in (lambda: layout.find("evil"), lambda: layout.find(str(run)), lambda: layout.named("evil")):
        with pytest.raises(StokerError) as refused:
            opened()
        assert refused.value.code == "STK520"
        assert str(run / name) in refused.value.what


def test_a_run_directory_with_a_pipe_in_it_is_not_opened(run: Path) -> None:
    os.mkfifo(run / "plan.json")
    with pytest.raises(StokerError, match="STK520"):
        layout.find("evil")


def test_runs_and_run_directories_may_be_on_another_disk(run: Path, tmp_path: Path) -> None:
    """`runs` itself, and a run directory as a whole, may be links to a data disk."""
    disk = tmp_path / "disk"
    run.rename(tmp_path / "moved")
    run.parent.rename(disk)
    (tmp_path / "runs").symlink_to(disk)
    (disk / "evil").symlink_to(tmp_path / "moved")
    found = layout.find("evil")
    assert found.name == "evil"
    events.append(found.events_file, "end", status="done")
    with lock.held(found.lock_file) as free:
        assert free
    in_place.touch(found.stop_file)
    with in_place.appending(found.logs / "a.log", found.path) as log:
        log.write(b"x")
    assert sorted(path.name for path in (tmp_path / "moved").iterdir()) == [
        "events.jsonl",
        "logs",
        "manifest.json",
        "stop",
        "train.lock",
    ]


def test_hard_links_that_checkpoints_share_are_no_reason_to_refuse(run: Path) -> None:
    (run / "artifacts" / "final").mkdir(parents=True)
    (run / "artifacts" / "final" / "a").write_bytes(b"x")
    os.link(run / "artifacts" / "final" / "a", run / "artifacts" / "b")
    assert layout.find("evil").path == run
