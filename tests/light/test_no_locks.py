"""A disk without record locks, by a preloaded library: the lock still has one holder, and a fault is not "held"."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="preloads a library")
HOLD = """
import os, sys, time
from pathlib import Path
from stoker.rundir import lock
with lock.held(Path(sys.argv[1])) as alone:
    if "fork" in sys.argv and os.fork() == 0:
        time.sleep(60)
    print(alone, flush=True)
    sys.stdin.read()
"""
LOOK = """
import sys
from pathlib import Path
from stoker.rundir import lock
path = Path(sys.argv[1])
held = lock.is_held(path)
with lock.held(path) as alone:
    print(held, alone)
"""
METER = """
import contextlib, sys
from pathlib import Path
from stoker.rundir.layout import RunDir
from stoker.settle.meter import Settling
from stoker.supervise.limits import Clock
meter = Settling.__new__(Settling)
meter.run_dir = RunDir(Path(sys.argv[1]))
meter._clock = Clock()
with contextlib.ExitStack() as stack:
    print(meter._is_alone(stack))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("no_locks") / "no_locks.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(made), str(HERE / "no_locks.c"), "-ldl"], check=True)
    return made


def environment(library: Path, number: int) -> dict[str, str]:
    return {**os.environ, "LD_PRELOAD": str(library), "NO_LOCKS": str(number)}


@contextmanager
def holder(library: Path, number: int, path: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLD, str(path), *words]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(library, number), text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def look(library: Path, number: int, path: Path) -> str:
    command = [sys.executable, "-c", LOOK, str(path)]
    done = subprocess.run(command, env=environment(library, number), capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_one_process_at_a_time_trains_on_a_disk_without_locks(library: Path, tmp_path: Path, number: int) -> None:
    path = tmp_path / "train.lock"
    with holder(library, number, path) as first:
        assert first.stdout is not None
        assert first.stdout.readline().strip() == "True", "nobody else is there"
        assert look(library, number, path) == "True False"
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert look(library, number, path) == "False True", "a dead holder holds nothing"


def test_a_killed_holders_forked_child_keeps_nothing(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "train.lock"
    with holder(library, errno.ENOSYS, path, "fork") as first:
        assert first.stdout is not None
        assert first.stdout.readline().strip() == "True"
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert look(library, errno.ENOSYS, path) == "False True"


def test_a_fault_of_the_disk_is_said_as_what_it_is(library: Path, tmp_path: Path) -> None:
    assert "Input/output error" in look(library, errno.EIO, tmp_path / "train.lock")


def test_the_meter_is_stopped_though_the_disk_takes_no_lock(library: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", METER, str(tmp_path)]
    for number in (errno.ENOSYS, errno.EIO):
        done = subprocess.run(command, env=environment(library, number), capture_output=True, text=True, check=False)
        assert done.stdout.strip() == "True", done.stderr
