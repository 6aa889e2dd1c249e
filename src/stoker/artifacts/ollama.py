"""A folder for Ollama: a GGUF file that passed the parity gate, and a Modelfile that says how to talk with it.

Ollama renders a conversation by the Modelfile's TEMPLATE and lets llama.cpp add the start token. So the template is
rendered and tokenized that way here, through llama.cpp's own server, and must give the tokens of training.
"""

import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker import messages
from stoker.artifacts import llamacpp, turn_pieces
from stoker.artifacts.llamacpp import LlamaCpp
from stoker.artifacts.turn_pieces import RenderedConversation, TurnPieces
from stoker.errors import StokerError
from stoker.launch import programs
from stoker.rundir import artifacts, events, files
from stoker.rundir.layout import RunDir

NAME = "ollama"
MODELFILE = "Modelfile"
_OURS = re.compile(r"# .*\bStoker\b.*\nFROM \./(.+\.gguf)\n")
"""How a Modelfile that was written here begins."""
_READS_JINJA = "0.30.0"
"""Since this version Ollama leaves a GGUF file's own chat template to llama.cpp."""
_LEAST_CONTEXT = 4096
_SAMPLED = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}
"""Generation settings of transformers by Ollama's names, with what they are when not stated."""


@dataclass(frozen=True)
class OllamaFacts:
    """What the engine found out about the model: the JSON of `stoker.engine.conversation_samples`."""

    plain: bool
    samples: list[RenderedConversation]
    trims: bool
    clock: bool
    start: str
    stops: list[str]
    system: str | None
    settings: dict[str, Any]
    context: int | None
    licence: dict[str, Any]


@dataclass(frozen=True)
class OllamaFolder:
    """What was made."""

    path: Path
    gguf: str
    template: str
    """go: written here; gguf: Ollama reads the file's own; text: the model continues a text."""
    conversations: int
    """Rendered, tokenized by llama.cpp and equal to training."""
    system: str | None
    notes: list[str] = field(default_factory=list)
    """Keys of sentences about what is not the same."""
    licence: dict[str, Any] = field(default_factory=dict)


def ready_gguf(run_dir: RunDir, kind: str) -> Path | None:
    """The accepted GGUF file, if it was made of what the last training ended with."""
    made = False
    for event in events.skim(run_dir.events_file):
        if event["event"] == "quantized" and event["name"] == kind:
            made = True
        elif event["event"] == "end":
            made = False
    found = sorted(artifacts.folder(run_dir, kind).glob("*.gguf"))
    return found[0] if made and found and artifacts.is_accepted(run_dir, kind) else None


def make(run_dir: RunDir, kind: str, source: Path, gguf: Path) -> OllamaFolder:
    """Write `artifacts/.ollama.tmp`; the caller adds the model card and accepts it.

    Args:
        run_dir: The run.
        kind: Of the GGUF file: `gguf-q8_0`.
        source: The model folder that it was made of.
        gguf: The file.
    """
    facts = _facts(run_dir, source)
    pieces = None if facts.plain or facts.clock else turn_pieces.find(facts.samples, facts.stops)
    compared = 0
    if pieces is not None:
        with llamacpp.serving(run_dir, gguf) as endpoint:
            pieces = _as_tokenized(endpoint, pieces, facts)
        compared = sum(sample.text is not None for sample in facts.samples)
    target = artifacts.begin(run_dir, NAME)
    system, notes = system_prompt(facts, pieces)
    if pieces is not None and facts.trims:
        notes.append("ollama.trims")
    template = turn_pieces.PLAIN if facts.plain else pieces.go_template() if pieces else None
    text = modelfile(run_dir, gguf.name, template, system, facts)
    files.write_text(target / MODELFILE, text)
    files.link(gguf, target / gguf.name)
    which = "text" if facts.plain else "go" if pieces else "gguf"
    figures = {**artifacts.parity(run_dir)[kind], "same_files_as": kind, "template": which, "conversations": compared}
    artifacts.record_parity(run_dir, NAME, figures)
    return OllamaFolder(target, gguf.name, which, compared, system, notes, facts.licence)


def written_files(folder: Path) -> list[str]:
    """Names of the Modelfile and GGUF file that were exported into a folder; none where a user wrote the Modelfile."""
    path = folder / MODELFILE
    ours = _OURS.match(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else None
    return [MODELFILE, ours[1]] if ours else []


def _facts(run_dir: RunDir, source: Path) -> OllamaFacts:
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "samples.json"
        programs.run_engine("conversation_samples", run_dir, lambda _: None, str(source), str(out))
        found = files.read_object(out)
    return OllamaFacts(**{**found, "samples": [RenderedConversation(**one) for one in found["samples"]]})


def _as_tokenized(endpoint: LlamaCpp, pieces: TurnPieces, facts: OllamaFacts) -> TurnPieces:
    """The pieces with or without the start token, whichever llama.cpp turns into the tokens of training."""
    bare = pieces.without_start(facts.start)
    problem = _first_difference(endpoint, bare, facts.samples)
    if problem is not None and _first_difference(endpoint, pieces, facts.samples) is None:
        return pieces
    if problem is not None:
        text, expected, got = problem
        raise StokerError("STK531", text=repr(text[:60]), expected=expected[:5], got=got[:5])
    return bare


def _first_difference(
    endpoint: LlamaCpp, pieces: TurnPieces, samples: list[RenderedConversation]
) -> tuple[str, list[int], list[int]] | None:
    for sample in samples:
        if sample.text is not None:
            text, got = llamacpp.prompt_ids(endpoint, None, pieces.render(sample.messages))
            if got != sample.ids:
                return text, sample.ids, got
    return None


def system_prompt(facts: OllamaFacts, pieces: TurnPieces | None) -> tuple[str | None, list[str]]:
    """The system prompt that the rows share, unless the template writes it anyway or a Modelfile cannot hold it."""
    system = facts.system
    if not system or (pieces is not None and system in pieces.opening):
        return None, []
    # Ollama's reader of Modelfiles drops what is not printable, a Chinese full-width space for example.
    kept = all(one.isprintable() or one in "\n\t" for one in system) and '"""' not in system
    return (system, []) if kept and system == system.strip() else (None, ["ollama.system_left_out"])


# ---- the Modelfile


def modelfile(run_dir: RunDir, gguf: str, template: str | None, system: str | None, facts: OllamaFacts) -> str:
    """The text of the Modelfile, in Ollama's language."""
    made = messages.in_language("en", "ollama.made", name=run_dir.name)
    lines = [f"# {made}", f"FROM ./{gguf}"]
    lines += [f'TEMPLATE """{template}"""'] if template is not None else [f"REQUIRES {_READS_JINJA}"]
    lines += [f'SYSTEM """{system}"""'] if system else []
    lines += [f'PARAMETER stop "{stop}"' for stop in facts.stops if stop.strip()]
    parameters = {"num_ctx": _context(run_dir, facts.context), **sampling(facts.settings)}
    lines += [f"PARAMETER {name} {value:g}" for name, value in parameters.items()]
    if facts.licence.get("license", "unknown") != "unknown":
        lines += [f'LICENSE """{" ".join(str(value) for value in facts.licence.values())}"""']
    return "\n".join(lines) + "\n"


def sampling(settings: dict[str, Any]) -> dict[str, float]:
    """Ollama's sampling parameters for generation settings; greedy where these do not sample, as `stoker chat` is."""
    penalty = {"repeat_penalty": float(settings.get("repetition_penalty") or 1.0)}
    if not settings.get("do_sample"):
        return {"temperature": 0.0, **penalty}
    stated = {name: settings.get(name) for name in _SAMPLED}
    return {**{name: float(_SAMPLED[name] if value is None else value) for name, value in stated.items()}, **penalty}


def _context(run_dir: RunDir, longest: int | None) -> int:
    """The length of training, at least Ollama's own default, at most what the model takes."""
    wanted = max(run_dir.run().data.length, _LEAST_CONTEXT)
    return min(wanted, longest) if longest else wanted
