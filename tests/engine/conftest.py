"""What several files of engine tests share: the two tiny runs that ship, trained once a session."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


class Stoker:
    """Runs commands in one folder, as a user does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._settings = {**os.environ, "HF_HUB_OFFLINE": "1", "STOKER_LANG": "en", "OMP_NUM_THREADS": "1"}
        self._settings.pop("STOKER_RUNS", None)

    def __call__(self, *words: str) -> str:
        """What the command prints to stdout; it must not fail."""
        done = subprocess.run(
            [sys.executable, "-m", "stoker", *words],
            cwd=self.folder,
            env=self._settings,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="session")
def stoker(tmp_path_factory: pytest.TempPathFactory) -> Stoker:
    return Stoker(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_runs(stoker: Stoker) -> Path:
    """The runs folder with `scratch_tiny` and its adapter `sft_tiny` trained, and the adapter merged."""
    for words in (("train", "scratch_tiny"), ("train", "sft_tiny"), ("merge", "sft_tiny")):
        stoker(*words)
    return stoker.folder / "runs"
