"""The command line on one page: every command and flag. Bodies live in the modules they import.

Imports stand inside the commands so that `stoker --help` loads neither pydantic nor the catalogue of cards.
"""

import sys
from typing import Annotated

import typer

from stoker import __version__
from stoker.cli import console

app = typer.Typer(
    name="stoker",
    help="Train language models on rented GPUs. Know before you pay; never lose a paid hour.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run file, or a recipe's name.")]
Existing = Annotated[str, typer.Argument(metavar="NAME", help="A run's name (see `stoker runs`) or its folder.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a word of the run file.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _version(wanted: bool) -> None:  # noqa: FBT001  # typer's callback signature
    if wanted:
        console.data(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[  # noqa: ARG001  # handled by its callback
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Stoker."""


@app.command()
def schema() -> None:
    """Print the run file's JSON Schema."""
    from stoker.cli import describe

    describe.schema()


@app.command()
def gpus(
    pattern: Annotated[str, typer.Argument(help="Only cards whose name contains this.")] = "",
    min_memory: Annotated[float, typer.Option(help="Only cards with at least this many GB.")] = 0,
    sort: Annotated[str, typer.Option(help="name, memory, speed or price.")] = "memory",
    json: Json = False,
) -> None:
    """List the cards of the catalogue: specs and prices."""
    from stoker.cli import gpus as body

    body.gpus(pattern, min_memory, sort, as_json=json)


def main() -> None:
    """Entry point: run a command, translate errors into words and exit codes."""
    sys.exit(console.guarded(_run))


def _run() -> None:
    code = app(standalone_mode=False)
    if isinstance(code, int) and code:
        sys.exit(code)
