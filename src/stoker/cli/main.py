"""Every command and flag, but those of `stoker hosts`. What a command does is in the module it imports.

Imports are inside the commands so that `stoker --help` loads neither pydantic nor the catalogue of cards.
"""

import functools
import sys
from typing import Annotated

import typer

from stoker import __version__
from stoker.cli.hosts_app import hosts_app
from stoker.terminal import console

app = typer.Typer(
    name="stoker",
    help="Train language models on rented GPUs. Know before you pay; never lose a paid hour.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(hosts_app)

RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run file, or a recipe's name.")]
Existing = Annotated[str, typer.Argument(metavar="NAME", help="A run's name (see `stoker runs`) or its folder.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the run file.")
]
Gpus = Annotated[str | None, typer.Option(metavar="N", help="`all`, a count, or numbers such as `0,2`; 0 is the CPU.")]
On = Annotated[str | None, typer.Option("--on", metavar="HOST", help="The machine it runs on (see `stoker hosts`).")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
From = Annotated[
    str | None, typer.Option("--from", metavar="ADDRESS", help="Store address, if not the one in the run file.")
]
Artifact = Annotated[
    str | None, typer.Option(metavar="NAME", help="Use merged, export or int8 instead of the trained model.")
]


def _with_gpus(overrides: list[str] | None, gpus: str | None) -> list[str]:
    """`--gpus` is short for a key of the run file."""
    if gpus is None:
        return overrides or []
    from stoker.config import values

    if not values.is_devices(gpus):
        raise typer.BadParameter(gpus, param_hint="--gpus")
    return [*(overrides or []), f"where.gpus={gpus}"]


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
    from stoker.config.run import Run

    console.data_json(Run.model_json_schema())


@app.command()
def gpus(
    pattern: Annotated[str, typer.Argument(help="Only cards whose name contains this.")] = "",
    min_memory: Annotated[float, typer.Option(help="Only cards with at least this many GB.")] = 0,
    sort: Annotated[str, typer.Option(help="name, memory, speed or price.")] = "memory",
    json: Json = False,
) -> None:
    """List all cards in the catalogue: specs and prices."""
    from stoker.cli import gpus_command as body

    body.gpus(pattern, min_memory, sort, as_json=json)


@app.command()
def plan(  # noqa: PLR0913  # one parameter per flag
    run: RunName,
    set_: Overrides = None,
    card: Annotated[str | None, typer.Option(help="Show the plan for this card instead of the table.")] = None,
    gpus: Gpus = None,
    goal: Annotated[str, typer.Option("--for", metavar="money|speed", help="Sort the table by this.")] = "money",
    price: Annotated[
        str | None, typer.Option(metavar="2.5CNY/h", help="Your own price per card and hour (`where.price`).")
    ] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="CARD", help="Show the arithmetic behind every figure for this card.")
    ] = None,
    plot: Annotated[
        str | None, typer.Option(metavar="FILE", help="Plot time against cost: .png, .svg or .pdf.")
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Check the memory estimate by tracing the step (needs torch).")
    ] = False,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure 20 steps here and correct the estimates.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show every row of the table.")] = False,
    json: Json = False,
) -> None:
    """Predict a run on every card, or on one: does it fit, how long, how much, and why."""
    from stoker.cli import plan_command as body

    asked = body.PlanRequest(
        card=card,
        here=gpus is not None,
        explain=explain,
        plot=plot,
        trace=trace,
        calibrate=calibrate,
        goal=goal,
        price=price,
        everything=everything,
        as_json=json,
    )
    body.plan(run, _with_gpus(set_, gpus), asked)


@app.command()
def prepare(
    run: RunName,
    set_: Overrides = None,
    show: Annotated[int, typer.Option(metavar="N", help="Print N rows with trained tokens highlighted.")] = 0,
    json: Json = False,
) -> None:
    """Tokenise, mask and pack the data, and report what was found."""
    from stoker.cli import prepare_command as body

    body.prepare(run, set_ or [], show, as_json=json)


@app.command()
def train(  # noqa: PLR0913  # one parameter per flag
    run: RunName,
    set_: Overrides = None,
    gpus: Gpus = None,
    on: Annotated[
        str | None, typer.Option("--on", metavar="HOST", help="Train on this machine; see `stoker hosts add`.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return at once; follow with `stoker watch`.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Start on a paid machine without asking.")] = False,
    fork: Annotated[
        str | None, typer.Option(metavar="NAME", help="Start a new run from the newest checkpoint of the run RUN.")
    ] = None,
    weights: Annotated[
        bool, typer.Option("--weights", help="With --fork: take the weights only, from step 0.")
    ] = False,
) -> None:
    """Train, or resume where training stopped."""
    from stoker.cli import train_command as body

    overrides = _with_gpus(set_, gpus)
    if weights and fork is None:
        raise typer.BadParameter("--weights", param_hint="--weights")
    if fork is not None:
        body.fork(run, fork, overrides, on, weights_only=weights, detach=detach)
    else:
        body.train(run, overrides, on, detach=detach, yes=yes)


@app.command()
def bundle(
    run: RunName,
    set_: Overrides = None,
    gpus: Gpus = None,
    folder: Annotated[str, typer.Option("--folder", metavar="FOLDER", help="Output folder for both files.")] = ".",
    json: Json = False,
) -> None:
    """Pack a run into one zip and a three-cell notebook, for Colab, Kaggle or any Jupyter."""
    from stoker.cli import bundle_command as body

    body.bundle(run, _with_gpus(set_, gpus), folder, as_json=json)


@app.command(hidden=True)
def replan(
    name: Existing,
    step: Annotated[int, typer.Argument(metavar="STEP", help="The step at which memory ran out.")] = 0,
    nodes: Annotated[str | None, typer.Option(metavar="A,B", help="Replan for these machines instead.")] = None,
) -> None:
    """Replan after out-of-memory or a lost machine, with the same batch and length. Run by the supervisor."""
    from stoker.cli import internal_commands as body

    body.replan(name, step, nodes)


@app.command(hidden=True)
def join(run: RunName, set_: Overrides = None) -> None:
    """Join a run led by another machine. `stoker train` starts this on every additional machine."""
    from stoker.cli import join_command as body

    body.join(run, set_ or [])


@app.command(hidden=True)
def settle(
    name: Existing,
    warning: Annotated[
        str | None, typer.Option(metavar="BUDGET", help="Only notify that most of this budget is spent.")
    ] = None,
) -> None:
    """After a run: verify its copy, stop billing and notify the user. Run by the supervisor."""
    from stoker.cli import internal_commands as body

    body.settle(name, warning)


@app.command()
def chat(
    name: Existing,
    prompt: Annotated[str | None, typer.Argument(help="Ask once and exit; without it, start a conversation.")] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system prompt.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer in tokens.")] = 200,
    artifact: Artifact = None,
    json: Json = False,
) -> None:
    """Chat with a trained model."""
    from stoker.cli import chat_command as body

    body.chat(name, prompt, body.ChatOptions(system, max_tokens, artifact), as_json=json)


@app.command()
def merge(name: Existing, json: Json = False) -> None:
    """Merge a trained adapter into its base model's weights, and check that it answers the same."""
    from stoker.cli import artifact_commands as body

    body.merge(name, as_json=json)


@app.command()
def quantize(
    name: Existing,
    gguf: Annotated[str | None, typer.Option(metavar="q8_0|q4_k_m", help="A GGUF file for llama.cpp.")] = None,
    int8: Annotated[bool, typer.Option("--int8", help="8-bit weights for transformers on a CPU.")] = False,
    gptq: Annotated[bool, typer.Option("--gptq", help="4-bit weights for vLLM, calibrated on the run's data.")] = False,
    fp8: Annotated[bool, typer.Option("--fp8", help="8-bit floats for vLLM.")] = False,
    json: Json = False,
) -> None:
    """Quantise the trained model, and measure the loss in quality."""
    from stoker.cli import artifact_commands as body

    body.quantize(name, gguf, int8=int8, gptq=gptq, fp8=fp8, as_json=json)


@app.command()
def export(
    name: Existing,
    folder: Annotated[
        str | None, typer.Argument(metavar="FOLDER", help="Output folder. Default: artifacts/export of the run.")
    ] = None,
    json: Json = False,
) -> None:
    """Export a folder that transformers and vLLM load as is, with a model card."""
    from stoker.cli import artifact_commands as body

    body.export(name, folder, as_json=json)


@app.command("eval")
def evaluate(
    name: Existing,
    task: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Questions with answers (jsonl): exact match or multiple choice."),
    ] = None,
    samples: Annotated[int, typer.Option(metavar="N", min=0, help="Show N answers before and after training.")] = 0,
    harness: Annotated[
        str | None, typer.Option(metavar="TASKS", help="Tasks of lm-evaluation-harness, comma-separated.")
    ] = None,
    artifact: Artifact = None,
    json: Json = False,
) -> None:
    """Evaluate a trained model: loss on its eval split, tasks, samples."""
    from stoker.cli import evaluate_command as body

    body.evaluate(name, body.EvaluationRequest(artifact, task or [], samples, harness), as_json=json)


@app.command()
def serve(
    name: Existing,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on, on 127.0.0.1 only.")] = 8000,
    set_: Overrides = None,
    gpus: Gpus = None,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the server instead.")] = False,
    json: Json = False,
) -> None:
    """Serve a trained model as an OpenAI endpoint, with a token."""
    from stoker.cli import serve_commands as body

    body.serve(name, port, _with_gpus(set_, gpus), stop=stop, as_json=json)


@app.command()
def bench(
    name: Existing,
    clients: Annotated[
        str, typer.Option(metavar="N,N", help="Numbers of concurrent clients, one measurement each.")
    ] = "1,2,4,8",
    requests: Annotated[int, typer.Option(min=1, help="Requests per measurement, at least two per client.")] = 16,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens per answer.")] = 64,
    set_: Overrides = None,
    gpus: Gpus = None,
    json: Json = False,
) -> None:
    """Benchmark serving of a trained model: transformers, vLLM, vLLM batched."""
    from stoker.cli import serve_commands as body

    body.bench(name, clients, requests, max_tokens, _with_gpus(set_, gpus), as_json=json)


@app.command()
def init(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The run file to write.")] = "run.yaml",
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing; use every default.")] = False,
) -> None:
    """Ask five questions and write a commented run file."""
    from stoker.cli import init_command as body

    body.init(path, defaults=yes)


@app.command()
def doctor(json: Json = False) -> None:
    """Check whether this machine can train, and how to fix what is wrong."""
    from stoker.cli import doctor_command as body

    body.doctor(as_json=json)


@app.command()
def runs(
    store: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="List the runs in a store instead: a directory or s3://...")
    ] = None,
    on: On = None,
    json: Json = False,
) -> None:
    """List runs, newest first: state, step, loss, size."""
    if on is not None:
        from stoker.cli import remote

        remote.runs(on)
    if store is not None:
        from stoker.cli import store_commands

        store_commands.runs(store, as_json=json)
        return
    from stoker.cli import runs_commands as body

    body.runs(as_json=json)


@app.command()
def push(name: Existing, json: Json = False) -> None:
    """Copy a run's newest checkpoint and records to its store now, and verify them there."""
    from stoker.cli import store_commands as body

    body.push(name, as_json=json)


@app.command()
def pull(name: Existing, from_: From = None, on: On = None, json: Json = False) -> None:
    """Fetch a run from its store or its machine: records, newest checkpoint, finished model."""
    from stoker.cli import remote

    if from_ is None and (found := remote.elsewhere(name, on)):
        remote.pull(*found)
        return
    from stoker.cli import store_commands as body

    body.pull(name, from_, as_json=json)


@app.command()
def verify(name: Existing, from_: From = None, json: Json = False) -> None:
    """Verify every checkpoint of a run, here and in its store, and that the newest is in the store."""
    from stoker.cli import store_commands as body

    body.verify(name, from_, as_json=json)


@app.command()
def watch(
    name: Existing,
    once: Annotated[bool, typer.Option("--once", help="Print one page and exit.")] = False,
    on: On = None,
    json: Json = False,
) -> None:
    """Follow a run: progress, loss, speed, time left, memory, load."""
    from stoker.cli import remote
    from stoker.cli import watch_command as body

    remote.forward(name, on, ["watch", name, *(["--once"] if once else []), *(["--json"] if json else [])])
    body.watch(name, once=once, as_json=json)


@app.command()
def logs(
    name: Existing,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the run ends.")] = False,
    lines: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only the last N lines.")] = None,
    on: On = None,
) -> None:
    """Print the log of the newest attempt."""
    from stoker.cli import remote
    from stoker.cli import runs_commands as body

    count = [] if lines is None else ["--lines", str(lines)]
    remote.forward(name, on, ["logs", name, *(["--follow"] if follow else []), *count])
    body.logs(name, lines, follow=follow)


@app.command()
def stop(name: Existing, on: On = None) -> None:
    """Stop a run after it commits a checkpoint."""
    from stoker.cli import remote
    from stoker.cli import runs_commands as body

    remote.forward(name, on, ["stop", name])
    body.stop(name)


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
