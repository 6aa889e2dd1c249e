"""The flags of `stoker hosts`. What a command does is in the module it imports, so that `--help` stays light."""

import functools
from typing import Annotated

import typer

from stoker.terminal.help_page import HelpCommand, HelpGroup
from stoker.terminal.parameters import Json

hosts_app = typer.Typer(name="hosts", cls=HelpGroup, help="help.hosts", no_args_is_help=True, rich_markup_mode=None)
command = functools.partial(hosts_app.command, cls=HelpCommand)
HostName = Annotated[str, typer.Argument(metavar="NAME", help="help.any.host")]


@command("add", help="help.hosts.add")
def hosts_add(
    name: HostName,
    address: Annotated[
        str,
        typer.Argument(metavar="ADDRESS", help="help.hosts.add.address"),
    ],
    base: Annotated[str | None, typer.Option(metavar="FOLDER", help="help.hosts.add.base")] = None,
    python: Annotated[str | None, typer.Option(metavar="PATH", help="help.hosts.add.python")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="help.hosts.add.yes")] = False,
    json: Json = False,
) -> None:
    from stoker.cli import hosts_command as body

    body.add(name, address, base, python, yes=yes, as_json=json)


@command("list", help="help.hosts.list")
def hosts_list(json: Json = False) -> None:
    from stoker.cli import hosts_command as body

    body.show(as_json=json)


@command("check", help="help.hosts.check")
def hosts_check(name: HostName, json: Json = False) -> None:
    from stoker.cli import hosts_command as body

    body.check(name, as_json=json)


@command("remove", help="help.hosts.remove")
def hosts_remove(name: HostName, json: Json = False) -> None:
    from stoker.cli import hosts_command as body

    body.remove(name, as_json=json)


@command("tunnel", help="help.hosts.tunnel")
def hosts_tunnel(
    name: HostName,
    port: Annotated[int, typer.Option(min=1, max=65535, help="help.hosts.tunnel.port")] = 6006,
    json: Json = False,
) -> None:
    from stoker.cli import remote

    remote.tunnel(name, port, as_json=json)


@command("on", help="help.hosts.on")
def hosts_on(
    name: HostName,
    no_card: Annotated[
        bool,
        typer.Option("--no-card", help="help.hosts.on.no_card"),
    ] = False,
    json: Json = False,
) -> None:
    from stoker.cli import hosts_command as body

    body.switch_on(name, card=not no_card, as_json=json)


@command("off", help="help.hosts.off")
def hosts_off(
    name: HostName,
    yes: Annotated[bool, typer.Option("--yes", help="help.hosts.off.yes")] = False,
    json: Json = False,
) -> None:
    from stoker.cli import hosts_command as body

    body.switch_off(name, yes=yes, as_json=json)
