"""Who trains here: the trainer, its supervisor, one without the other, nobody."""

import datetime
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stoker.api import stopping
from stoker.errors import StokerError
from stoker.launch import training
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="asks /proc")


@contextmanager
def process(run_dir: RunDir, program: str, file: Path) -> Iterator[int]:
    """A live process that passes for a program of this run."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", code, program, str(run_dir.path.resolve())]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout
        started.stdout.readline()
        file.write_text(json.dumps({"pid": started.pid}), encoding="utf-8")
        yield started.pid


def test_nobody_trains_where_nothing_was_started(tmp_path: Path) -> None:
    assert training.running_pid(RunDir(tmp_path)) is None
    assert training.supervision(RunDir(tmp_path)) == {}


def test_a_start_that_is_interrupted_leaves_no_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen[bytes]] = []

    def start(*_: object, **__: object) -> subprocess.Popen[bytes]:
        begun.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True))
        return begun[0]

    def interrupted(_path: Path) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(training.programs, "check_engine", lambda: None)
    monkeypatch.setattr(training.starting, "start", start)
    monkeypatch.setattr(training.lock, "is_held", interrupted)
    with pytest.raises(KeyboardInterrupt):
        training.start(RunDir(tmp_path))
    with begun[0]:
        assert begun[0].wait(30) < 0


def beat(run_dir: RunDir, ago_seconds: float, **more: str) -> None:
    """A supervisor on another machine that shares the folder."""
    at = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=ago_seconds)
    seen = {"pid": 1, "host": "node7", "state": "running", "beat": at.isoformat(timespec="seconds"), **more}
    run_dir.supervisor_file.write_text(json.dumps(seen), encoding="utf-8")


def test_a_run_on_another_machine_that_shares_the_folder_is_running_until_it_falls_silent(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    beat(run_dir, 10)
    assert training.is_running(run_dir)
    assert training.running_pid(run_dir) is None
    for ago, more in ((600, {}), (10, {"state": "stopped"}), (10, {"host": socket.gethostname()}), (10, {"host": ""})):
        beat(run_dir, ago, **more)
        assert not training.is_running(run_dir)
    beat(run_dir, 200, next_retry=datetime.datetime.now(datetime.timezone.utc).isoformat())
    assert training.is_running(run_dir)


def test_a_heartbeat_of_a_clock_that_was_ahead_is_no_sign_of_life(tmp_path: Path) -> None:
    run_dir, ahead = RunDir(tmp_path), 8 * 3600
    retry = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=ahead + 60)
    beat(run_dir, -30)
    assert training.is_running(run_dir)
    for more in ({}, {"next_retry": retry.isoformat()}):
        beat(run_dir, -ahead, **more)
        assert not training.is_running(run_dir)
        training.require_idle(run_dir)
        assert not stopping.stop(run_dir, lambda *_, **__: None)


def test_a_supervisor_elsewhere_that_waits_to_retry_is_running(tmp_path: Path) -> None:
    retry = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=300)
    beat(RunDir(tmp_path), 200, next_retry=retry.isoformat())
    assert training.is_running(RunDir(tmp_path))


def test_a_trainer_without_a_supervisor_is_an_orphan(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    with process(run_dir, "stoker.engine.train", run_dir.process_file) as pid:
        assert training.running_pid(run_dir) == pid
        assert training.orphan(run_dir) == pid
    assert training.orphan(run_dir) is None


def test_one_with_a_supervisor_is_none(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    with (
        process(run_dir, "stoker.supervise.supervisor", run_dir.supervisor_file),
        process(run_dir, "stoker.engine.train", run_dir.process_file) as pid,
    ):
        assert training.running_pid(run_dir) == pid
        assert training.orphan(run_dir) is None
        with pytest.raises(StokerError):
            training.require_idle(run_dir)


def test_a_supervisor_that_waits_counts_as_running(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.process_file.write_text(json.dumps({"pid": 2**22 + 1}), encoding="utf-8")  # the trainer that died
    with process(run_dir, "stoker.supervise.supervisor", run_dir.supervisor_file) as pid:
        assert training.running_pid(run_dir) == pid
        assert training.orphan(run_dir) is None


@pytest.mark.parametrize("content", ['{"pid": 1}', '{"pid": "x"}', '{"pid": [1]}', "[]", "{", '{"pid": -1}', "null"])
def test_what_a_file_says_is_not_believed(tmp_path: Path, content: str) -> None:
    run_dir = RunDir(tmp_path)
    for path in (run_dir.process_file, run_dir.supervisor_file):
        path.write_text(content, encoding="utf-8")
    assert training.running_pid(run_dir) is None
    assert training.orphan(run_dir) is None


def test_a_process_of_another_run_is_not_ours(tmp_path: Path) -> None:
    run_dir, other = RunDir(tmp_path / "a"), RunDir(tmp_path / "b")
    run_dir.path.mkdir()
    other.path.mkdir()
    with process(other, "stoker.engine.train", run_dir.process_file):
        assert training.running_pid(run_dir) is None


@pytest.mark.parametrize("name", ["train.lock", "supervisor.lock"])
def test_a_run_whose_lock_is_held_is_not_idle_whatever_pid_its_files_name(tmp_path: Path, name: str) -> None:
    """In another container the pid of a trainer is none, or another process'."""
    run_dir = RunDir(tmp_path)
    for file in (run_dir.process_file, run_dir.supervisor_file):
        file.write_text(json.dumps({"pid": 2**22 + 1, "host": socket.gethostname()}), encoding="utf-8")
    code = (
        "import sys; from pathlib import Path; from stoker.rundir import lock\n"
        "with lock.held(Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", code, str(run_dir.path / name)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        holder.stdout.readline()
        with pytest.raises(StokerError) as caught, training.claimed(run_dir):
            raise AssertionError("it was claimed")
        assert caught.value.code == "STK411"
    with training.claimed(run_dir):
        pass


def test_a_run_that_another_machine_trains_in_this_folder_is_not_idle_but_one_sent_away_is(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    beat(run_dir, 10)
    with pytest.raises(StokerError) as caught:
        training.require_idle(run_dir)
    assert caught.value.code == "STK411"
    run_dir.place_file.write_text('{"on": "box"}', encoding="utf-8")  # the heartbeat came with `stoker pull`
    training.require_idle(run_dir)
    run_dir.place_file.unlink()
    beat(run_dir, 600)
    training.require_idle(run_dir)
