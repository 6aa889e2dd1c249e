"""The commands for coding agents: a page that says how to work with Stoker, and a server of tools."""

import functools
import importlib.util
from typing import Annotated

import typer

from stoker.errors import StokerError
from stoker.terminal.help_page import HelpCommand
from stoker.terminal.parameters import Json

agents_app = typer.Typer(rich_markup_mode=None)
command = functools.partial(agents_app.command, cls=HelpCommand)


@command(help="help.guide")
def guide(
    ctx: typer.Context,
    skill: Annotated[str | None, typer.Option("--skill", metavar="FOLDER", help="help.guide.skill")] = None,
    json: Json = False,
) -> None:
    from stoker.agents import guide_page as body

    body.guide(ctx.find_root().command, skill, as_json=json)


@command(help="help.mcp")
def mcp(json: Json = False) -> None:  # noqa: ARG001  # what it says is JSON anyway
    if importlib.util.find_spec("mcp") is None:
        raise StokerError("STK551")
    from stoker.agents import mcp_server as body

    body.serve()
