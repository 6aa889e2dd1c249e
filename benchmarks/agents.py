"""A scripted agent and `stoker mcp`: thirty tasks, each to its right end by the fields of answers alone.

    python benchmarks/agents.py                      all tasks; writes docs/evidence/agents.json
    python benchmarks/agents.py --light              those that train nothing; the others keep what was found before
    python benchmarks/agents.py --only bad_rows      one of them again

The agent knows what the guide says of codes (`MENDED`), and reads `code`, `file`, `line`, `key`, `choices`, `fields`
and `result`. It never looks into a sentence: in Chinese (`--language zh`) it does the same. Every way to start a
training that should be refused is tried, too; a run directory with an attempt in it would be a start.
"""

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from stoker.agents.error_schema import ToolAnswer

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "docs" / "evidence" / "agents.json"
RUN = """\
model: {shape: llama, layers: 1, width: 32, heads: 2, vocab: 300}
tokenizer: {train: bpe, vocab: 300}
data:
  train: text.txt
  length: 32
  rows: 24
  tokens: 800
train:
  objective: pretrain
  steps: 8
  batch: 4
save: {every: 2 steps}
"""
TEXT = "".join(
    f"the {who} stoker feeds the fire of the {what} engine and keeps it going through the night\n"
    for who in ("old", "young", "tall", "quiet", "brave", "tired")
    for what in ("red", "black", "great", "small")
)
MOST_TRIES = 6
BUDGET = {"budget_time": "10m"}
WAIT_SECONDS = 400
LONG_STEPS = 1500
"""Long enough to be stopped on the way, a minute or two on a laptop."""
HIDDEN_TORCH = 'import sys\n\nsys.modules["torch"] = None\n'


# ---- the agent


@dataclass
class Agent:
    """A client of one server, and what it has done."""

    client: Client
    folder: Path
    calls: list[dict[str, Any]] = field(default_factory=list)

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The structured answer of a tool; one that does not keep to its schema ends the task."""
        answered = await self.client.call_tool(tool, arguments)
        answer: dict[str, Any] = answered.structured_content
        ToolAnswer.model_validate(answer)
        assert answered.is_error is not answer["ok"]
        code = answer["error"]["code"] if answer["error"] else None
        self.calls.append({"tool": tool, "code": code})
        return answer

    async def solved(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call until it works, mending what each error names."""
        for _ in range(MOST_TRIES):
            answer = await self.call(tool, **arguments)
            if answer["ok"]:
                return answer
            for one in sorted(answer["error"]["errors"] or [answer["error"]], key=lambda one: -(one["line"] or 0)):
                arguments |= MENDED[one["code"]](self.folder, one) or {}
        raise AssertionError(f"not solved: {self.calls}")

    async def started(self, run: str = "run.yaml", **overrides: Any) -> dict[str, Any]:
        """Show the plan, then start it within the budget; what an error says to call first is called."""
        arguments: dict[str, Any] = {"run": run, "overrides": overrides, **BUDGET}
        for _ in range(MOST_TRIES):
            answer = await self.call("train", **arguments)
            if answer["ok"]:
                return answer
            asked = {key: arguments[key] for key in ("run", "overrides")}
            arguments["plan_digest"] = (await self.call(answer["error"]["fields"]["call"], **asked))["digest"]
        raise AssertionError(f"not started: {self.calls}")

    async def until(self, *states: str, step: int = 0, name: str = "run") -> dict[str, Any]:
        """Watch until the run is in one of these states, or at a step."""
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            seen = (await self.call("watch", name=name, wait_seconds=0 if step else 5))["result"]
            if seen["state"] in states or (step and seen["step"] >= step):
                return seen
            await anyio.sleep(0.2)
        raise AssertionError(f"{states} not reached: {seen}")


def _change(folder: Path, error: dict[str, Any], old: str, new: str) -> None:
    """In the line that the error names, else in the whole run file."""
    path = folder / (error["file"] or "run.yaml")
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    span = range(error["line"] - 1, error["line"]) if error["line"] else range(len(lines))
    for number in span:
        lines[number] = lines[number].replace(old, new, 1)
    path.write_text("".join(lines), encoding="utf-8")


def _delete_line(folder: Path, error: dict[str, Any]) -> None:
    path = folder / error["file"]
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    del lines[error["line"] - 1]
    path.write_text("".join(lines), encoding="utf-8")


def _rename_key(folder: Path, error: dict[str, Any]) -> None:
    if not error["choices"]:
        _delete_line(folder, error)
        return
    _change(folder, error, error["key"].rpartition(".")[2], error["choices"][0].rpartition(".")[2])


def _choose(folder: Path, error: dict[str, Any]) -> None:
    _change(folder, error, error["fields"]["given"].strip("`"), error["choices"][0])


def _to_limit(folder: Path, error: dict[str, Any]) -> None:
    _change(folder, error, error["fields"]["given"].strip("`"), error["fields"]["limit"].split()[-1])


def _give(argument: str) -> Callable[[Path, dict[str, Any]], dict[str, Any]]:
    return lambda _, error: {argument: error["choices"][0]}


MENDED: dict[str, Callable[[Path, dict[str, Any]], dict[str, Any] | None]] = {
    "STK101": _give("run"),
    "STK102": _delete_line,
    "STK103": _delete_line,
    "STK104": _rename_key,
    "STK105": lambda _, error: {"overrides": {error["key"]: error["choices"][0]}},
    "STK106": _choose,
    "STK107": _to_limit,
    "STK108": _choose,
    "STK109": _choose,
    "STK155": _choose,
    "STK203": _give("card"),
    "STK205": lambda folder, error: _change(folder, error, error["fields"]["model"], error["choices"][0]),
    "STK301": lambda folder, error: _change(folder, error, error["fields"]["path"], error["choices"][0]),
    "STK302": _delete_line,
    "STK501": _give("name"),
}
"""What the agent does about a code. It changes a file, or an argument of the next call."""


# ---- tasks

Task = Callable[[Agent], Awaitable[None]]
TASKS: dict[str, tuple[Task, bool]] = {}
"""By name: the task, and whether it needs torch."""


def task(function: Task) -> Task:
    TASKS[function.__name__] = (function, False)
    return function


def heavy(function: Task) -> Task:
    TASKS[function.__name__] = (function, True)
    return function


async def _planned_after(agent: Agent, old: str, new: str, code: str) -> None:
    """A mistake in the run file is met, mended, and the plan is made."""
    (agent.folder / "run.yaml").write_text(RUN.replace(old, new), encoding="utf-8")
    answer = await agent.solved("plan", run="run.yaml")
    assert answer["result"]["fits"] == "yes"
    assert code in [call["code"] for call in agent.calls]


MISTAKES = {
    "broken_yaml": ("  steps: 8\n", "  steps: 8\n\t eval_every: 2\n", "STK102"),
    "unknown_key": ("  steps: 8\n", "  stepps: 8\n", "STK104"),
    "key_of_another_tool": ("  steps: 8\n", "  steps: 8\n  zzz_unheard_of: true\n", "STK104"),
    "key_twice": ("  batch: 4\n", "  batch: 4\n  batch: 8\n", "STK103"),
    "wrong_choice": ("  batch: 4\n", "  batch: 4\n  schedule: cosin\n", "STK108"),
    "wrong_type": ("  batch: 4\n", "  batch: 4\n  learning_rate: fast\n", "STK106"),
    "unreadable_value": ("every: 2 steps", "every: sometimes", "STK109"),
    "out_of_range": ("steps: 8", "steps: 0", "STK107"),
    "full_width_digits": ("steps: 8", "steps: ８", "STK155"),
}
"""By task: a part of the run file, what is written in its place, and the code of the answer."""


def _mistake(old: str, new: str, code: str) -> Task:
    return lambda agent: _planned_after(agent, old, new, code)


TASKS |= {name: (_mistake(*mistake), False) for name, mistake in MISTAKES.items()}


@task
async def several_mistakes_at_once(agent: Agent) -> None:
    await _planned_after(agent, "  steps: 8\n  batch: 4\n", "  stepps: 8\n  batch: 0\n  schedule: linaer\n", "STK104")
    assert len(agent.calls) == 2, "all of them were told at once"


@task
async def wrong_run_file(agent: Agent) -> None:
    answer = await agent.solved("plan", run="rnu.yaml")
    assert answer["result"]["name"] == "run"


@task
async def wrong_data_path(agent: Agent) -> None:
    (agent.folder / "run.yaml").write_text(
        RUN.replace("text.txt", "txet.txt").replace("  rows: 24\n  tokens: 800\n", "")
        .replace("model: {shape: llama, layers: 1, width: 32, heads: 2, vocab: 300}", "model: Qwen/Qwen2.5-0.5B")
        .replace("tokenizer: {train: bpe, vocab: 300}\n", ""),
        encoding="utf-8",
    )  # fmt: skip
    answer = await agent.solved("plan", run="run.yaml", card="RTX4090")
    assert answer["result"]["fits"] == "yes"


@task
async def wrong_model(agent: Agent) -> None:
    text = RUN.replace("model: {shape: llama, layers: 1, width: 32, heads: 2, vocab: 300}", "model: Qwen/Qwen2.5-0.5")
    text = text.replace("tokenizer: {train: bpe, vocab: 300}\n", "")
    (agent.folder / "run.yaml").write_text(text, encoding="utf-8")
    await agent.solved("plan", run="run.yaml", card="RTX4090")
    assert "STK205" in [call["code"] for call in agent.calls]


@task
async def unknown_card(agent: Agent) -> None:
    answer = await agent.solved("plan", run="run.yaml", card="RTX490")
    assert "4090" in answer["result"]["card"]


@task
async def too_large_for_a_small_card(agent: Agent) -> None:
    asked = {"run": "lora_qwen2.5_7b_rank64", "card": "RTX3060"}
    plan = (await agent.call("plan", **asked))["result"]
    assert plan["fits"] == "no"
    other = next(change["row"]["card"] for change in plan["changes"] if change["kind"] == "card")
    assert (await agent.call("plan", **asked | {"card": other}))["result"]["fits"] != "no"


@task
async def card_within_a_budget(agent: Agent) -> None:
    table = await agent.call("compare", run="lora_qwen2.5_7b_rank64", budget="30USD")
    card = table["result"]["recommended"]["card"]
    assert (await agent.call("plan", run="lora_qwen2.5_7b_rank64", card=card))["result"]["fits"] != "no"


@task
async def unknown_run(agent: Agent) -> None:
    _run_directory(agent.folder, "medical")
    answer = await agent.solved("watch", name="medcal")
    assert answer["result"]["name"] == "medical"


@task
async def unknown_host(agent: Agent) -> None:
    _host(agent.folder, "box1")
    answer = await agent.call("plan", run="run.yaml", on="box2")
    assert answer["error"]["code"] == "STK720"
    assert answer["error"]["choices"] == ["box1"]


@task
async def dead_box(agent: Agent) -> None:
    _host(agent.folder, "box1")
    answer = await agent.call("plan", run="run.yaml", on="box1")
    assert (answer["error"]["code"], answer["digest"]) == ("STK723", None)
    assert not (await agent.call("train", run="run.yaml", on="box1", plan_digest="0" * 64, **BUDGET))["ok"]
    assert not _starts(agent.folder)


@task
async def missing_package(agent: Agent) -> None:
    async with server(agent.folder, PYTHONPATH=_without_torch(agent.folder)) as client:
        poor = Agent(client, agent.folder, agent.calls)
        answer = await poor.call("prepare", run="run.yaml")
        assert (answer["error"]["code"], answer["error"]["fields"]["missing"]) == ("STK406", ["torch"])
        assert (await poor.call("plan", run="run.yaml", card="RTX4090"))["ok"], "a plan needs none of it"


@task
async def model_family(agent: Agent) -> None:
    assert (await agent.call("models", name="Qwen/Qwen2.5-0.5B"))["ok"]
    assert (await agent.call("doctor"))["result"]


@task
async def unfinished_run_is_not_exported(agent: Agent) -> None:
    _run_directory(agent.folder, "medical")
    answer = await agent.call("export", name="medical")
    assert not answer["ok"]
    assert (await agent.call("runs"))["result"][0]["state"] == "new"


# ---- starts that must be refused


async def _refused(agent: Agent, code: str, **arguments: Any) -> None:
    answer = await agent.call("train", **{"run": "run.yaml", **arguments})
    assert answer["error"]["code"] == code, answer
    assert not _starts(agent.folder)


async def _digest(agent: Agent, **arguments: Any) -> str:
    return str((await agent.call("plan", **{"run": "run.yaml", **arguments}))["digest"])


@task
async def start_without_a_plan(agent: Agent) -> None:
    await _refused(agent, "STK552", **BUDGET)
    await _refused(agent, "STK552")
    await _refused(agent, "STK552", plan_digest="", budget_money="5USD")


@task
async def start_with_a_made_up_digest(agent: Agent) -> None:
    await _refused(agent, "STK553", plan_digest="0" * 64, **BUDGET)
    await _refused(agent, "STK553", plan_digest="run.yaml", **BUDGET)


@task
async def start_with_the_digest_of_another_plan(agent: Agent) -> None:
    shown = await _digest(agent)
    await _refused(agent, "STK553", plan_digest=shown, overrides={"train.steps": 80}, **BUDGET)
    await _refused(agent, "STK553", run="scratch_tiny", plan_digest=shown, **BUDGET)
    other = await _digest(agent, overrides={"train.steps": 80})
    await _refused(agent, "STK553", plan_digest=other, **BUDGET)


@task
async def start_after_the_file_was_edited(agent: Agent) -> None:
    shown = await _digest(agent)
    (agent.folder / "run.yaml").write_text(RUN.replace("batch: 4", "batch: 8"), encoding="utf-8")
    await _refused(agent, "STK553", plan_digest=shown, **BUDGET)
    assert await _digest(agent) != shown


@task
async def start_without_a_budget(agent: Agent) -> None:
    shown = await _digest(agent)
    await _refused(agent, "STK554", plan_digest=shown)
    await _refused(agent, "STK109", plan_digest=shown, budget_time="a while")
    await _refused(agent, "STK109", plan_digest=shown, budget_money="little")


@task
async def budget_exceeded(agent: Agent) -> None:
    large = {"overrides": {"train.steps": 10**7}}
    await _refused(agent, "STK555", plan_digest=await _digest(agent, **large), **large, **BUDGET)
    assert agent.calls[-1]["code"] == "STK555"


@task
async def budget_in_money(agent: Agent) -> None:
    await _refused(agent, "STK671", plan_digest=await _digest(agent), budget_money="5USD")
    paid = {"overrides": {"train.steps": 10**6, "where.price": "2.5 USD/h"}}
    shown = await _digest(agent, **paid)
    await _refused(agent, "STK555", plan_digest=shown, budget_money="0.01USD", **paid)
    await _refused(agent, "STK671", plan_digest=shown, budget_money="5CNY", **paid)


# ---- with torch


@heavy
async def bad_rows(agent: Agent) -> None:
    rows = [json.dumps({"text": line}) for line in TEXT.splitlines()]
    (agent.folder / "rows.jsonl").write_text("\n".join([rows[0], "{broken", *rows[1:]]) + "\n", encoding="utf-8")
    (agent.folder / "run.yaml").write_text(RUN.replace("text.txt", "rows.jsonl"), encoding="utf-8")
    report = (await agent.solved("prepare", run="run.yaml"))["result"]
    assert (report["rows_read"], report["bad_rows"]) == (len(rows), 0)


@heavy
async def from_a_run_file_to_a_model(agent: Agent) -> None:
    await agent.call("plan", run="run.yaml")
    await agent.call("prepare", run="run.yaml")
    assert (await agent.started())["result"]["state"] == "running"
    await agent.until("done")
    checked = (await agent.call("verify", name="run"))["result"]
    assert all(one["verified"] for one in checked["local"])
    (agent.folder / "mine").mkdir()
    (agent.folder / "mine" / "notes.txt").touch()
    refused = await agent.call("export", name="run", folder="mine")
    assert refused["error"]["code"] == "STK616"
    exported = (await agent.call("export", name="run", folder="model"))["result"]
    assert exported["parity"]["accepted"]
    assert (await agent.started())["result"]["state"] == "done", "a finished run is not trained again"
    edited = {"train.learning_rate": 0.01}
    shown = await _digest(agent, overrides=edited)
    again = await agent.call("train", run="run.yaml", overrides=edited, plan_digest=shown, **BUDGET)
    assert again["error"]["code"] == "STK401"
    assert (await agent.call("plan", run="run.yaml", overrides={**edited, "name": "other"}))["ok"]


@heavy
async def stop_and_resume_past_a_damaged_checkpoint(agent: Agent) -> None:
    text = RUN.replace("steps: 8", f"steps: {LONG_STEPS}").replace("every: 2 steps", "every: 50 steps")
    (agent.folder / "run.yaml").write_text(text, encoding="utf-8")
    await agent.started()
    seen = await agent.until("failed", "done", step=50)
    shown = await _digest(agent)
    again = await agent.call("train", run="run.yaml", plan_digest=shown, **BUDGET)
    assert again["error"]["code"] in ("STK411", "STK553"), again  # it runs, or has got on since the plan
    stopped = (await agent.call("stop", name="run"))["result"]
    assert stopped["was_running"], seen
    assert stopped["state"] in ("stopped", "done")
    newest = max((agent.folder / "runs" / "run" / "checkpoints").glob("step-*"))
    weights = next(newest.glob("*.safetensors"))
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    damaged = await agent.call("verify", name="run")
    wrong = [one["folder"] for one in damaged["result"]["local"] if not one["verified"]]
    assert (damaged["error"]["code"], wrong) == ("STK662", [newest.name])
    await agent.started()
    assert (await agent.until("done", "failed"))["step"] == LONG_STEPS
    log = await agent.call("logs", name="run", lines=5)
    assert len(log["result"]["lines"]) <= 5


@heavy
async def training_that_fails(agent: Agent) -> None:
    wild = {"train.learning_rate": 1, "train.spike": 1.05, "train.steps": 60}
    await agent.started(**wild)
    seen = await agent.until("failed", "done")
    assert (seen["state"], seen["error"]["code"]) == ("failed", "STK672")
    tame = {**wild, "train.learning_rate": 0.001, "name": "tamer"}
    assert (await agent.call("plan", run="run.yaml", overrides=tame))["digest"]


# ---- surroundings


def _starts(folder: Path) -> list[str]:
    """Runs that were attempted."""
    events = (folder / "runs").glob("*/events.jsonl") if (folder / "runs").is_dir() else ()
    return [path.parent.name for path in events if '"attempt"' in path.read_text(encoding="utf-8")]


def _run_directory(folder: Path, name: str) -> None:
    """A run that was never trained."""
    path = folder / "runs" / name
    path.mkdir(parents=True)
    manifest = {"format": 1, "name": name, "created": "2026-11-15T02:19:00+00:00", "stoker_version": "0.1.0"}
    manifest |= {"run_file": "run.yaml", "overrides": [], "folder": str(folder)}
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (path / "run.yaml").write_text(RUN, encoding="utf-8")


def _host(folder: Path, name: str) -> None:
    """A host whose machine is switched off: nothing listens there."""
    from stoker.hosts import known

    os.environ["STOKER_HOME"] = str(folder / "home")
    known.save(known.parse(name, "ssh://root@127.0.0.1:9").model_copy(update={"fingerprint": "SHA256:none"}))
    known.pin(name, ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"])


def _without_torch(folder: Path) -> str:
    path = folder / "hidden"
    path.mkdir()
    (path / "sitecustomize.py").write_text(HIDDEN_TORCH, encoding="utf-8")
    return os.pathsep.join(filter(None, (str(path), os.environ.get("PYTHONPATH"))))


@asynccontextmanager
async def server(folder: Path, language: str = "en", **environment: str) -> Any:
    """A server in a folder, with a home of its own."""
    own = {"STOKER_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1", "STOKER_LANG": language, "OMP_NUM_THREADS": "1"}
    settings = {**os.environ, **own, **environment}
    settings.pop("STOKER_RUNS", None)
    words = StdioServerParameters(command=sys.executable, args=["-m", "stoker", "mcp"], env=settings, cwd=folder)
    with (folder / "mcp.log").open("a", encoding="utf-8") as log:
        async with Client(stdio_client(words, errlog=log)) as client:
            yield client


async def done(name: str, language: str = "en") -> dict[str, Any]:
    """Do one task in a folder of its own."""
    function, needs_torch = TASKS[name]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="agents-") as made:
        folder = Path(made)
        (folder / "run.yaml").write_text(RUN, encoding="utf-8")
        (folder / "text.txt").write_text(TEXT, encoding="utf-8")
        async with server(folder, language) as client:
            agent = Agent(client, folder)
            try:
                await function(agent)
                reason = ""
            except Exception as error:  # noqa: BLE001  # whatever goes wrong is the task's result
                reason = f"{type(error).__name__}: {error}"
            starts = _starts(folder)
    codes = list(dict.fromkeys(call["code"] for call in agent.calls if call["code"]))
    return {
        "task": name,
        "reached": not reason,
        "reason": reason,
        "calls": len(agent.calls),
        "codes": codes,
        "refused_starts": sum(call["tool"] == "train" and call["code"] is not None for call in agent.calls),
        "trains": needs_torch,
        "starts": starts,
        "seconds": round(time.monotonic() - began, 1),
    }


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts of what was reached, and of what was started although nothing should have been."""
    light = [one for one in found if not one["trains"]]
    return {
        "tasks": len(found),
        "reached": sum(one["reached"] for one in found),
        "calls": sum(one["calls"] for one in found),
        "codes": len({code for one in found for code in one["codes"]}),
        "refused_starts": sum(one.get("refused_starts", 0) for one in found),
        "starts_without_plan_and_budget": sum(len(one["starts"]) for one in light),
    }


def _written(found: list[dict[str, Any]], language: str) -> list[dict[str, Any]]:
    """Write the report; tasks that were not done now keep what was found before."""
    before = json.loads(EVIDENCE.read_text(encoding="utf-8"))["of"] if EVIDENCE.exists() else []
    known = {one["task"]: one for one in [*before, *found]}
    whole = [known[name] for name in TASKS if name in known]
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    report = {"date": today, "language": language, **summary(whole), "of": whole}
    EVIDENCE.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return whole


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--language", default="en")
    asked = parser.parse_args()
    names = [name for name, (_, needs) in TASKS.items() if asked.only in name and not (asked.light and needs)]
    found = []
    for name in names:
        found.append(anyio.run(done, name, asked.language))
        print(f"{'reached' if found[-1]['reached'] else 'FAILED ':7} {name:45} {found[-1]['seconds']:6} s  "
              f"{found[-1]['codes']} {found[-1]['reason']}", flush=True)  # fmt: skip
    counts = summary(_written(found, asked.language))
    print(json.dumps(counts))
    sys.exit(counts["reached"] != counts["tasks"] or counts["starts_without_plan_and_budget"] != 0)


if __name__ == "__main__":
    main()
