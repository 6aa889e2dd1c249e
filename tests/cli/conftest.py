from pathlib import Path

import pytest
from made_runs import CommandLine


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The runs folder of a test."""
    return tmp_path / "runs"


@pytest.fixture
def stoker(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line, with its runs in `runs`."""
    return CommandLine(runs, monkeypatch, capsys)
