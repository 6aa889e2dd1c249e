"""`stoker chat`: talk with a trained model. The model runs in its own process and exchanges JSON lines."""

import json
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from stoker.errors import StokerError
from stoker.handover import writing_models
from stoker.handover.evaluate_command import check_artifact
from stoker.launch import programs
from stoker.rundir import events
from stoker.rundir.layout import RunDir
from stoker.terminal import console


@dataclass(frozen=True)
class ChatOptions:
    """Options of a conversation."""

    system: str | None
    max_tokens: int
    artifact: str | None


@dataclass(frozen=True)
class _Engine:
    """The program that has the model."""

    process: "subprocess.Popen[str]"
    run_dir: RunDir
    since_byte: int
    """Where the events ended before it was started."""

    def ask(self, request: dict[str, Any]) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: whoever reads its answer is told why
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        """Its next line; raises why it ended where there is none, or only the beginning of one."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.endswith("\n"):
            programs.raise_engine_error("chat", self.run_dir, self.process.wait(), self.since_byte)
        reply: dict[str, Any] = json.loads(line)
        return reply


def chat(name: str, prompt: str | None, options: ChatOptions, *, as_json: bool) -> None:
    """One answer to `prompt`, or a conversation until an empty line or end of input."""
    run_dir = writing_models.find(name, "stoker chat")
    check_artifact(run_dir, options.artifact)
    start = events.end(run_dir.events_file)
    with programs.open_engine("chat", run_dir, *([options.artifact] if options.artifact else [])) as process:
        engine = _Engine(process, run_dir, start)
        ready = engine.read()
        if options.system and ready["plain"]:
            raise StokerError("STK511", name=run_dir.name)
        opening = [{"role": "system", "content": options.system}] if options.system else []
        history = list(opening)
        said = list(opening)
        questions = [prompt] if prompt is not None else iter(console.ask, "")
        for question in questions:
            history.append({"role": "user", "content": question})
            answer = _answer(engine, history, options.max_tokens, echo=not as_json)
            history.append({"role": "assistant", "content": answer})
            said += history[-2:]
            if ready["plain"]:
                history.clear()
        if as_json:
            console.data_json(said)


def _answer(engine: _Engine, history: list[dict[str, str]], max_tokens: int, *, echo: bool) -> str:
    engine.ask({"messages": history, "max_tokens": max_tokens})
    pieces = []
    while not (reply := engine.read()).get("end"):
        pieces.append(reply["text"])
        if echo:
            console.piece(reply["text"])
    if echo:
        console.data("")
    return "".join(pieces)
