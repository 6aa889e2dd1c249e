"""How programs of ours are started."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.supervise import starting

TELLS = (
    "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ.get('X'), os.getsid(0), sys.flags.utf8_mode]))"
)


def test_a_command_is_a_module_of_this_interpreter_in_utf8() -> None:
    line = starting.command("stoker", "push", Path("a b"), 3)
    assert line == [sys.executable, "-X", "utf8", "-m", "stoker", "push", "a b", "3"]


@pytest.mark.skipif(os.name == "nt", reason="asks for its session")
@pytest.mark.parametrize("detached", [True, False])
def test_output_is_appended_and_a_detached_program_has_a_session_of_its_own(tmp_path: Path, detached: bool) -> None:
    log = tmp_path / "logs" / "x.log"
    for _ in range(2):
        started = starting.start(starting.python("-c", TELLS, "词"), log, {"X": "1"}, detached=detached)
        assert started.wait(30) == 0
    first, second = (json.loads(line) for line in log.read_text(encoding="utf-8").splitlines())
    assert first[:2] == second[:2] == [["词"], "1"]
    assert first[3] == 1
    assert (first[2] != os.getsid(0)) == detached


def test_without_a_log_it_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert starting.start(starting.python("-c", "print('x')"), None, detached=False).wait(30) == 0
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("module", ["supervisor", "processes", "wire", "spot_notices"])
def test_the_room_loads_the_standard_library_only(module: str) -> None:
    """Where no package is installed the supervisor works; `-S` has none, so that an import would fail."""
    source = Path(starting.__file__).parents[2]
    program = f"import sys; sys.path.insert(0, {str(source)!r}); import stoker.supervise.{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded - {"stoker", "__main__", "__mp_main__"} <= sys.stdlib_module_names
