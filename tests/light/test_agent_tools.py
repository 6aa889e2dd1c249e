"""`stoker mcp` as an agent meets it: a few tasks of benchmarks/agents.py, and a stdout that is the protocol's alone.

All tasks, with trainings, are in tests/nightly/engine/test_agents.py.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import agents

from stoker.agents import consent, mcp_server, own_commands
from stoker.agents.error_schema import ToolAnswer

SHORT = (
    "several_mistakes_at_once",
    "start_without_a_plan",
    "start_with_a_made_up_digest",
    "start_without_a_budget",
)


@pytest.mark.parametrize("name", SHORT)
def test_a_task_is_solved_by_fields_and_nothing_is_started(name: str) -> None:
    found = anyio.run(agents.done, name)
    assert (found["reached"], found["reason"], found["starts"]) == (True, "", [])


def test_a_start_would_be_seen(tmp_path: Path) -> None:
    events = tmp_path / "runs" / "run" / "events.jsonl"
    events.parent.mkdir(parents=True)
    events.write_text('{"event": "prepared"}\n', encoding="utf-8")
    assert agents._starts(tmp_path) == []
    events.write_text('{"event": "attempt"}\n', encoding="utf-8")
    assert agents._starts(tmp_path) == ["run"]


def test_there_are_thirty_tasks_and_every_wrong_start_is_among_them() -> None:
    assert len(agents.TASKS) >= 30
    refused = [name for name, (_, needs_torch) in agents.TASKS.items() if name.startswith(("start_", "budget_"))]
    assert len(refused) >= 7


RUN = """model: {shape: llama, layers: 2, width: 64, heads: 2, vocab: 300}
tokenizer: t
data: {train: a.txt}
train: {objective: pretrain, steps: 5}
where: {place: ssh, host: nobody}
"""


@pytest.mark.parametrize("swapped", [False, True])
def test_a_run_file_that_is_swapped_after_the_agreement_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    path = tmp_path / "run.yaml"
    path.write_text(RUN, encoding="utf-8")
    plan = dict.fromkeys(consent._FIGURES, "") | {"time_seconds": 1.0}
    asked = mcp_server.ReadRun.of("run.yaml", {}, None)
    real = own_commands.answer

    async def answer(*words: str, agreed: str = "") -> ToolAnswer:
        if words[0] == "plan":  # of a machine that is not there
            return ToolAnswer(ok=True, exit_code=0, result=plan)
        if swapped:
            path.write_text(RUN.replace("steps: 5", "steps: 5000000"), encoding="utf-8")
        return await real(*words, agreed=agreed)

    monkeypatch.setattr(own_commands, "answer", answer)
    digest = consent.digest(asked.run_file, asked.place, plan)
    found = anyio.run(mcp_server._started, asked, digest, consent.AgreedBudget(time="1h"))
    assert not found.ok
    assert found.error is not None
    assert found.error.code == ("STK467" if swapped else "STK720")  # nobody added that machine
    assert not (tmp_path / "runs").exists()


def test_stdout_is_the_protocols_alone(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("model: [\n", encoding="utf-8")
    client = {"clientInfo": {"name": "test", "version": "0"}, "capabilities": {}, "protocolVersion": "2025-06-18"}
    said = [
        {"id": 1, "method": "initialize", "params": client},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
        {"id": 3, "method": "tools/call", "params": {"name": "plan", "arguments": {"run": "run.yaml"}}},
        {"id": 4, "method": "tools/call", "params": {"name": "doctor", "arguments": {}}},
    ]
    settings = {**os.environ, "STOKER_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, "-m", "stoker", "mcp"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, cwd=tmp_path, env=settings, text=True, **pipes) as server:
        answers = {}
        for one in said:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **one}) + "\n")
            server.stdin.flush()
            while "id" in one and one["id"] not in answers:
                heard = json.loads(server.stdout.readline())
                assert heard["jsonrpc"] == "2.0"
                answers[heard.get("id")] = heard
        server.stdin.close()
        assert server.stdout.read() == ""
    tools = {tool["name"]: tool for tool in answers[2]["result"]["tools"]}
    assert {"plan", "prepare", "train", "watch", "stop", "verify", "export", "models"} <= set(tools)
    assert all(tool["description"] and tool["outputSchema"] for tool in tools.values())
    assert "plan_digest" in tools["train"]["inputSchema"]["properties"]
    refused = answers[3]["result"]
    assert refused["isError"]
    assert refused["structuredContent"]["error"]["code"] == "STK102"
    assert json.loads(refused["content"][0]["text"]) == refused["structuredContent"]
    assert answers[4]["result"]["structuredContent"]["ok"]
