"""`stoker chat` whose engine ends: the command says so with its log, and shows no error of an earlier time.

The engine is a stand-in; what is around it is the real command.
"""

import json
import sys
from pathlib import Path

import pytest
from made_runs import CommandLine, make_run

from stoker.launch import programs

DIES = {
    "before it is ready": "import os; os._exit(1)",
    "before it is asked": "import os, sys; os.close(0); say({'ready': True, 'plain': True}); os._exit(1)",
    "while it answers": "say({'ready': True, 'plain': True}); input(); say({'text': 'He'}); os._exit(1)",
    "in the middle of a line": "say({'ready': True, 'plain': True}); input(); say({'text': 'He'}, '', 9); os._exit(1)",
}
SAYS = """
import json, os, sys
def say(line, end="\\n", most=99):
    sys.stdout.write(json.dumps(line)[:most] + end)
    sys.stdout.flush()
"""


@pytest.mark.parametrize("moment", DIES)
def test_an_engine_that_dies_is_an_error_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], moment: str
) -> None:
    run = make_run(tmp_path, "night")
    (run / "artifacts" / "final").mkdir(parents=True)
    (run / "run.yaml").write_text("model: m\ndata: {train: a.jsonl}\n")
    old = {"event": "error", "program": "chat", "error": {"code": "STK206", "where": "", "fields": {}}}
    (run / "events.jsonl").write_text(json.dumps(old) + "\n")
    monkeypatch.setattr(programs, "check_engine", lambda: None)
    monkeypatch.setattr(programs, "_command", lambda *_: [sys.executable, "-c", SAYS + DIES[moment]])
    done = CommandLine(tmp_path, monkeypatch, capsys)("chat", "night", "Hi")
    assert done.code == 1, done.err
    assert "[STK409]" in done.err
    assert "STK206" not in done.err
    assert "logs/chat.log" in "".join(done.err.split())
