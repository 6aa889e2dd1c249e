"""Folders that several tests need and one of them makes: by the first process that asks, whichever worker that is."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_SETTING = "STOKER_TEST_SHARED"
"""Names the folder where several calls of pytest keep what they share (`just nightly`)."""

seconds = 0.0
"""Spent in `once` by this process: the first test that asks is not to blame for it."""


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that `make` filled, once for all workers. Read it; who changes it takes a copy."""
    global seconds
    began = time.monotonic()
    root = _root(factory)
    folder, whole = root / name, root / f"{name}.whole"
    with _locked(root / f"{name}.lock"):
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            whole.touch()
    seconds += time.monotonic() - began
    return folder


def _root(factory: pytest.TempPathFactory) -> Path:
    if _SETTING in os.environ:
        kept = Path(os.environ[_SETTING])
        kept.mkdir(parents=True, exist_ok=True)
        return kept
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own  # a worker's folder is inside the session's


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
