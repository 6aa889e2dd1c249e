"""Functions that reach for what is not theirs: in the sandbox they do not get it; without one they do."""

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.config.rewards import Reward
from stoker.errors import StokerError
from stoker.rewards import sandbox, scorer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux'")
HERE = Path(__file__).parent


def score(function: str, isolation: str, **row: Any) -> scorer.Score:
    reward = Reward.model_validate({"function": f"reward_functions.py:{function}", "isolation": isolation})
    with scorer.opened([reward], HERE) as scored:
        [found] = scored([scorer.Sample("a question", "an answer", row)])
        return found


def test_the_sandbox_holds_on_this_machine() -> None:
    """Not skipped where it does not: what follows would not be tested, and CI installs bubblewrap."""
    assert sandbox.trial() == ""


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def at_home() -> Iterator[Path]:
    """A secret in the home folder of whoever runs this."""
    with tempfile.NamedTemporaryFile("w", dir=Path.home(), prefix=".stoker-test-") as file:
        file.write("secret")
        file.flush()
        yield Path(file.name)


def test_the_network_is_out_of_reach(port: int) -> None:
    assert "ConnectionRefusedError" in str(score("connects", "sandbox", port=port).error)
    assert score("connects", "none", port=port).value == 1, "the control"


def test_files_at_home_are_out_of_reach(at_home: Path) -> None:
    assert "FileNotFoundError" in str(score("reads", "sandbox", path=str(at_home)).error)
    assert score("reads", "none", path=str(at_home)).value == len("secret"), "the control"


def test_nothing_outside_is_written(tmp_path: Path) -> None:
    target = tmp_path / "target"
    assert "FileNotFoundError" in str(score("writes", "sandbox", path=str(target)).error)
    assert not target.exists()
    assert score("writes", "none", path=str(target)).value == 1, "the control"
    assert target.exists()


@pytest.mark.parametrize("path", ["/usr/x", "/x", "/dev/x", f"{sys.prefix}/x"])
def test_what_is_seen_is_read_only(path: str) -> None:
    assert "Read-only file system" in str(score("writes", "sandbox", path=path).error)


def test_a_scratch_folder_can_be_written_and_has_an_end() -> None:
    assert score("scratches", "sandbox").value == len("here")
    assert "No space left" in str(score("fills_scratch", "sandbox").error)


def test_keys_in_the_environment_are_not_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert score("environment", "sandbox", name="AWS_SECRET_ACCESS_KEY").value == 0
    assert score("environment", "none", name="AWS_SECRET_ACCESS_KEY").value == 1, "the control"


def test_processes_have_a_limit() -> None:
    assert score("counts_forks", "sandbox").value < sandbox.PROCESSES


def test_nothing_is_left_behind() -> None:
    word = uuid.uuid4().hex
    assert score("stays_behind", "sandbox", word=word).value == 1
    assert not running(word)
    assert score("stays_behind", "none", word=word).value == 1
    left = running(word)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert len(left) == 1, "the control"


def running(word: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


# ---- machines without one


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str | None) -> None:
    """A PATH with nothing on it but a `bwrap` of ours, or none."""
    folder.mkdir()
    if script is not None:
        tool = folder / "bwrap"
        tool.write_text(f"#!{shutil.which('bash')}\n{script}\n", encoding="utf-8")
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder))


def refused(function: str = "contains") -> StokerError:
    with pytest.raises(StokerError) as error:
        score(function, "sandbox", answer="a")
    assert error.value.code == "STK460"
    return error.value


def test_without_bubblewrap_a_function_is_refused_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path / "bin", monkeypatch, None)
    error = refused()
    assert "`bwrap`" in error.what
    assert "apt-get install -y bubblewrap" in error.hint
    assert "isolation: none" in error.hint
    assert score("contains", "none", answer="a").value == 1
    reward = Reward.model_validate({"length": {"target": 9}})
    with scorer.opened([reward], HERE) as scored:  # no code but ours: needs none
        assert scored([scorer.Sample("a question", "an answer", {})])[0].value == 1


def test_what_is_shown_is_seen_below_tmp_too_and_nothing_else_of_it(tmp_path: Path) -> None:
    """An environment may have been made there."""
    shown, hidden = tmp_path / "shown", tmp_path / "hidden"
    for path in (shown, hidden):
        path.write_text("seen")
    said = []
    for path in (shown, hidden):
        line = sandbox.command(["/usr/bin/cat", str(path)], sandbox.ProcessLimits(2**31), (shown,))
        said.append(subprocess.run(line, env=sandbox.variables(), capture_output=True, text=True, check=False).stdout)
    assert said == ["seen", ""]


def test_a_home_folder_that_holds_python_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", sys.prefix)
    with pytest.raises(StokerError) as error:
        sandbox.command(["true"], sandbox.ProcessLimits(2**31))
    assert error.value.code == "STK460"
    assert sys.prefix in str(error.value)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sandbox.command(["true"], sandbox.ProcessLimits(2**31))


def test_a_bubblewrap_that_may_not_work_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path / "bin", monkeypatch, "echo 'bwrap: No permissions to create new namespace' >&2; exit 1")
    assert "No permissions to create new namespace" in refused().what


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user is held")
def test_root_in_a_user_namespace_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why root's sandbox has a user id of its own: the process limit does not hold for root, whatever namespace."""
    monkeypatch.setattr(sandbox, "_is_root", lambda: False)
    assert "the number of processes" in sandbox.trial()


def test_a_bubblewrap_that_isolates_nothing_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of `trial`: it looks at what holds, not at whether the program started."""
    run = f'while [ "$1" != "{sys.executable}" ]; do shift; done; exec "$@"'
    stand_in(tmp_path / "bin", monkeypatch, f'[ "$1" = --version ] && exit; {run}')
    said = refused().what
    for door in ("the network", "reading other files", "writing outside its folder", "the number of processes"):
        assert door in said
