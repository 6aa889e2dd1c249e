"""A command that is refused leaves a run that is being trained as it was."""

import subprocess
import sys
from pathlib import Path

import pytest
from made_runs import CommandLine, held, training

from stoker.config import load
from stoker.rundir import layout
from stoker.rundir.layout import RunDir

TEXT = "name: mine\nmodel: m\ndata: {train: rows.jsonl}\ntrain: {steps: 100}\n"


@pytest.fixture
def run_dir(tmp_path: Path, runs: Path, stoker: CommandLine) -> RunDir:
    (tmp_path / "mine.yaml").write_text(TEXT, encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    return layout.create(load.load(str(tmp_path / "mine.yaml")))


@pytest.mark.parametrize("command", [["prepare"], ["plan", "--calibrate"], ["bundle"], ["train"]])
def test_a_refused_command_writes_nothing(
    stoker: CommandLine, run_dir: RunDir, tmp_path: Path, command: list[str]
) -> None:
    before = run_dir.manifest_file.read_bytes()
    with training(run_dir.path):
        (run_dir.path / "supervisor.json").write_text((run_dir.path / "process.json").read_text())
        done = stoker(command[0], str(tmp_path / "mine.yaml"), *command[1:], "--set", "train.seed=7")
    assert (done.code, "STK411" in done.err) == (1, True), done.err
    assert run_dir.manifest_file.read_bytes() == before


def test_two_preparations_at_once_are_refused_in_words(stoker: CommandLine, run_dir: RunDir, tmp_path: Path) -> None:
    with held(run_dir.launch_lock):
        done = stoker("prepare", str(tmp_path / "mine.yaml"))
    assert (done.code, "STK426" in done.err) == (1, True), done.err


LAUNCH = """
import sys, time
from pathlib import Path
from stoker.launch import training
from stoker.rundir.layout import RunDir
run_dir = RunDir(Path(sys.argv[1]))
with training.claimed(run_dir):
    print(flush=True)
    while not run_dir.stop_file.exists(): time.sleep(0.02)
    if sys.argv[2] == "heeds": run_dir.stop_file.unlink()  # as its supervisor does
"""


@pytest.mark.parametrize(
    ("who", "end"), [("heeds", "Stopped before the first checkpoint"), ("prepares", "not running")]
)
def test_a_launch_is_stopped_and_not_said_to_be_idle(stoker: CommandLine, run_dir: RunDir, who: str, end: str) -> None:
    words = [sys.executable, "-c", LAUNCH, str(run_dir.path), who]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as launch:
        assert launch.stdout
        launch.stdout.readline()
        done = stoker("stop", "mine")
    assert done.code == launch.returncode == 0
    assert "`mine` is being launched" in done.err
    assert end in done.err
    assert not run_dir.stop_file.exists()
