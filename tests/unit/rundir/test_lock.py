"""One trainer per run directory."""

import multiprocessing
import os
import signal
from pathlib import Path

from stoker.rundir import lock


def _hold(path: Path, ready: "multiprocessing.synchronize.Event") -> None:
    with lock.held(path) as alone:
        assert alone
        ready.set()
        signal.pause()


def test_a_second_holder_is_refused_until_the_first_dies(tmp_path: Path) -> None:
    path = tmp_path / "train.lock"
    assert not lock.is_held(path)
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=_hold, args=(path, ready))
    process.start()
    ready.wait(30)
    assert lock.is_held(path)
    with lock.held(path) as alone:
        assert not alone
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not lock.is_held(path)
    with lock.held(path) as alone:
        assert alone
