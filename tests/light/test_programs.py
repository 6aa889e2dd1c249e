"""Starting engine programs: their events, answers, errors and codes come back, whatever the program is."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import StokerError, StokerErrors
from stoker.launch import programs
from stoker.rundir.layout import RunDir

WRITES = """
import sys
from pathlib import Path
from stoker.errors import StokerError, StokerErrors
from stoker.engine import program
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir

def main(path):
    log = EventLog(RunDir(path).events_file)
    log.write("prepare", done_rows=1)
    log.close()
    {body}

sys.exit(program.run(main))
"""


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr(programs, "check_engine", lambda: None)
    return RunDir(tmp_path)


def stand_in(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Let every engine program be this one."""
    code = WRITES.replace("{body}", body)

    def command(program: str, folder: Path, *arguments: str) -> list[str]:
        named = f"import sys; sys.argv[0] = '{program}.py'\n"
        return [sys.executable, "-X", "utf8", "-c", named + code, str(folder), *arguments]

    monkeypatch.setattr(programs, "_command", command)


def test_events_of_this_start_are_passed_on_and_the_code_is_returned(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir.events_file.write_text('{"event": "old"}\n', encoding="utf-8")
    stand_in(monkeypatch, "return 75")
    seen: list[Any] = []
    assert programs.run_engine("prepare", run_dir, seen.append) == 75
    assert [event["event"] for event in seen] == ["prepare"]


def test_every_error_the_program_wrote_down_is_raised(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir.events_file.write_text('{"event": "error", "error": {"code": "STK206", "where": "", "fields": {}}}\n')
    stand_in(monkeypatch, "raise StokerErrors([StokerError('STK302', 'a:1', reason='x'), StokerError('STK206')])")
    with pytest.raises(StokerErrors) as caught:
        programs.run_engine("prepare", run_dir, lambda _: None)
    assert [(error.code, error.where) for error in caught.value.errors] == [("STK302", "a:1"), ("STK206", "")]


def error(program: str, code: str) -> dict[str, Any]:
    fields = dict.fromkeys(("name", "folder", "reason", "needed", "spent"), "1")
    return {"event": "error", "program": program, "error": {"code": code, "where": "", "fields": fields}}


STEP: dict[str, Any] = {"event": "step", "step": 7}
RESTART: dict[str, Any] = {"event": "restart", "attempt": 1}


@pytest.mark.parametrize(
    ("program", "written", "raised"),
    [
        ("evaluate", [error("evaluate", "STK503"), STEP], ["STK503"]),
        ("evaluate", [error("evaluate", "STK503"), error("train", "STK422"), RESTART], ["STK503"]),
        ("evaluate", [error("train", "STK422")], ["STK409"]),
        ("train", [error("train", "STK422"), RESTART, STEP, error("train", "STK403")], ["STK403"]),
        ("train", [STEP, error("supervisor", "STK670"), error("evaluate", "STK503")], ["STK670"]),
    ],
)
def test_an_error_is_its_programs_whatever_a_training_writes_meanwhile(
    run_dir: RunDir, program: str, written: list[dict[str, Any]], raised: list[str]
) -> None:
    before = json.dumps(error(program, "STK206")) + "\n"
    run_dir.events_file.write_text(before + "".join(f"{json.dumps(one)}\n" for one in written), encoding="utf-8")
    with pytest.raises(StokerError) as caught:
        programs.raise_engine_error(program, run_dir, 1, len(before))
    assert [one.code for one in caught.value.errors] == raised


@pytest.mark.parametrize(("body", "code"), [("raise KeyError('x')", 2), ("import os; os._exit(9)", 9)])
def test_a_surprise_names_the_log(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, body: str, code: int) -> None:
    stand_in(monkeypatch, body)
    with pytest.raises(StokerError) as caught:
        programs.run_engine("prepare", run_dir, lambda _: None)
    assert (caught.value.code, caught.value.fields["exit_code"]) == ("STK409", code)
    log = run_dir.logs / "prepare.log"
    assert caught.value.fields["log"] == log
    assert ("KeyError: 'x'" in log.read_text(encoding="utf-8")) == (code == 2)


def test_an_answer_comes_back_in_any_script(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "sys.stdout.write('列车 🎉 ' + sys.argv[2]); return 0")
    assert programs.ask_engine("show", run_dir, "3") == "列车 🎉 3"


def test_a_program_that_is_left_is_ended(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "import time; time.sleep(600)")
    with programs.open_engine("chat", run_dir) as process:
        assert process.poll() is None
    assert process.poll() is not None


def test_missing_packages_are_named_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in ("torch", "numpy") else object())
    with pytest.raises(StokerError) as caught:
        programs.run_engine("prepare", RunDir(tmp_path), lambda _: None)
    assert (caught.value.code, caught.value.fields["missing"]) == ("STK406", ["torch", "numpy"])
