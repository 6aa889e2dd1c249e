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
    version: Annotated[  # handled by its callback
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


@app.command()
def plan(
    run: RunName,
    set_: Overrides = None,
    card: Annotated[str | None, typer.Option(help="Plan for this card instead of this machine.")] = None,
    gpus: Annotated[int, typer.Option(min=1, help="How many of that card.")] = 1,
    json: Json = False,
) -> None:
    """Say what will happen: fits? how long? how much? and why."""
    from stoker.cli import plan as body

    body.plan(run, set_ or [], card, gpus, as_json=json)


@app.command()
def prepare(
    run: RunName,
    set_: Overrides = None,
    show: Annotated[int, typer.Option(metavar="N", help="Print N rows, trained tokens coloured.")] = 0,
    json: Json = False,
) -> None:
    """Tokenise, mask and pack the data; say what was found in it."""
    from stoker.cli import prepare as body

    body.prepare(run, set_ or [], show, as_json=json)


@app.command()
def train(
    run: RunName,
    set_: Overrides = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return at once; follow with `stoker watch`.")] = False,
) -> None:
    """Train, or go on where training stopped."""
    from stoker.cli import train as body

    body.train(run, set_ or [], detach=detach)


@app.command()
def chat(
    name: Existing,
    prompt: Annotated[str | None, typer.Argument(help="Ask once and exit; without it, a conversation.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 200,
    json: Json = False,
) -> None:
    """Talk with a trained model."""
    from stoker.cli import chat as body

    body.chat(name, prompt, max_tokens, as_json=json)


@app.command("eval")
def evaluate(name: Existing, json: Json = False) -> None:
    """Measure a trained model's loss on its eval split."""
    from stoker.cli import evaluate as body

    body.evaluate(name, as_json=json)


@app.command()
def init(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The run file to write.")] = "run.yaml",
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing; take every default.")] = False,
) -> None:
    """Ask five questions and write a commented run file."""
    from stoker.cli import init as body

    body.init(path, defaults=yes)


@app.command()
def doctor(json: Json = False) -> None:
    """Say whether this machine is fit to train, and what to do where it is not."""
    from stoker.cli import doctor as body

    body.doctor(as_json=json)


@app.command()
def runs(json: Json = False) -> None:
    """List runs, newest first: state, step, loss, size."""
    from stoker.cli import runs as body

    body.runs(as_json=json)


@app.command()
def watch(
    name: Existing,
    once: Annotated[bool, typer.Option("--once", help="Print one page and exit.")] = False,
    json: Json = False,
) -> None:
    """Follow a run: progress, loss, speed, time left, memory, load."""
    from stoker.cli import watch as body

    body.watch(name, once=once, as_json=json)


@app.command()
def logs(
    name: Existing,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    lines: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only the last N lines.")] = None,
) -> None:
    """Print the log of the newest attempt."""
    from stoker.cli import logs as body

    body.logs(name, lines, follow=follow)


@app.command()
def stop(name: Existing) -> None:
    """Ask a run to commit a checkpoint and end."""
    from stoker.cli import stop as body

    body.stop(name)


def main() -> None:
    """Entry point: run a command, translate errors into words and exit codes."""
    sys.exit(console.guarded(_run))


def _run() -> None:
    code = app(standalone_mode=False)
    if isinstance(code, int) and code:
        sys.exit(code)
