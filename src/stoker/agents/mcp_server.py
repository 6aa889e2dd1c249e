"""`stoker mcp`: the commands as tools of the Model Context Protocol, over stdin and stdout.

A tool runs its command in a process of its own and returns what that prints with `--json`. Starting a training needs
the digest of a plan that was shown, and a budget: see `consent`. What tools and parameters are for is in `messages`.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.types import CallToolResult, TextContent
from pydantic import Field

from stoker import __version__, messages
from stoker.agents import consent, own_commands
from stoker.agents.consent import AgreedBudget
from stoker.agents.error_schema import ToolAnswer
from stoker.api.run_progress import RunProgress
from stoker.config import load
from stoker.config.load import RunFile
from stoker.errors import StokerError
from stoker.rundir import layout

_ASK_SECONDS = 15.0
"""How often a run is asked about while one waits: each time is a start of Python on a machine that may be training."""
_LOOK_SECONDS = 1.0
"""How often the files of a run of this machine are looked at meanwhile, by this process."""
_HERE = "local"
"""What `plan --on` and `where.place` call this machine."""
_UNDER_WAY = ("running", "sent", "queued")


def _parameter(key: str, **limits: Any) -> Any:
    return Field(description=messages.text(key), **limits)


_NO_FLAG = "^[^-]"
RunSource: TypeAlias = Annotated[str, _parameter("mcp.parameter.run", pattern=_NO_FLAG)]
RunName: TypeAlias = Annotated[str, _parameter("mcp.parameter.name", pattern=_NO_FLAG)]
Overrides: TypeAlias = Annotated[dict[str, Any] | None, _parameter("mcp.parameter.overrides")]
Host: TypeAlias = Annotated[str | None, _parameter("mcp.parameter.on")]
Answered: TypeAlias = Annotated[CallToolResult, ToolAnswer]


def serve() -> None:
    """Serve until stdin ends."""
    server = MCPServer("stoker", version=__version__, instructions=messages.text("mcp.instructions"))
    for key, tool in _tools().items():
        server.add_tool(tool, description=messages.text(key))
    server.run("stdio")


def _tools() -> dict[str, Callable[..., Awaitable[CallToolResult]]]:
    """Every tool, by the key of the sentence that says what it is for."""
    return {
        "mcp.tool.plan": plan,
        "mcp.tool.compare": compare,
        "mcp.tool.prepare": prepare,
        "mcp.tool.train": train,
        "mcp.tool.watch": watch,
        "mcp.tool.stop": stop,
        "mcp.tool.verify": verify,
        "mcp.tool.export": export,
        "mcp.tool.models": models,
        "mcp.tool.runs": runs,
        "mcp.tool.logs": logs,
        "mcp.tool.doctor": doctor,
    }


async def plan(
    run: RunSource,
    overrides: Overrides = None,
    on: Host = None,
    card: Annotated[str | None, _parameter("mcp.parameter.card")] = None,
) -> Answered:
    """The plan for the place it will be trained at, with its digest; for another card, without one."""
    if card:
        words = ["plan", run, "--card", card, *own_commands.settings(overrides or {})]
        return _reply(await own_commands.answer(*words))
    try:
        return _reply(await _shown(ReadRun.of(run, overrides or {}, on)))
    except StokerError as error:
        return _reply(own_commands.refusal(error))


async def compare(
    run: RunSource,
    overrides: Overrides = None,
    budget: Annotated[str | None, _parameter("mcp.parameter.compare.budget")] = None,
    by: Annotated[str | None, _parameter("mcp.parameter.compare.by")] = None,
    provider: Annotated[str | None, _parameter("mcp.parameter.provider")] = None,
) -> Answered:
    """The same run on every card."""
    asked = {"--budget": budget, "--by": by, "--provider": provider}
    flags = [word for flag, text in asked.items() if text for word in (flag, text)]
    return _reply(await own_commands.answer("plan", run, *own_commands.settings(overrides or {}), *flags))


async def prepare(run: RunSource, overrides: Overrides = None) -> Answered:
    """Tokenise and pack the data on this machine."""
    return _reply(await own_commands.answer("prepare", run, *own_commands.settings(overrides or {})))


async def train(
    run: RunSource,
    overrides: Overrides = None,
    on: Host = None,
    plan_digest: Annotated[str | None, _parameter("mcp.parameter.plan_digest")] = None,
    budget_time: Annotated[str | None, _parameter("mcp.parameter.budget_time")] = None,
    budget_money: Annotated[str | None, _parameter("mcp.parameter.budget_money")] = None,
) -> Answered:
    """Start or resume a training, and return at once."""
    budget = AgreedBudget(budget_time or "", budget_money or "")
    try:
        consent.require_digest(plan_digest or "")
        budget.require()
        return _reply(await _started(ReadRun.of(run, overrides or {}, on), plan_digest or "", budget))
    except StokerError as error:
        return _reply(own_commands.refusal(error))


async def watch(
    name: RunName, wait_seconds: Annotated[int, _parameter("mcp.parameter.wait_seconds", ge=0, le=3600)] = 0
) -> Answered:
    """A run's figures; waits so long for its end."""
    until = time.monotonic() + wait_seconds
    found = await own_commands.answer("watch", name)
    while found.ok and found.result["state"] in _UNDER_WAY and time.monotonic() < until:
        await _pause(name, min(until, time.monotonic() + _ASK_SECONDS))
        found = await own_commands.answer("watch", name)
    return _reply(found)


async def _pause(name: str, until: float) -> None:
    """Wait so long, or for the end of a run of this machine."""
    progress = RunProgress(layout.find(name))
    while (left := until - time.monotonic()) > 0:
        await anyio.sleep(min(left, _LOOK_SECONDS))
        progress.update()
        if progress.elsewhere is None and progress.state not in _UNDER_WAY:
            return


async def stop(name: RunName) -> Answered:
    """Ask for a committed checkpoint and wait for it."""
    return _reply(await own_commands.answer("stop", name))


async def verify(name: RunName) -> Answered:
    """Compare every checkpoint and copy with its record."""
    return _reply(await own_commands.answer("verify", name))


async def export(
    name: RunName, folder: Annotated[str | None, _parameter("mcp.parameter.folder", pattern=_NO_FLAG)] = None
) -> Answered:
    """Make the finished model, compared with the trained one."""
    return _reply(await own_commands.answer("export", name, *([folder] if folder else [])))


async def models(name: Annotated[str | None, _parameter("mcp.parameter.model", pattern=_NO_FLAG)] = None) -> Answered:
    """What works with which family of models."""
    return _reply(await own_commands.answer("models", *([name] if name else [])))


async def runs() -> Answered:
    """The runs of this machine."""
    return _reply(await own_commands.answer("runs"))


async def logs(name: RunName, lines: Annotated[int, _parameter("mcp.parameter.lines", ge=1)] = 50) -> Answered:
    """The end of a run's log."""
    return _reply(await own_commands.answer("logs", name, "--lines", str(lines)))


async def doctor() -> Answered:
    """What this machine lacks."""
    return _reply(await own_commands.answer("doctor"))


# ---- starting


@dataclass(frozen=True)
class ReadRun:
    """A run as it was read, once, and where it would go."""

    run: str
    """Path or recipe, for the commands."""
    overrides: dict[str, Any]
    run_file: RunFile
    on: str | None
    place: str
    """The machine it will be trained on."""

    @classmethod
    def of(cls, run: str, overrides: dict[str, Any], on: str | None) -> "ReadRun":
        """Read the run file."""
        run_file = load.load(run, own_commands.settings(overrides)[1::2])
        where = run_file.run.where
        if on == _HERE and where.place != _HERE:  # `stoker train` would go to the run file's place
            raise StokerError("STK559", place=where.host or where.place)
        return cls(run, overrides, run_file, on, on or where.host or where.place)

    async def command(self, verb: str, *flags: str, more: Mapping[str, str] = MappingProxyType({})) -> ToolAnswer:
        """The answer of a command, which refuses a run file whose text is another by then.

        Args:
            verb: The command.
            flags: Its flags.
            more: Further overrides.
        """
        words = own_commands.settings({**self.overrides, **more})
        return await own_commands.answer(verb, self.run, *words, *flags, agreed=consent.text_digest(self.run_file))


async def _shown(read: ReadRun) -> ToolAnswer:
    """The plan for the place, and what names it."""
    found = await read.command("plan", "--on", read.place)
    if not found.ok:
        return found
    return found.model_copy(update={"digest": consent.digest(read.run_file, read.place, found.result)})


async def _started(read: ReadRun, plan_digest: str, budget: AgreedBudget) -> ToolAnswer:
    """Start what was shown; everything else is refused before anything is written."""
    now = await _shown(read)
    if now.digest is None:
        return now
    consent.require_shown(plan_digest, now.digest)
    budget.require_enough(now.result)
    elsewhere = ["--on", read.on] if read.on and read.place != _HERE else []
    return await read.command("train", *elsewhere, "--detach", "--yes", more=budget.overrides(read.run_file))


def _reply(found: ToolAnswer) -> CallToolResult:
    """Structured content, and the same as text for clients that read only that."""
    whole = found.model_dump(mode="json")
    text = TextContent(type="text", text=found.model_dump_json())
    return CallToolResult(content=[text], structured_content=whole, is_error=not found.ok)
