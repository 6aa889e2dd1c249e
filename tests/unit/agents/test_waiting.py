"""An agent that waits for a run costs the machine that trains next to nothing, and hears of the end at once."""

from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest
from made_runs import make_run

from stoker.agents import mcp_server, own_commands
from stoker.agents.error_schema import ToolAnswer
from stoker.launch import training
from stoker.rundir import last_known

MOST = 60


class Clock:
    """Time that passes while one sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(mcp_server, "time", found)
    monkeypatch.setattr(mcp_server, "anyio", found)
    return found


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("end", [40.0, 1000.0])
def test_a_run_is_asked_about_every_quarter_of_a_minute_and_its_end_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock, end: float, *, here: bool
) -> None:
    asked = []

    async def answer(*words: str) -> ToolAnswer:
        asked.append(words)
        return ToolAnswer(ok=True, exit_code=0, result={"state": "running" if clock.now < end else "done"})

    monkeypatch.setenv("STOKER_RUNS", str(tmp_path))
    monkeypatch.setattr(own_commands, "answer", answer)
    monkeypatch.setattr(training, "is_running", lambda _: here and clock.now < end)
    # Of a run elsewhere the files here say little: how they look is no reason to ask sooner.
    known = None if here else SimpleNamespace(shown_state="done")
    monkeypatch.setattr(last_known, "read", lambda _: known)
    make_run(tmp_path, "night")
    found = anyio.run(mcp_server.watch, "night", MOST)
    assert set(asked) == {("watch", "night")}
    assert len(asked) <= 1 + MOST // 15
    assert clock.now == min(MOST, end if here or end > MOST else 45)
    assert found.structured_content["result"]["state"] == ("done" if end < MOST else "running")
