"""The run file that `stoker init` writes: from answers to commented YAML, with a reason for each guess.

Looks at the data and at the model's shape. Asks nothing and writes nothing; `init` does.
"""

import glob
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stoker import messages
from stoker.config import layouts, objectives
from stoker.config.run import Shape
from stoker.errors import StokerError
from stoker.facts import families, shapes
from stoker.facts.families import FamilyCell
from stoker.facts.shapes import ModelShape
from stoker.launch import data_look, own_tokenizer, starter_choices
from stoker.launch.data_look import DataLook
from stoker.launch.starter_choices import EVAL, Proposal, Remark, StarterQuestion
from stoker.rows import token_rates
from stoker.rundir import inputs

_PLAIN = re.compile(r"[A-Za-z][\w./-]*")
_WORDS_WITH_MEANING = {"null", "true", "false"}
_FEW_BAD = 0.1
"""Share of rows that cannot be used, above which the file is probably of another kind than it was taken for."""
_USUAL_VOCAB = 151_936
"""Of a model whose vocabulary is not known here."""
_UNKNOWN = "init.why.unknown"
"""That the columns of the rows have names of their own."""
_INSTRUCT = re.compile(r"instruct|chat|-it\b", re.IGNORECASE)
TOO_LARGE = "init.why.too_large"
"""That the weights alone do not fit where it is to run."""
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
class Answers:
    """The user's answers."""

    model: str | Size
    """A trained model's name, or the size of one from scratch."""
    data: str
    target: Target
    full: bool
    """Full training, not a quick try."""


@dataclass(frozen=True)
class GuessedColumns:
    """The columns of a prompt and an answer, guessed from their names."""

    named: dict[str, str]
    reason: Remark


@dataclass(frozen=True)
class Guess:
    """What was chosen for the user, and why."""

    objective: str
    objective_reason: Remark
    method: str
    method_reason: Remark
    rank: int
    rate: str
    rate_reason: Remark
    proposal: Proposal
    seen: DataLook | None
    """None if the data is not on this machine, or could not be read."""
    unseen: Remark | None
    """Why not."""
    columns: GuessedColumns | None
    notes: list[Remark]
    """What else should be known about the data."""


# ---- guesses


def guess(answers: Answers, folder: Path) -> Guess:
    """Everything the run file needs, for these answers."""
    shape = _shape(answers.model, folder)
    rates = _rates(answers.model, shape)
    tokenizer = _tokenizer(answers.model, folder)
    seen, unseen, columns = _seen(answers.data, folder, rates, tokenizer)
    method, method_reason = _method(answers, shape)
    objective, objective_reason = _objective(answers.data, answers.model, seen, unseen)
    size = answers.model if isinstance(answers.model, Size) else None
    question = StarterQuestion(
        splits=objective == "pretrain",
        scratch_length=size.length if size else None,
        context=shape.context if shape else _context(answers.model, folder),
        full=answers.full,
        by_row=objectives.facts(objective).by_row,
    )
    rank, rate, rate_reason = _rate(size, objective, method)
    return Guess(
        objective=objective,
        objective_reason=objective_reason,
        method=method,
        method_reason=method_reason,
        rank=rank,
        rate=rate,
        rate_reason=rate_reason,
        proposal=starter_choices.propose(question, seen),
        seen=seen,
        unseen=unseen,
        columns=columns,
        notes=[
            *_unseen(answers.model, unseen),
            *_notes(answers, objective, seen),
            *_vocabulary(seen, rates, tokenizer),
        ],
    )


def _rates(model: str | Size, shape: ModelShape | None) -> token_rates.TokenRates:
    if isinstance(model, Size):
        return token_rates.of("-", model.vocab)
    return token_rates.of(shape.family, shape.vocab) if shape else token_rates.of("-", _USUAL_VOCAB)


def _shape(model: str | Size, folder: Path) -> ModelShape | None:
    """A trained model's shape, where it is known here."""
    try:
        return shapes.resolve(inputs.model_path(model, folder), folder).shape if isinstance(model, str) else None
    except StokerError:
        return None


def _context(model: str | Size, folder: Path) -> int | None:
    """Positions of a trained model whose shape is not known, by its own files."""
    return shapes.context(inputs.model_path(model, folder), folder) if isinstance(model, str) else None


def _tokenizer(model: str | Size, folder: Path) -> Path | None:
    return own_tokenizer.file(inputs.model_path(model, folder), folder) if isinstance(model, str) else None


def _seen(
    data: str, folder: Path, rates: token_rates.TokenRates, tokenizer: Path | None
) -> tuple[DataLook | None, Remark | None, GuessedColumns | None]:
    """What is in the data, or why that is not known; where its columns have names of their own, by those guessed."""
    seen, unseen = _look(data, folder, rates, tokenizer)
    columns = _guessed_columns(unseen.fields) if unseen and unseen.fields.get("guessed") else None
    again = _look(data, folder, rates, tokenizer, columns.named)[0] if columns else None
    return (again, None, columns) if again and again.lengths else (seen, unseen, None)


def _guessed_columns(fields: dict[str, Any]) -> GuessedColumns:
    """The columns that leave no doubt, with a reason that names those beside them, which are not read."""
    beside = [scalar(key) for key in fields["keys"] if key not in fields["guessed"]]
    reason = Remark("init.file.guessed_beside", {"keys": beside}) if beside else Remark("init.file.guessed", {})
    return GuessedColumns(dict(zip(("prompt", "answer"), fields["guessed"], strict=True)), reason)


def _look(
    data: str,
    folder: Path,
    rates: token_rates.TokenRates,
    tokenizer: Path | None,
    columns: dict[str, str] | None = None,
) -> tuple[DataLook | None, Remark | None]:
    """What is in the data, or why that is not known."""
    if inputs.is_remote(data):
        return None, Remark("init.why.remote", {"path": data})
    try:
        return data_look.look(data, folder, rates, tokenizer, columns), None
    except StokerError as error:
        if error.code == "STK301":
            return None, _absent(data, folder)
        if error.code == "STK303":
            return None, Remark(_UNKNOWN, {key: error.fields[key] for key in ("keys", "example", "guessed")})
        if error.code == "STK206":
            return None, Remark("init.why.parquet", {"path": data})
        return None, Remark("init.why.unread", {"path": data, "problem": error.what, "code": error.code})


def _absent(data: str, folder: Path) -> Remark:
    """That there is no such file; one that differs in its ending only was perhaps meant."""
    path = folder / data
    near = sorted(path.parent.glob(f"{glob.escape(path.name.partition('.')[0])}.*")) if path.parent.is_dir() else []
    names = [f"`{one.name}`" for one in near if inputs.kind(one) in inputs.SUFFIXES]
    return (
        Remark("init.why.beside", {"path": data, "names": names})
        if names
        else Remark("init.why.absent", {"path": data})
    )


def _objective(data: str, model: str | Size, seen: DataLook | None, unseen: Remark | None) -> tuple[str, Remark]:
    layout = seen.layout if seen else None
    if isinstance(model, Size):
        needs_template = layout is not None and layouts.BUILT_IN[layout.format].needs_template
        return "pretrain", Remark("init.why.conversations" if needs_template else "init.why.scratch", {})
    if unseen:
        return "sft", unseen if unseen.key == _UNKNOWN else Remark("init.why.assumed", {"reason": unseen.text})
    if layout is None:
        return "sft", Remark("init.why.nothing", {"path": data})
    if layout.format == "text":
        return "pretrain", Remark("init.why.text", {})
    if layout.format == layouts.PREFERENCE:
        return "dpo", Remark("init.why.pairs", {"keys": layout.keys})
    if layout.format == layouts.LABELLED:
        return "kto", Remark("init.why.labels", {"keys": layout.keys})
    return "sft", Remark("init.why.rows", {"keys": layout.keys})


def _rate(size: Size | None, objective: str, method: str) -> tuple[int, str, Remark]:
    """Rank of an adapter, learning rate, and why."""
    if size:
        return 0, size.learning_rate, Remark("init.rate.scratch", {})
    if objectives.facts(objective).by_row:
        return (
            (0, "1e-6", Remark("init.rate.pairs", {}))
            if method == "full"
            else (16, "1e-5", Remark("init.rate.pairs", {}))
        )
    if method == "full":
        return 0, ("1e-5" if objective == "pretrain" else "2e-5"), Remark("init.rate.full", {})
    if objective == "pretrain":
        return 64, "1e-4", Remark("init.rate.pretrain", {})
    return 16, "2e-4", Remark("init.rate.adapter", {})


def _unseen(model: str | Size, unseen: Remark | None) -> list[Remark]:
    """Why the data was not looked at; of a trained model it is the reason of the objective."""
    return [unseen] if unseen and isinstance(model, Size) else []


def _notes(answers: Answers, objective: str, seen: DataLook | None) -> Iterator[Remark]:
    """What was seen of the data, and what may be wrong with it."""
    if seen is None:
        return
    if seen.lengths:
        yield _summary(seen)
    if seen.duplicates:
        yield Remark("init.note.duplicates", {"count": seen.duplicates, "rows": f"{seen.rows:,}"})
    if seen.bad:
        where, problem = seen.bad[0]
        yield Remark("init.note.bad", {"count": len(seen.bad), "where": where, "reason": problem})
    if objective == "pretrain" and isinstance(answers.model, str) and _INSTRUCT.search(answers.model):
        yield Remark("init.note.instruct", {"model": answers.model})


def _vocabulary(seen: DataLook | None, rates: token_rates.TokenRates, tokenizer: Path | None) -> Iterator[Remark]:
    """What counted the tokens of a model whose tokenizer is here; another's are always estimated."""
    if seen is None or tokenizer is None or not seen.lengths:
        return
    if seen.by_tokenizer:
        yield Remark("init.note.counted", {"path": tokenizer.name})
    elif not rates.known:
        yield Remark("init.note.general", {"path": tokenizer.name, "name": rates.name})


def _summary(seen: DataLook) -> Remark:
    scripts = [messages.text(key, share=starter_choices.percent(share)) for key, share in seen.scripts]
    fields = {"rows": f"{seen.rows:,}", "tokens": f"{seen.tokens:,}", "scripts": scripts or "-"}
    if seen.is_running:
        return Remark("init.note.text", fields)
    lengths = {"half": seen.covering(0.5), "most": seen.covering(0.99), "longest": seen.lengths[-1]}
    return Remark("init.note.rows", {**fields, **{name: f"{value:,.0f}" for name, value in lengths.items()}})


def _method(answers: Answers, shape: ModelShape | None) -> tuple[str, Remark]:
    """`qlora` if 16-bit weights would fill the card, else `lora`; a CPU and a Mac compute in fp32, as a plan says."""
    target = answers.target
    if isinstance(answers.model, Size):
        return "full", Remark("init.why.full", {})
    if shape is None:
        return "lora", Remark("init.why.lora_unknown", {})
    if (seen := _cell(shape, "lora")) and seen.outcome == "refused":
        return "full", Remark("init.why.no_adapter", {"family": shape.family, "code": seen.code})
    halves = target.kind == "cuda"
    weights_bytes = (2 if halves else 4) * shape.parameters()
    fields = {
        "weights": f"{weights_bytes / 2**30:.1f}",
        "memory": f"{target.memory_bytes / 2**30:.1f}",
        "name": target.name,
    }
    if not halves:
        return "lora", Remark(TOO_LARGE if weights_bytes > target.memory_bytes else "init.why.lora_fp32", fields)
    if weights_bytes > _LARGEST_SHARE_IN_16_BITS * target.memory_bytes:
        return "qlora", Remark("init.why.qlora", fields)
    return "lora", Remark("init.why.lora", fields)


def _cell(shape: ModelShape, name: str) -> FamilyCell | None:
    row = families.of_shape(shape)
    return row.cells.get(name) if row else None


def family_remark(model: str | Size, method: str, folder: Path) -> Remark | None:
    """What was seen of the model's family with this method; None where its shape is not known here."""
    shape = _shape(model, folder)
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


def _leaves_out(guessed: Guess) -> bool:
    """Whether rows will be bad, but so few that the file is understood: those seen, or those that are far too long."""
    seen = guessed.seen
    if seen is None:
        return False
    few = len(seen.bad) <= _FEW_BAD * (len(seen.bad) + len(seen.lengths))
    return few and (bool(seen.bad) or guessed.proposal.why["data.length"].key == starter_choices.FEW_LONGER)


def _data(answers: Answers, guessed: Guess) -> list[str]:
    proposal, declared = guessed.proposal, []
    if guessed.seen and guessed.seen.tokens and isinstance(answers.model, Size):
        declared = [
            _line("  rows", str(guessed.seen.rows), "init.file.rows"),
            _line("  tokens", str(guessed.seen.tokens), "init.file.tokens"),
        ]
    skip = [_line("  on_bad_row", "skip", "init.file.bad_rows")] if _leaves_out(guessed) else []
    return [
        *(f"# {note.text}" for note in guessed.notes),
        "data:",
        _line("  train", scalar(answers.data), "init.file.data"),
        *_columns(guessed),
        *skip,
        _line("  eval", EVAL, "init.file.eval"),
        _said("  length", proposal.length, proposal.why["data.length"]),
        _said("  pack", str(proposal.pack).lower(), proposal.why["data.pack"]),
        *declared,
    ]


def _columns(guessed: Guess) -> list[str]:
    """The columns that were guessed, or a line that is still to be looked at."""
    if guessed.columns:
        return [_said("  columns", _mapping(guessed.columns.named), guessed.columns.reason)]
    example = guessed.unseen.fields.get("example") if guessed.unseen else None
    return [_line("  # columns", example, "init.file.columns")] if example else []


def _mapping(columns: dict[str, str]) -> str:
    inner = ", ".join(f"{role}: {scalar(column)}" for role, column in columns.items())
    return f"{{{inner}}}"


def _tune(guessed: Guess) -> list[str]:
    rank = "" if guessed.method == "full" else f", rank: {guessed.rank}"
    return [f"# {guessed.method_reason.text}", f"tune: {{method: {guessed.method}{rank}}}"]


def _train(answers: Answers, guessed: Guess) -> list[str]:
    proposal = guessed.proposal
    word, value = ("epochs", proposal.epochs) if answers.full else ("steps", proposal.steps)
    return [
        "train:",
        f"  # {guessed.objective_reason.text}",
        f"  objective: {guessed.objective}",
        _said(f"  {word}", value, proposal.why[f"train.{word}"]),
        _said("  batch", proposal.batch, proposal.why["train.batch"]),
        _said("  learning_rate", guessed.rate, guessed.rate_reason),
        *(["  weight_decay: 0.1"] if isinstance(answers.model, Size) else []),
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


def chosen(guessed: Guess) -> list[tuple[str, Remark]]:
    """What was chosen, as the run file writes it, and why."""
    proposal = guessed.proposal
    values = {
        "data.length": proposal.length,
        "data.pack": str(proposal.pack).lower(),
        "train.batch": proposal.batch,
        "train.epochs": proposal.epochs,
        "train.steps": proposal.steps,
    }
    columns = guessed.columns
    return [
        *([(f"data.columns: {_mapping(columns.named)}", columns.reason)] if columns else []),
        ("objective: " + guessed.objective, guessed.objective_reason),
        ("tune: " + guessed.method, guessed.method_reason),
        *((f"{word}: {values[word]}", why) for word, why in proposal.why.items()),
        (f"train.learning_rate: {guessed.rate}", guessed.rate_reason),
    ]


def _said(key: str, value: object, why: Remark) -> str:
    return f"{key}: {value}  # {why.text}"


def _line(key: str, value: str, comment: str, **fields: Any) -> str:
    return f"{key}: {value}  {_comment(comment, **fields)}"


def _comment(key: str, **fields: Any) -> str:
    return f"# {Remark(key, fields).text}"


def scalar(text: str) -> str:
    """Text as a YAML scalar: plain if YAML reads it as text, else quoted as in JSON."""
    plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS_WITH_MEANING
    return text if plain else json.dumps(text, ensure_ascii=False)
