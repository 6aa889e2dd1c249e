"""The flags of `stoker hosts`. What a command does is in the module it imports, so that `--help` stays light."""

from typing import Annotated

import typer

hosts_app = typer.Typer(name="hosts", help="Machines reached by ssh.", no_args_is_help=True, rich_markup_mode=None)
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
HostName = Annotated[str, typer.Argument(metavar="NAME", help="Your name for the machine.")]


@hosts_app.command("add")
def hosts_add(
    name: HostName,
    address: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS", help="ssh://user@host:port, ssh://ALIAS from your ssh config, or `ssh -p ...`."
        ),
    ],
    base: Annotated[str | None, typer.Option(metavar="FOLDER", help="Stoker's folder on that machine.")] = None,
    python: Annotated[str | None, typer.Option(metavar="PATH", help="Python interpreter to use there.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Pin the host key without asking.")] = False,
    json: Json = False,
) -> None:
    """Add a machine: pin its host key, install Stoker's key and check the machine."""
    from stoker.cli import hosts_command as body

    body.add(name, address, base, python, yes=yes, as_json=json)


@hosts_app.command("list")
def hosts_list(json: Json = False) -> None:
    """List the machines."""
    from stoker.cli import hosts_command as body

    body.show(as_json=json)


@hosts_app.command("check")
def hosts_check(name: HostName, json: Json = False) -> None:
    """Check a machine again."""
    from stoker.cli import hosts_command as body

    body.check(name, as_json=json)


@hosts_app.command("remove")
def hosts_remove(name: HostName) -> None:
    """Remove a machine and its pinned key; the machine itself is not changed."""
    from stoker.cli import hosts_command as body

    body.remove(name)


@hosts_app.command("tunnel")
def hosts_tunnel(
    name: HostName,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port, there and here.")] = 6006,
) -> None:
    """Forward a port of a machine, such as TensorBoard's, until Ctrl-C."""
    from stoker.cli import remote

    remote.tunnel(name, port)


@hosts_app.command("on")
def hosts_on(
    name: HostName,
    no_card: Annotated[
        bool,
        typer.Option("--no-card", help="Without its card, for a fraction of the price, if the platform supports it."),
    ] = False,
) -> None:
    """Switch a machine on through its provider's API."""
    from stoker.cli import hosts_command as body

    body.switch_on(name, card=not no_card)


@hosts_app.command("off")
def hosts_off(name: HostName, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False) -> None:
    """Switch a machine off with a reversible command."""
    from stoker.cli import hosts_command as body

    body.switch_off(name, yes=yes)
