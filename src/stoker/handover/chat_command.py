"""`stoker chat`: talk with a trained model. The model runs in its own process and exchanges JSON lines."""

import json
import subprocess
from dataclasses import dataclass
from typing import IO, Any

from stoker.errors import StokerError
from stoker.handover import writing_models
from stoker.handover.evaluate_command import check_artifact
from stoker.launch import programs
from stoker.rundir.layout import RunDir
from stoker.terminal import console


@dataclass(frozen=True)
class ChatOptions:
    """Options of a conversation."""

    system: str | None
    max_tokens: int
    artifact: str | None


def chat(name: str, prompt: str | None, options: ChatOptions, *, as_json: bool) -> None:
    """One answer to `prompt`, or a conversation until an empty line or end of input."""
    run_dir = writing_models.find(name, "stoker chat")
    check_artifact(run_dir, options.artifact)
    with programs.open_engine("chat", run_dir, *([options.artifact] if options.artifact else [])) as process:
        ready = _read(process, run_dir)
        if options.system and ready["plain"]:
            raise StokerError("STK511", name=run_dir.name)
        opening = [{"role": "system", "content": options.system}] if options.system else []
        history = list(opening)
        said = list(opening)
        questions = [prompt] if prompt is not None else iter(console.ask, "")
        for question in questions:
            history.append({"role": "user", "content": question})
            answer = _answer(process, run_dir, history, options.max_tokens, echo=not as_json)
            history.append({"role": "assistant", "content": answer})
            said += history[-2:]
            if ready["plain"]:
                history.clear()
        if as_json:
            console.data_json(said)


def _answer(
    process: subprocess.Popen[str], run_dir: RunDir, history: list[dict[str, str]], max_tokens: int, *, echo: bool
) -> str:
    stdin: IO[str] | None = process.stdin
    assert stdin is not None
    stdin.write(json.dumps({"messages": history, "max_tokens": max_tokens}) + "\n")
    stdin.flush()
    pieces = []
    while not (reply := _read(process, run_dir)).get("end"):
        pieces.append(reply["text"])
        if echo:
            console.piece(reply["text"])
    if echo:
        console.data("")
    return "".join(pieces)


def _read(process: subprocess.Popen[str], run_dir: RunDir) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        programs.raise_engine_error("chat", run_dir, process.wait())
    reply: dict[str, Any] = json.loads(line)
    return reply
