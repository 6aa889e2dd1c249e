"""Makes a quantised artifact in a temporary folder, compares it with the trained model, and accepts it.

int8 is made in our own environment by torchao, GGUF files in llama.cpp's, gptq and fp8 in llmcompressor's.
"""

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from stoker import tools
from stoker.artifacts import llamacpp, parity_gate
from stoker.artifacts.llamacpp import LlamaCpp
from stoker.errors import StokerError
from stoker.facts import model_configs
from stoker.facts.model_configs import FoundConfig
from stoker.launch import programs, training
from stoker.rundir import artifacts, files, in_place, inputs
from stoker.rundir.events import Event, EventCallback, EventLog
from stoker.rundir.layout import RunDir
from stoker.tools import Tool

_WORK = "quantize"
_ROOM = {"gguf-q4_k_m": 2.0}
"""Disk space needed as a multiple of the source's weights, if not 1: GGUF is written unquantised first."""


def require(kind: str, run_dir: RunDir) -> None:
    """Require the packages that make this kind, and that they know the model's architecture."""
    if kind == "int8":
        if importlib.util.find_spec("torchao") is None:
            raise StokerError("STK631", package="torchao")
        programs.check_engine()
    else:
        tools.require(_tool(kind))
    if kind.startswith("gguf"):
        _require_known(_architecture(run_dir))


def _require_known(architecture: str) -> None:
    """Refuse before anything is merged what llama.cpp's converter would refuse at the end."""
    known = llamacpp.known_architectures()
    if architecture and known and architecture not in known:
        raise StokerError("STK237", architecture=architecture)


def _architecture(run_dir: RunDir) -> str:
    """The model's class by its own configuration or its base's; empty where that is not on this machine."""
    own = run_dir.final.resolve()
    found = model_configs.here(str(own), own) or _base_config(run_dir)
    stated = found.config.get("architectures") if found else None
    return str(stated[0]) if isinstance(stated, list) and stated else ""


def _base_config(run_dir: RunDir) -> FoundConfig | None:
    model = run_dir.run().model
    if not isinstance(model, str):
        return None
    return model_configs.here(inputs.model_path(model, run_dir.folder()), run_dir.folder())


def make(run_dir: RunDir, kind: str, source: Path, on_event: EventCallback) -> Event:
    """Quantise the model folder `source`, compare, accept.

    Returns:
        The fields of the event `quantized`.
    """
    training.require_idle(run_dir)
    source_bytes = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    files.require_room(run_dir.artifacts, int(source_bytes * _ROOM.get(kind, 1.0)))
    target = artifacts.begin(run_dir, kind)
    with _work(run_dir) as work:
        programs.run_engine("quantize", run_dir, on_event, kind, str(source), str(target), str(work))
        if kind.startswith("gguf"):
            figures = _gguf(run_dir, kind, source, target, work, on_event)
        elif kind == "int8":
            figures = parity_gate.compare(run_dir, kind, on_event=on_event)
        else:
            rows = [str(work / "rows.json")] if kind == "gptq" else []
            run_tool(tools.LLMCOMPRESSOR, "stoker_compress.py", run_dir, str(source), str(target), *rows)
            python = tools.require(tools.LLMCOMPRESSOR)
            figures = parity_gate.compare(run_dir, kind, on_event=on_event, python=python)
    place = artifacts.accept(run_dir, kind)
    made = {
        "name": kind,
        "path": str(place),
        "bytes": files.folder_bytes(place),
        "source_bytes": source_bytes,
        "agreement": figures["agreement"],
        "perplexity_change": figures["perplexity_change"],
    }
    with closing(EventLog(run_dir.events_file)) as log:
        log.write("quantized", **made)
    return made


def _tool(kind: str) -> Tool:
    return tools.LLAMACPP if kind.startswith("gguf") else tools.LLMCOMPRESSOR


@contextmanager
def _work(run_dir: RunDir) -> Iterator[Path]:
    """A temporary folder for files that programs exchange."""
    path = artifacts.begin(run_dir, _WORK)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def run_tool(tool: Tool, script: str, run_dir: RunDir, *arguments: str, refusal: Path | None = None) -> None:
    """Run a script of `engine/foreign` with a tool's Python; output goes to `logs/quantize.log`.

    A script that fails is an error, unless it wrote its reason to the file `refusal`.
    """
    python, log = tools.require(tool), run_dir.logs / "quantize.log"
    foreign = resources.files("stoker.engine.foreign")
    with resources.as_file(foreign.joinpath(script)) as path, in_place.appending(log, run_dir.path) as words:
        done = subprocess.run(  # noqa: S603  # our own script, no shell
            [str(python), "-I", "-X", "utf8", str(path), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode and not (refusal and refusal.is_file()):
        raise StokerError("STK409", program=script, exit_code=done.returncode, log=log)


# ---- gguf


def _gguf(run_dir: RunDir, kind: str, source: Path, target: Path, work: Path, on_event: EventCallback) -> Event:
    """Convert; compare metadata and tokens, then answers, through llama.cpp."""
    expected = files.read_json(work / "words.json")
    file = target / f"{run_dir.name}-{kind.removeprefix('gguf-')}.gguf"
    convert(run_dir, kind, source, file, work / "facts.json", expected)
    with llamacpp.serving(run_dir, file) as endpoint:
        compare_tokens(endpoint, expected["texts"])
        return parity_gate.compare(run_dir, kind, endpoint, on_event)


def convert(run_dir: RunDir, kind: str, source: Path, file: Path, facts: Path, expected: Event) -> None:
    """Write the GGUF file and compare its metadata."""
    turn_end = [] if expected["turn_end"] is None else [str(expected["turn_end"])]
    words = [str(source), str(file), kind.removeprefix("gguf-"), run_dir.name, str(facts), *turn_end]
    run_tool(tools.LLAMACPP, "stoker_gguf.py", run_dir, *words, refusal=facts)
    found = files.read_json(facts)
    if "refused" in found:
        raise _refusal(found["refused"], found["detail"], source)
    compare_words(found, expected)


def compare_words(found: Event, expected: Event) -> None:
    """Require the tokenizer's own chat template and ids in the file, byte for byte.

    Where the template has no end of turn, llama.cpp may name its own (GLM's `<|user|>`) if the model stops there.
    """
    for key in ("chat_template", "eos", "turn_end"):
        is_stop = key == "turn_end" and expected[key] is None and found[key] in expected["stops"]
        if found[key] != expected[key] and not is_stop:
            raise StokerError("STK635", key=key, expected=repr(expected[key]), got=repr(found[key]))


def _refusal(what: str, detail: str, source: Path) -> StokerError:
    if what == "pieces":
        return StokerError("STK638", folder=source)
    return (
        StokerError("STK632", pre_tokenizer=detail) if what == "pre_tokenizer" else StokerError("STK636", tensor=detail)
    )


def compare_tokens(endpoint: LlamaCpp, texts: list[dict[str, Any]]) -> None:
    """Require llama.cpp to tokenize every text as the model was trained."""
    for one in texts:
        got = llamacpp.tokenize(endpoint, one["text"])
        if got != one["ids"]:
            at = next((at for at, pair in enumerate(zip(got, one["ids"], strict=False)) if pair[0] != pair[1]), None)
            start = min(len(got), len(one["ids"])) if at is None else at
            fields = {"expected": one["ids"][start : start + 5], "got": got[start : start + 5]}
            raise StokerError("STK633", text=repr(one["text"][:60]), position=start, **fields)
