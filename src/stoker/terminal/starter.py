"""The run file that `stoker init` writes: from answers to commented YAML, with a reason for each guess.

Looks at the first row of the data and at the model's shape. Asks nothing and writes nothing; `init` does.
"""

import csv
import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

from stoker import messages
from stoker.config import layouts
from stoker.config.run import Shape
from stoker.errors import StokerError
from stoker.facts import families, shapes
from stoker.facts.families import FamilyCell
from stoker.facts.shapes import ModelShape
from stoker.rundir import inputs

_PLAIN = re.compile(r"[A-Za-z][\w./-]*")
_WORDS_WITH_MEANING = {"null", "true", "false"}
_BYTES_PER_TOKEN = 4
"""A rough value, about right for English and Chinese in UTF-8; `prepare` counts."""
_LARGEST_SHARE_IN_16_BITS = 0.5
"""Weights above this share of a card leave too little for gradients and activations: 4 bits are proposed instead."""


@dataclass(frozen=True)
class Size:
    """A model from scratch in one of three sizes."""

    layers: int
    width: int
    heads: int
    vocab: int
    length: int
    learning_rate: str

    def weights(self) -> int:
        """Number of weights."""
        shape = Shape(shape="llama", layers=self.layers, width=self.width, heads=self.heads)
        return shapes.from_run(shape, self.vocab, self.length).parameters()


SIZES = {
    "tiny": Size(layers=4, width=256, heads=4, vocab=4096, length=256, learning_rate="1e-3"),
    "small": Size(layers=6, width=512, heads=8, vocab=16000, length=512, learning_rate="5e-4"),
    "medium": Size(layers=12, width=768, heads=12, vocab=32000, length=1024, learning_rate="3e-4"),
}


@dataclass(frozen=True)
class Target:
    """Where it will run."""

    name: str
    kind: Literal["cuda", "mps", "cpu"]
    memory_bytes: int
    card: str | None
    """A card of the catalogue, where it is not this machine."""


@dataclass(frozen=True)
class Remark:
    """A sentence of the catalogue, for a comment of the run file."""

    key: str
    fields: dict[str, Any]

    @property
    def text(self) -> str:
        """The sentence, on one line."""
        return " ".join(messages.text(self.key, **self.fields).split())


@dataclass(frozen=True)
class Answers:
    """The user's answers."""

    model: str | Size
    """A trained model's name, or the size of one from scratch."""
    data: str
    target: Target
    full: bool
    """Full training, not a quick try."""


@dataclass(frozen=True)
class Guess:
    """What was chosen for the user, and why."""

    objective: str
    objective_reason: Remark
    method: str
    method_reason: Remark
    rows: int | None
    """Rows of the data; None if the data is not on this machine."""
    tokens: int | None
    """Estimated tokens."""


# ---- guesses


def guess(answers: Answers, folder: Path) -> Guess:
    """Objective and method for these answers."""
    files = _files(answers.data, folder)
    layout, reason = _layout(answers.data, files)
    rows, tokens = _count(files)
    if isinstance(answers.model, Size):
        key = "init.why.conversations" if _is_conversation(layout) else "init.why.scratch"
        return Guess("pretrain", Remark(key, {}), "full", Remark("init.why.full", {}), rows, tokens)
    objective = "pretrain" if layout == "text" else "sft"
    method, method_reason = _method(answers.model, answers.target, folder)
    return Guess(objective, reason, method, method_reason, rows, tokens)


def _files(data: str, folder: Path) -> list[Path]:
    """The data files; empty if they are not on this machine."""
    try:
        return [] if inputs.is_remote(data) else inputs.expand(data, folder)
    except StokerError:
        return []


def _layout(data: str, files: list[Path]) -> tuple[str | None, Remark]:
    """The layout of the first row, and why the objective follows from it."""
    if not files:
        return None, Remark("init.why.remote" if inputs.is_remote(data) else "init.why.absent", {"path": data})
    keys = _first_keys(files[0])
    if keys is None:
        return None, Remark("init.why.unread", {"path": files[0].name})
    recognised = layouts.recognise(keys)
    if recognised is None:
        return None, Remark("init.why.unknown", {"keys": list(keys)})
    found, signs = recognised
    key = "init.why.text" if found.name == "text" else "init.why.rows"
    return found.name, Remark(key, {"keys": list(signs)})


def _is_conversation(layout: str | None) -> bool:
    return layout is not None and layouts.BUILT_IN[layout].needs_template


def _first_keys(file: Path) -> list[str] | None:
    """Keys of a file's first row; None if reading it needs the engine."""
    kind = inputs.kind(file)
    if kind == ".txt":
        return ["text"]
    if kind not in (".jsonl", ".csv"):
        return None
    try:
        with _opened(file) as text:
            return next(csv.reader(text), None) if kind == ".csv" else _json_keys(text)
    except (OSError, ValueError):
        return None


def _json_keys(text: TextIO) -> list[str] | None:
    row = json.loads(next((line for line in text if line.strip()), "null"))
    return list(row) if isinstance(row, dict) else None


def _opened(file: Path) -> TextIO:
    if file.suffix.lower() == ".gz":
        return gzip.open(file, "rt", encoding="utf-8-sig")
    return file.open(encoding="utf-8-sig")


def _count(files: list[Path]) -> tuple[int | None, int | None]:
    """Rows by counting lines, tokens by size; None for compressed files and parquet."""
    if not files or any(file.suffix.lower() not in (".jsonl", ".csv", ".txt") for file in files):
        return None, None
    rows = sum(1 if file.suffix.lower() == ".txt" else _lines(file) for file in files)
    tokens = sum(file.stat().st_size for file in files) // _BYTES_PER_TOKEN
    return (rows, tokens) if rows and tokens else (None, None)


def _lines(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(1 for line in lines if line.strip()) - (file.suffix.lower() == ".csv")


def _method(model: str, target: Target, folder: Path) -> tuple[str, Remark]:
    """`qlora` if 16-bit weights would fill the card, else `lora`."""
    try:
        shape = shapes.resolve(model, folder).shape
    except StokerError:
        return "lora", Remark("init.why.lora_unknown", {})
    if (seen := _cell(shape, "lora")) and seen.outcome == "refused":
        return "full", Remark("init.why.no_adapter", {"family": shape.family, "code": seen.code})
    weights_bytes = 2 * shape.parameters()
    fields = {
        "weights": f"{weights_bytes / 2**30:.1f}",
        "memory": f"{target.memory_bytes / 2**30:.1f}",
        "name": target.name,
    }
    if target.kind == "cuda" and weights_bytes > _LARGEST_SHARE_IN_16_BITS * target.memory_bytes:
        return "qlora", Remark("init.why.qlora", fields)
    return "lora", Remark("init.why.lora", fields)


def _cell(shape: ModelShape, name: str) -> FamilyCell | None:
    row = families.of_shape(shape)
    return row.cells.get(name) if row else None


def family_remark(model: str | Size, method: str, folder: Path) -> Remark | None:
    """What was seen of the model's family with this method; None where its shape is not known here."""
    try:
        shape = shapes.resolve(model, folder).shape if isinstance(model, str) else None
    except StokerError:
        shape = None
    if shape is None:
        return None
    seen = _cell(shape, method)
    fields = {"family": shape.family, "method": method}
    if seen is None:
        return Remark("init.family.untested", fields)
    return Remark("init.family.tested", {**fields, "date": seen.date, "transformers": seen.transformers})


# ---- text


def compose(answers: Answers, guessed: Guess, name: str) -> str:
    """The run file."""
    lines = [
        *_header(answers.target, name),
        "",
        *(_scratch(answers.model) if isinstance(answers.model, Size) else _trained(answers.model)),
        "",
        *_data(answers, guessed),
        "",
        *_tune(guessed),
        "",
        *_train(answers, guessed),
        "",
        *_rest(answers),
    ]
    return "\n".join(lines) + "\n"


def _header(target: Target, name: str) -> list[str]:
    card = f" --card {target.card}" if target.card else ""
    return [
        _comment("init.file.header"),
        _comment("init.file.plan", command=f"stoker plan {name}{card}"),
        _comment("init.file.train", command=f"stoker train {name}"),
        _comment("init.file.where", name=target.name),
    ]


def _trained(model: str) -> list[str]:
    return [_line("model", scalar(model), "init.file.model")]


def _scratch(size: Size) -> list[str]:
    shape = f"{{shape: llama, layers: {size.layers}, width: {size.width}, heads: {size.heads}}}"
    return [
        _line("model", shape, "init.file.shape", weights=f"{size.weights() / 1e6:.0f}"),
        _line("tokenizer", f"{{train: bpe, vocab: {size.vocab}}}", "init.file.tokenizer"),
    ]


def _data(answers: Answers, guessed: Guess) -> list[str]:
    declared = []
    if guessed.rows:
        declared = [
            _line("  rows", str(guessed.rows), "init.file.rows"),
            _line("  tokens", str(guessed.tokens), "init.file.tokens", size=_BYTES_PER_TOKEN),
        ]
    length = answers.model.length if isinstance(answers.model, Size) else 1024
    return [
        "data:",
        _line("  train", scalar(answers.data), "init.file.data"),
        _line("  eval", "5%", "init.file.eval"),
        _line("  length", str(length), "init.file.length"),
        _line("  pack", "true", "init.file.pack"),
        *declared,
    ]


def _tune(guessed: Guess) -> list[str]:
    rank = "" if guessed.method == "full" else ", rank: 16"
    return [f"# {guessed.method_reason.text}", f"tune: {{method: {guessed.method}{rank}}}"]


def _train(answers: Answers, guessed: Guess) -> list[str]:
    scratch = isinstance(answers.model, Size)
    rate = answers.model.learning_rate if isinstance(answers.model, Size) else "2e-4"
    passes = "10" if scratch else "3"
    return [
        "train:",
        f"  # {guessed.objective_reason.text}",
        f"  objective: {guessed.objective}",
        _line("  epochs", passes, "init.file.epochs") if answers.full else _line("  steps", "50", "init.file.steps"),
        _line("  batch", "16", "init.file.batch"),
        _line("  learning_rate", rate, "init.file.learning_rate"),
        *(["  weight_decay: 0.1"] if scratch else []),
        _line("  seed", "42", "init.file.seed"),
    ]


def _rest(answers: Answers) -> list[str]:
    best = [_line("  best", "eval_loss", "init.file.best")] if answers.full else []
    return [
        "save:",
        _line("  every", "auto", "init.file.every"),
        _line("  keep", "3", "init.file.keep"),
        *best,
        "",
        _line("where", "{place: local, gpus: all}", "init.file.gpus"),
    ]


def _line(key: str, value: str, comment: str, **fields: Any) -> str:
    return f"{key}: {value}  {_comment(comment, **fields)}"


def _comment(key: str, **fields: Any) -> str:
    return f"# {Remark(key, fields).text}"


def scalar(text: str) -> str:
    """Text as a YAML scalar: plain if YAML reads it as text, else quoted as in JSON."""
    plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS_WITH_MEANING
    return text if plain else json.dumps(text, ensure_ascii=False)
