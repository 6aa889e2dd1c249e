"""Commands and flags for a finished model. What a command does is in the module it imports."""

import functools
from typing import Annotated

import typer

from stoker import messages
from stoker.errors import StokerError
from stoker.terminal.help_page import HelpCommand
from stoker.terminal.parameters import Artifact, Existing, Gpus, Json, Overrides, with_gpus

handover_app = typer.Typer(rich_markup_mode=None)
command = functools.partial(handover_app.command, cls=HelpCommand)


@command(help="help.chat")
def chat(
    name: Existing,
    prompt: Annotated[str | None, typer.Argument(help="help.chat.prompt")] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="help.chat.system")] = None,
    max_tokens: Annotated[int, typer.Option(help="help.chat.max_tokens")] = 200,
    artifact: Artifact = None,
    json: Json = False,
) -> None:
    from stoker.handover import chat_command as body

    body.chat(name, prompt, body.ChatOptions(system, max_tokens, artifact), as_json=json)


@command(help="help.merge")
def merge(name: Existing, json: Json = False) -> None:
    from stoker.handover import artifact_commands as body

    body.merge(name, as_json=json)


@command(help="help.quantize")
def quantize(
    name: Existing,
    gguf: Annotated[str | None, typer.Option(metavar="q8_0|q4_k_m", help="help.quantize.gguf")] = None,
    int8: Annotated[bool, typer.Option("--int8", help="help.quantize.int8")] = False,
    gptq: Annotated[bool, typer.Option("--gptq", help="help.quantize.gptq")] = False,
    fp8: Annotated[bool, typer.Option("--fp8", help="help.quantize.fp8")] = False,
    json: Json = False,
) -> None:
    from stoker.handover import artifact_commands as body

    body.quantize(name, gguf, int8=int8, gptq=gptq, fp8=fp8, as_json=json)


@command(help="help.export")
def export(
    name: Existing,
    folder: Annotated[str | None, typer.Argument(metavar="FOLDER", help="help.export.folder")] = None,
    ollama: Annotated[bool, typer.Option("--ollama", help="help.export.ollama")] = False,
    gguf: Annotated[str | None, typer.Option(metavar="q8_0|q4_k_m", help="help.export.gguf")] = None,
    json: Json = False,
) -> None:
    if ollama:
        from stoker.handover import ollama_command

        ollama_command.export(name, folder, gguf or "q8_0", as_json=json)
        return
    if gguf is not None:
        problem = messages.text("usage.with", name="--gguf", other="--ollama")
        raise StokerError("STK506", problem=problem, command="stoker export")
    from stoker.handover import artifact_commands as body

    body.export(name, folder, as_json=json)


@command(help="help.publish")
def publish(
    name: Existing,
    to: Annotated[str, typer.Option("--to", metavar="hf:OWNER/NAME|modelscope:OWNER/NAME", help="help.publish.to")],
    artifact: Annotated[str | None, typer.Option(metavar="export|adapter", help="help.publish.artifact")] = None,
    public: Annotated[bool, typer.Option("--public", help="help.publish.public")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="help.publish.yes")] = False,
    json: Json = False,
) -> None:
    from stoker.handover import publish_command as body

    body.publish(name, to, artifact, public=public, yes=yes, as_json=json)


@command("eval", help="help.eval")
def evaluate(
    name: Existing,
    task: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="help.eval.task"),
    ] = None,
    samples: Annotated[int, typer.Option(metavar="N", min=0, help="help.eval.samples")] = 0,
    judge: Annotated[str | None, typer.Option(metavar="MODEL", help="help.eval.judge")] = None,
    harness: Annotated[str | None, typer.Option(metavar="TASKS", help="help.eval.harness")] = None,
    artifact: Artifact = None,
    json: Json = False,
) -> None:
    from stoker.handover import evaluate_command as body

    body.evaluate(name, body.EvaluationRequest(artifact, task or [], samples, harness, judge), as_json=json)


@command(help="help.serve")
def serve(
    name: Existing,
    port: Annotated[int, typer.Option(min=1, max=65535, help="help.serve.port")] = 8000,
    set_: Overrides = None,
    gpus: Gpus = None,
    on: Annotated[str | None, typer.Option("--on", metavar="HOST", help="help.serve.on")] = None,
    stop: Annotated[bool, typer.Option("--stop", help="help.serve.stop")] = False,
    json: Json = False,
) -> None:
    if on is not None:
        from stoker.handover import remote_serving

        remote_serving.serve(name, on, port, with_gpus(set_, gpus), stop=stop, as_json=json)
        return
    from stoker.handover import serve_commands as body

    body.serve(name, port, with_gpus(set_, gpus), stop=stop, as_json=json)


@command(help="help.bench")
def bench(
    name: Existing,
    clients: Annotated[str, typer.Option(metavar="N,N", help="help.bench.clients")] = "1,2,4,8",
    requests: Annotated[int, typer.Option(min=1, help="help.bench.requests")] = 16,
    max_tokens: Annotated[int, typer.Option(min=1, help="help.bench.max_tokens")] = 64,
    set_: Overrides = None,
    gpus: Gpus = None,
    json: Json = False,
) -> None:
    from stoker.handover import serve_commands as body

    body.bench(name, clients, requests, max_tokens, with_gpus(set_, gpus), as_json=json)
