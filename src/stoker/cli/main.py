"""Every command and flag, but those of the other `*_app.py`. What a command does is in the module it imports.

A `help=` is the key of a sentence in `messages`.
Imports are inside the commands so that `stoker --help` loads neither pydantic nor the catalogue of cards.
"""

import functools
import sys
from typing import Annotated

import typer

from stoker import __version__, messages
from stoker.agents.agents_app import agents_app
from stoker.cli.command_groups import GroupedCommands
from stoker.cli.hosts_app import hosts_app
from stoker.errors import StokerError
from stoker.handover.handover_app import handover_app
from stoker.terminal import console
from stoker.terminal.help_page import HelpCommand
from stoker.terminal.parameters import Existing, From, Gpus, Json, On, Overrides, RunName, with_gpus

app = typer.Typer(
    name="stoker",
    cls=GroupedCommands,
    help="help.stoker",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(hosts_app)
app.add_typer(agents_app)
app.add_typer(handover_app)
command = functools.partial(app.command, cls=HelpCommand)


def _version(wanted: bool) -> None:  # noqa: FBT001  # typer's callback signature
    if wanted:
        console.data(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[  # handled by its callback
        bool, typer.Option("--version", callback=_version, is_eager=True, help="help.stoker.version")
    ] = False,
) -> None:
    """Stoker."""


@command(help="help.schema")
def schema(
    errors: Annotated[bool, typer.Option("--errors", help="help.schema.errors")] = False,
    json: Json = False,  # noqa: ARG001  # it is JSON anyway
) -> None:
    from stoker.agents.error_schema import ErrorAnswer
    from stoker.config.run import Run

    console.data_json((ErrorAnswer if errors else Run).model_json_schema())


@command(help="help.gpus")
def gpus(
    pattern: Annotated[str, typer.Argument(help="help.gpus.pattern")] = "",
    min_memory: Annotated[float, typer.Option(help="help.gpus.min_memory")] = 0,
    sort: Annotated[str, typer.Option(help="help.gpus.sort")] = "memory",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar='"autodl RTX4090 1.88CNY/h"', help="help.gpus.set")
    ] = None,
    import_: Annotated[bool, typer.Option("--import", help="help.gpus.import")] = False,
    json: Json = False,
) -> None:
    from stoker.cli import gpus_command as body

    if set_ or import_:
        body.keep_prices(set_ or [], catalogue=import_, as_json=json)
        return
    body.gpus(pattern, min_memory, sort, as_json=json)


@command(help="help.models")
def models(
    name: Annotated[str, typer.Argument(metavar="NAME", help="help.models.name")] = "",
    json: Json = False,
) -> None:
    from stoker.cli import models_command as body

    body.models(name, as_json=json)


@command(help="help.recipes")
def recipes(json: Json = False) -> None:
    from stoker.terminal import recipe_table

    recipe_table.show(as_json=json)


@command(help="help.plan")
def plan(  # noqa: PLR0913  # one parameter per flag
    run: RunName,
    set_: Overrides = None,
    card: Annotated[str | None, typer.Option(help="help.plan.card")] = None,
    on: Annotated[str | None, typer.Option("--on", metavar="HOST", help="help.plan.on")] = None,
    gpus: Gpus = None,
    goal: Annotated[str, typer.Option("--for", metavar="money|speed", help="help.plan.goal")] = "money",
    budget: Annotated[str | None, typer.Option(metavar="30USD", help="help.plan.budget")] = None,
    by: Annotated[str | None, typer.Option(metavar="6h", help="help.plan.by")] = None,
    provider: Annotated[str | None, typer.Option(metavar="NAME", help="help.plan.provider")] = None,
    currency: Annotated[str | None, typer.Option(metavar="CNY", help="help.plan.currency")] = None,
    region: Annotated[str | None, typer.Option(metavar="cn|global", help="help.plan.region")] = None,
    price: Annotated[str | None, typer.Option(metavar="2.5CNY/h", help="help.plan.price")] = None,
    explain: Annotated[str | None, typer.Option(metavar="CARD", help="help.plan.explain")] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="help.plan.plot")] = None,
    trace: Annotated[bool, typer.Option("--trace", help="help.plan.trace")] = False,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="help.plan.calibrate")] = False,
    everything: Annotated[bool, typer.Option("--all", help="help.plan.everything")] = False,
    json: Json = False,
) -> None:
    from stoker.api.planning import MarketQuestion
    from stoker.cli import plan_command as body

    asked = body.PlanRequest(
        question=MarketQuestion(goal=goal, budget=budget, by=by, provider=provider, currency=currency, region=region),
        card=card,
        on=on,
        here=gpus is not None,
        explain=explain,
        plot=plot,
        trace=trace,
        calibrate=calibrate,
        price=price,
        everything=everything,
        as_json=json,
    )
    body.plan(run, with_gpus(set_, gpus), asked)


@command(help="help.prepare")
def prepare(
    run: RunName,
    set_: Overrides = None,
    show: Annotated[int, typer.Option(metavar="N", min=0, help="help.prepare.show")] = 0,
    push: Annotated[str | None, typer.Option(metavar="STORE", help="help.prepare.push")] = None,
    json: Json = False,
) -> None:
    from stoker.cli import prepare_command as body

    body.prepare(run, set_ or [], show, push, as_json=json)


@command(help="help.train")
def train(  # noqa: PLR0913  # one parameter per flag
    run: RunName,
    set_: Overrides = None,
    gpus: Gpus = None,
    on: Annotated[str | None, typer.Option("--on", metavar="HOST", help="help.train.on")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="help.train.detach")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="help.train.yes")] = False,
    fork: Annotated[str | None, typer.Option(metavar="NAME", help="help.train.fork")] = None,
    weights: Annotated[bool, typer.Option("--weights", help="help.train.weights")] = False,
    why: Annotated[bool, typer.Option("--why", help="help.train.why")] = False,
    json: Json = False,
) -> None:
    from stoker.cli import train_command as body
    from stoker.cli.remote import TrainOptions

    overrides = with_gpus(set_, gpus)
    options = TrainOptions(on=on, detach=detach, yes=yes, why=why, as_json=json)
    if weights and fork is None:
        problem = messages.text("usage.with", name="--weights", other="--fork")
        raise StokerError("STK506", problem=problem, command="stoker train")
    if fork is not None:
        body.fork(run, fork, overrides, options, weights_only=weights)
    else:
        body.train(run, overrides, options)


@command(help="help.bundle")
def bundle(
    run: RunName,
    set_: Overrides = None,
    gpus: Gpus = None,
    folder: Annotated[str, typer.Option("--folder", metavar="FOLDER", help="help.bundle.folder")] = ".",
    json: Json = False,
) -> None:
    from stoker.cli import bundle_command as body

    body.bundle(run, with_gpus(set_, gpus), folder, as_json=json)


@command(help="help.replan", hidden=True)
def replan(
    name: Existing,
    step: Annotated[int, typer.Argument(metavar="STEP", help="help.replan.step")] = 0,
    nodes: Annotated[str | None, typer.Option(metavar="A,B", help="help.replan.nodes")] = None,
) -> None:
    from stoker.cli import internal_commands as body

    body.replan(name, step, nodes)


@command(help="help.join", hidden=True)
def join(run: RunName, set_: Overrides = None) -> None:
    from stoker.cli import internal_commands as body

    body.join(run, set_ or [])


@command(help="help.settle", hidden=True)
def settle(
    name: Existing,
    warning: Annotated[str | None, typer.Option(metavar="BUDGET", help="help.settle.warning")] = None,
) -> None:
    from stoker.cli import internal_commands as body

    body.settle(name, warning)


@command(help="help.init")
def init(
    path: Annotated[str, typer.Argument(metavar="PATH", help="help.init.path")] = "run.yaml",
    yes: Annotated[bool, typer.Option("--yes", help="help.init.yes")] = False,
    from_: Annotated[str | None, typer.Option("--from", metavar="FILE", help="help.init.from")] = None,
    gpus: Annotated[int | None, typer.Option(metavar="N", min=1, help="help.init.gpus")] = None,
    json: Json = False,
) -> None:
    if from_ is not None:
        from stoker.cli import migrate_command

        migrate_command.migrate(from_, path, gpus, as_json=json)
        return
    if gpus is not None:
        problem = messages.text("usage.with", name="--gpus", other="--from")
        raise StokerError("STK506", problem=problem, command="stoker init")
    from stoker.cli import init_command as body

    body.init(path, defaults=yes, as_json=json)


@command(help="help.doctor")
def doctor(json: Json = False) -> None:
    from stoker.cli import doctor_command as body

    body.doctor(as_json=json)


@command(help="help.prove")
def prove(
    folder: Annotated[str, typer.Option("--folder", metavar="FOLDER", help="help.prove.folder")] = ".",
    quick: Annotated[bool, typer.Option("--quick", help="help.prove.quick")] = False,
    share: Annotated[bool, typer.Option("--share", help="help.prove.share")] = False,
    json: Json = False,
) -> None:
    from stoker.cli import prove_command as body

    if share:
        body.share(folder, as_json=json)
        return
    body.prove(folder, quick=quick, as_json=json)


@command(help="help.runs")
def runs(
    store: Annotated[str | None, typer.Option(metavar="ADDRESS", help="help.runs.store")] = None,
    on: On = None,
    json: Json = False,
) -> None:
    if on is not None:
        from stoker.cli import remote

        remote.runs(on, as_json=json)
    if store is not None:
        from stoker.cli import store_commands

        store_commands.runs(store, as_json=json)
        return
    from stoker.cli import runs_commands as body

    body.runs(as_json=json)


@command(help="help.push")
def push(name: Existing, json: Json = False) -> None:
    from stoker.cli import store_commands as body

    body.push(name, as_json=json)


@command(help="help.pull")
def pull(name: Existing, from_: From = None, on: On = None, json: Json = False) -> None:
    from stoker.cli import remote
    from stoker.rundir import layout

    layout.use_folder_of(name)
    if from_ is None and (found := remote.elsewhere(name, on)):
        remote.pull(*found, as_json=json)
        return
    from stoker.cli import store_commands as body

    body.pull(name, from_, as_json=json)


@command(help="help.verify")
def verify(name: Existing, from_: From = None, json: Json = False) -> None:
    from stoker.cli import store_commands as body

    body.verify(name, from_, as_json=json)


@command(help="help.watch")
def watch(
    name: Existing,
    once: Annotated[bool, typer.Option("--once", help="help.watch.once")] = False,
    on: On = None,
    json: Json = False,
) -> None:
    from stoker.cli import remote
    from stoker.cli import watch_command as body

    remote.watch(name, on, once=once, as_json=json)
    body.watch(name, once=once, as_json=json)


@command(help="help.report")
def report(name: Existing, json: Json = False) -> None:
    from stoker.cli import report_command as body

    body.report(name, as_json=json)


@command(help="help.logs")
def logs(
    name: Existing,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="help.logs.follow")] = False,
    lines: Annotated[int | None, typer.Option(metavar="N", min=0, help="help.logs.lines")] = None,
    on: On = None,
    json: Json = False,
) -> None:
    from stoker.cli import remote
    from stoker.cli import runs_commands as body

    if follow and json:
        raise StokerError("STK558")
    remote.logs(name, on, follow=follow, lines=lines, as_json=json)
    if json:
        body.log_lines(name, lines)
    else:
        body.logs(name, lines, follow=follow)


@command(help="help.stop")
def stop(name: Existing, on: On = None, json: Json = False) -> None:
    from stoker.cli import remote
    from stoker.cli import runs_commands as body

    remote.stop(name, on, as_json=json)
    body.stop(name, as_json=json)


def main() -> None:
    """Entry point: run a command; errors become messages and exit codes."""
    sys.exit(console.guarded(_run))


def _run() -> None:
    code = _group()(standalone_mode=False)
    if isinstance(code, int) and code:
        sys.exit(code)


@functools.cache
def _group() -> typer.core.TyperGroup:
    return typer.main.get_group(app)
